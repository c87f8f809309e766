// The kernels of the units: what one COMPUTE (or RING combine) does to tiles in memory.
//
// Torch-free. The interpreter (machine/program) hands over tiles with checked addresses: a kernel
// may touch every stick that a tile names and nothing else. Each kernel exists for every
// instruction set with the same bits; `kernels_for(current_isa())` picks.
//
// Laws of the bits (docs/program.md): floats are float32 inside; no fused multiply-add, except
// where the product is exact; matrix products add k ascending, one element at a time; reductions
// along the stick go into 64 lane accumulators, element e to e % 64 of its row, ascending; a FOLD
// adds accumulator i + h to i for h = 32, 16, 8, 4, 2, 1; other reductions go one by one ascending.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "machine/formats.h"
#include "machine/program/program.h"

namespace openspyre::machine {

// A tile in memory. Point t (local indices) is at base + sum(stride[l] * t[l]); for the stick label
// at (t / eps) strides plus (t % eps) elements. See Access.
struct View {
  std::byte* base = nullptr;
  int64_t stride[kMaxLabels] = {};  // bytes, of every label; 0: not moved by it
  int stick = -1;                   // label on the stick; -1: first element of each stick
  Format format = Format::IEEE_FP32;
  bool lanes = false;
};

struct ComputeTask {
  const Instruction* code;
  int labels;                 // of code->over
  int64_t start[kMaxLabels];  // global index of the first point
  int64_t size[kMaxLabels];   // >= 1: the interpreter skips empty tasks
  int inputs, outputs;
  View input[kMaxTiles], output[kMaxTiles];
  bool accumulate;
  int64_t limit;
  std::span<const int64_t> symbols;  // FLOAT: the float32's bits
  const Numerics* numerics;
};

struct Kernels {
  // Kind::MatMul. Dtypes: SEN169_FP16, IEEE_FP16, BFLOAT16, fp8: float32 accumulators; IEEE_FP32:
  // rounded product, then rounded sum; SENINT8: int32. a: stick k; b and out: stick n.
  void (*matmul)(const ComputeTask&);
  void (*map)(const ComputeTask&);
  void (*reduce)(const ComputeTask&);
  void (*fold)(const ComputeTask&);
  void (*scan)(const ComputeTask&);
  // These throw LaunchFault(Index) for an index outside 0..limit-1, with the point.
  void (*gather)(const ComputeTask&);
  void (*scatter)(const ComputeTask&);
  void (*sort)(const ComputeTask&);
  void (*merge)(const ComputeTask&);
  void (*topk)(const ComputeTask&);
  // RING reduce: target = target combine source, tiles of float32, int32 or int64.
  void (*combine)(Combine op, int labels, const int64_t* size, const View& target,
                  const View& source);
};
const Kernels& kernels_for(Isa isa);

// STORE with `add`: the value at `target` becomes round(value + the one at `source`), for `n`
// contiguous elements of `format`.
void add_elements(Format format, void* target, const void* source, int64_t n, const Numerics&);

// One body operation on `n` values of contiguous arrays, for the reference executor: the law of the
// functions is one source. Arrays hold registers: float32, int32, int64; truth one byte each, 0 or
// 1. `immediate` as in Node. Not for input, scalar and index.
void apply_op(Op op, Register type, const void* const* args, void* out, int64_t n,
              int64_t immediate, const Numerics& numerics);

// A decoded program may ask for a COMPUTE that no kernel does (a dtype, a view). Called by
// decode_program for every Compute: "" or one sentence naming the rule.
const char* unsupported(const Instruction& compute);

}  // namespace openspyre::machine
