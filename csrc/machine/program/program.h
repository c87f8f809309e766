// The Program as the machine holds it: the decoded binary form of docs/program.md.
//
// Torch-free. A mirror of openspyre/program/model.py, where the meaning of every field stands;
// names have become indices. decode() has checked every index, so that code may use them unchecked.
// Numbers that come out of expressions are checked where they are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine/formats.h"

namespace openspyre::machine {

inline constexpr uint16_t kProgramVersion = 2;       // reads 1 as well
inline constexpr uint64_t kUnpatched = 0x3BAD5BAD5;  // lies in segment 0, which is never mapped
inline constexpr int64_t kLaneAccumulators = 64;
inline constexpr int kUnits = 5, kMaxLabels = 8, kMaxTiles = 8;
// What any image must keep to, so that no number in it can make the machine allocate much.
inline constexpr int kMaxCores = 1024, kMaxRank = 6, kMaxLoops = 64, kMaxExprDepth = 64;
inline constexpr int64_t kMaxSemaphores = 65536, kMaxLxBytes = int64_t(64) << 20;

enum class Unit : uint8_t { Load, Store, Ring, PT, SFU };
enum class Role : uint8_t { In, Out, InOut, Scratch, Const };
enum class SymbolKind : uint8_t { Dimension, Int, Float };
enum class Kind : uint8_t {
  MatMul,
  Map,
  Reduce,
  Fold,
  Scan,
  Gather,
  Scatter,
  Sort,
  Merge,
  TopK,
};
enum class Combine : uint8_t { Sum, Prod, Max, Min, Any, All, ArgMax, ArgMin, Welford };
enum class Register : uint8_t { F32, I32, I64, Bool };
const char* unit_name(Unit unit);
const char* kind_name(Kind kind);

// The body operations, in the order of openspyre/program/ops.py BODY_OPS.
// clang-format off
enum class Op : uint8_t {
  Input, Const, Scalar, Index, Neg, Abs, Sign, Floor, Ceil, RoundEven, Trunc, Frac, Sqrt,
  Rsqrt, Reciprocal, Exp, Exp2, Expm1, Log, Log2, Log10, Log1p, Sigmoid, Tanh, Erf, Erfc,
  Erfinv, Gelu, GeluTanh, Silu, Softplus, Mish, Relu, Sin, Cos, Tan, Asin, Acos, Atan, Sinh,
  Cosh, Asinh, Acosh, Atanh, IsNan, IsInf, IsFinite, Add, Sub, Mul, Min, Max, Div, Pow, Atan2,
  CopySign, Fmod, Remainder, FloorDiv, TruncDiv, Eq, Ne, Lt, Le, Gt, Ge, And, Or, Xor, Not,
  Shl, Shr, ShrLogical, Where, Cast, Round, Bits, Philox, Unit,
};
// clang-format on
inline constexpr int kOps = int(Op::Unit) + 1;
const char* op_name(Op op);

// An expression in postfix order. Variables are indices into the environment: symbols, digits,
// `core`, lets, then loop variables by nesting.
struct ExprStep {
  enum Code : uint8_t { Const, Var, Add, Sub, Mul, FloorDiv, Mod, Min, Max, Eq, Lt, Le } code;
  int64_t value;  // of Const; index of Var
};
struct Expr {
  std::vector<ExprStep> steps;  // empty only where an instruction has no such number
};

struct Label {
  std::string name;
  Expr start, size;
};
struct Index {
  int label;  // -1: none
  Expr offset;
};
struct Stride {
  int label;
  Expr bytes;
};
struct Access {
  int value;  // operand, or operands + value
  std::vector<Index> index;
  int operand, buffer;  // one of them is -1
  Format format;
  std::vector<Stride> strides;
  int stick;  // label, or -1
  Expr offset, slot;
  bool lanes;
};

struct Node {
  Op op;
  Register type;
  int args[3] = {-1, -1, -1};
  int arity = 0;
  Register result;
  int64_t immediate = 0;  // integers, input, symbol, label, format, type; bits of a float constant
};
struct Body {
  std::vector<Node> nodes;
  std::vector<int> results;
};

struct Instruction {
  enum Tag : uint8_t { Load, Store, Ring, Compute, Wait, Signal, Loop } tag;
  uint32_t id;  // unique in the program, in order of decoding
  std::vector<Label> over;
  std::vector<Access> inputs, outputs;  // Load, Store, Ring: one each; Compute: as declared
  // Load, Store: by index
  int index_label = -1;  // -1: plain. Compute: `label`
  std::vector<Access> index_tile;
  Expr limit, first, window;
  bool add = false, descending = false;
  std::vector<int> multicast;  // digits
  // Ring: count, core and the variable's place in the environment. Loop: count and variable (-1).
  Expr count, core;
  int variable = -1;
  std::string variable_name;  // for messages
  bool has_core = false;      // Signal
  bool has_combine = false;
  Combine combine = Combine::Sum;
  // Compute
  Unit unit = Unit::SFU;
  Kind kind = Kind::Map;
  Body body;
  Expr accumulate;
  // Wait, Signal: token, index in `first`, amount in `count`
  int token = -1;
  std::vector<Instruction> children;  // Loop
};

struct Digit {
  std::string name;
  int64_t size;
};
struct Symbol {
  std::string name;
  SymbolKind kind;
  int64_t argument, dim, granularity, minimum, maximum;
};
struct Operand {
  std::string name;
  Role role;
  std::string dtype;
  Format format;
  std::vector<Expr> shape, within;  // within empty: as shape
  bool has_within = false, has_order = false;
  std::vector<int> order;
  bool has_strides = false;   // the layout is given outright:
  std::vector<Expr> strides;  // bytes a step of each dim; of the stick dim a stick
  int64_t stick = -1;
  uint64_t offset;
};
struct Value {
  std::string name;
  std::vector<Expr> shape, reduced;
};
struct Buffer {
  std::string name;
  int64_t base, slot_bytes, slots;
};
struct Token {
  std::string name;
  int64_t count, initial;
  int first;  // number of its first semaphore among all of a core
};
struct Let {
  std::string name;
  Expr value;
};

struct Program {
  std::string name, card_name;
  int64_t card_cores, card_lx_bytes;
  std::vector<Digit> grid;
  std::vector<Symbol> symbols;
  std::vector<Operand> operands;
  std::vector<Value> values;
  std::vector<Buffer> buffers;
  std::vector<Token> tokens;
  std::vector<Let> lets;
  std::vector<Instruction> queues[kUnits];
  int64_t cores;          // product of the grid
  int semaphores;         // per core
  int environment;        // places of variables: fixed ones and the deepest nest of loops
  uint32_t instructions;  // ids are below it
  uint64_t data_offset, data_bytes;  // CONST bytes, in the image
  uint64_t symbols_offset;           // of the symbol words in the image
  int words;                         // launch arguments, [dynamic region], symbols
  bool has_scratch;
  bool rings = false, talks = false;  // cores read each other's LX; or also signal each other
  uint64_t symbol_checksum;
  std::vector<int> arguments;  // operand numbers of the launch arguments, in order
};

// What is wrong with an image: the field, the byte offset and the rule.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Decodes an image (docs/program.md "Binary form"). Reads nothing outside [image, image + bytes),
// whatever they hold; allocates no more than a small multiple of `bytes`. Throws FormatError.
std::shared_ptr<const Program> decode_program(const void* image, size_t bytes);

}  // namespace openspyre::machine
