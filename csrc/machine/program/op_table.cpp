// The tables of names and of body operations. See op_table.h.
#include "machine/program/op_table.h"

namespace openspyre::machine {

namespace {

constexpr OpInfo unary(const char* name) { return {name, "f", "T", 'T', Immediate::None}; }
constexpr OpInfo test(const char* name) { return {name, "f", "T", 'b', Immediate::None}; }
constexpr OpInfo unary_any(const char* name) { return {name, "fil", "T", 'T', Immediate::None}; }
constexpr OpInfo binary(const char* name, const char* types) {
  return {name, types, "TT", 'T', Immediate::None};
}
constexpr OpInfo compare(const char* name) { return {name, "filb", "TT", 'b', Immediate::None}; }

constexpr OpInfo kTable[] = {
    {"input", "fil", "", 'T', Immediate::Input},
    {"const", "filb", "", 'T', Immediate::Typed},
    {"scalar", "fl", "", 'T', Immediate::Symbol},
    {"index", "l", "", 'T', Immediate::Label},
    unary_any("neg"),
    unary_any("abs"),
    unary_any("sign"),
    unary("floor"),
    unary("ceil"),
    unary("round_even"),
    unary("trunc"),
    unary("frac"),
    unary("sqrt"),
    unary("rsqrt"),
    unary("reciprocal"),
    unary("exp"),
    unary("exp2"),
    unary("expm1"),
    unary("log"),
    unary("log2"),
    unary("log10"),
    unary("log1p"),
    unary("sigmoid"),
    unary("tanh"),
    unary("erf"),
    unary("erfc"),
    unary("erfinv"),
    unary("gelu"),
    unary("gelu_tanh"),
    unary("silu"),
    unary("softplus"),
    unary("mish"),
    unary("relu"),
    unary("sin"),
    unary("cos"),
    unary("tan"),
    unary("asin"),
    unary("acos"),
    unary("atan"),
    unary("sinh"),
    unary("cosh"),
    unary("asinh"),
    unary("acosh"),
    unary("atanh"),
    test("isnan"),
    test("isinf"),
    test("isfinite"),
    binary("add", "fil"),
    binary("sub", "fil"),
    binary("mul", "fil"),
    binary("min", "fil"),
    binary("max", "fil"),
    binary("div", "f"),
    binary("pow", "f"),
    binary("atan2", "f"),
    binary("copysign", "f"),
    binary("fmod", "fil"),
    binary("remainder", "fil"),
    binary("floor_div", "fil"),
    binary("trunc_div", "fil"),
    compare("eq"),
    compare("ne"),
    compare("lt"),
    compare("le"),
    compare("gt"),
    compare("ge"),
    binary("and", "ilb"),
    binary("or", "ilb"),
    binary("xor", "ilb"),
    {"not", "ilb", "T", 'T', Immediate::None},
    binary("shl", "il"),
    binary("shr", "il"),
    binary("shr_logical", "il"),
    {"where", "filb", "bTT", 'T', Immediate::None},
    {"cast", "filb", "T", '*', Immediate::Type},
    {"round", "f", "T", 'T', Immediate::Format},
    {"bits", "fi", "T", '*', Immediate::Type},
    {"philox", "l", "TT", 'i', Immediate::Int},
    {"unit", "i", "T", 'f', Immediate::None},
};
static_assert(sizeof(kTable) / sizeof(kTable[0]) == kOps, "one row an operation");

}  // namespace

const OpInfo& op_info(Op op) { return kTable[static_cast<int>(op)]; }
const char* op_name(Op op) { return op_info(op).name; }

const char* unit_name(Unit unit) {
  constexpr const char* names[] = {"load", "store", "ring", "pt", "sfu"};
  return names[static_cast<int>(unit)];
}

const char* kind_name(Kind kind) {
  constexpr const char* names[] = {"matmul", "map",     "reduce", "fold",  "scan",
                                   "gather", "scatter", "sort",   "merge", "topk"};
  return names[static_cast<int>(kind)];
}

const char* combine_name(Combine combine) {
  constexpr const char* names[] = {"sum", "prod",   "max",    "min",    "any",
                                   "all", "argmax", "argmin", "welford"};
  return names[static_cast<int>(combine)];
}

const char* tag_name(Instruction::Tag tag) {
  constexpr const char* names[] = {"load", "store", "ring", "compute", "wait", "signal", "loop"};
  return names[static_cast<int>(tag)];
}

char register_letter(Register type) { return "filb"[static_cast<int>(type)]; }

Register register_of_letter(char letter) {
  switch (letter) {
    case 'f':
      return Register::F32;
    case 'i':
      return Register::I32;
    case 'l':
      return Register::I64;
    default:
      return Register::Bool;
  }
}

bool register_of(Format format, Register* out) {
  switch (format) {
    case Format::SEN169_FP16:
    case Format::IEEE_FP16:
    case Format::BFLOAT16:
    case Format::IEEE_FP32:
    case Format::SEN143_FP8:
    case Format::SEN152_FP8:
      *out = Register::F32;
      return true;
    case Format::SENINT8:
    case Format::SENINT16:
    case Format::SENUINT8:
    case Format::IEEE_INT32:
      *out = Register::I32;
      return true;
    case Format::IEEE_INT64:
      *out = Register::I64;
      return true;
    default:
      return false;
  }
}

bool is_exact(Format format, Register type) {
  switch (type) {
    case Register::F32:
      return format == Format::IEEE_FP32;
    case Register::I32:
    case Register::Bool:
      return format == Format::IEEE_INT32;
    default:
      return format == Format::IEEE_INT64;
  }
}

}  // namespace openspyre::machine
