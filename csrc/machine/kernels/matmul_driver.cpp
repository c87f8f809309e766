// Matrix products: from a task's labels to plain products (matmul_tile.h).
//
// Common to all instruction sets. Touches the tiles of the task and scratch memory of its thread.
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "machine/kernels/matmul_kernels.h"
#include "machine/kernels/matmul_tile.h"

namespace openspyre::machine {

namespace {

bool is_fp8(Format f) { return f == Format::SEN143_FP8 || f == Format::SEN152_FP8; }

bool is_input(Format f) {
  return is_fp8(f) || f == Format::SEN169_FP16 || f == Format::IEEE_FP16 || f == Format::BFLOAT16 ||
         f == Format::IEEE_FP32 || f == Format::SENINT8;
}

const char* wrong_formats(Format a, Format b, Format out) {
  if (!is_input(a) || !is_input(b) || (a != b && !(is_fp8(a) && is_fp8(b)))) {
    return "matmul: inputs a and b must have one format of SEN169_FP16, IEEE_FP16, BFLOAT16, "
           "IEEE_FP32, SEN143_FP8, SEN152_FP8, SENINT8, or be two fp8 formats; cast one";
  }
  if (out != (a == Format::SENINT8 ? Format::IEEE_INT32 : Format::IEEE_FP32)) {
    return "matmul: the output's format must be IEEE_FP32 (IEEE_INT32 for SENINT8 inputs); encode "
           "it with a map afterwards";
  }
  return "";
}

// 64-byte aligned memory of this thread: each worker keeps its own between tasks.
struct Scratch {
  Scratch() : memory(new float[detail::kScratchA + detail::kScratchB + 32]) {
    const auto at = reinterpret_cast<uintptr_t>(memory.get());
    a = memory.get() + ((64 - at % 64) % 64) / sizeof(float);
    b = a + detail::kScratchA;
    // Columns that a panel lacks are computed but never stored; no value there may be undefined.
    std::memset(memory.get(), 0, (detail::kScratchA + detail::kScratchB + 32) * sizeof(float));
  }
  std::unique_ptr<float[]> memory;
  float *a, *b;
};

bool moved(const View& view, int label) { return view.stride[label] != 0 || view.stick == label; }

}  // namespace

const char* unsupported_matmul(const Instruction& code) {
  if (code.inputs.size() != 2 || code.outputs.size() != 1) {
    return "matmul: it has two inputs and one output";
  }
  const Access &a = code.inputs[0], &b = code.inputs[1], &out = code.outputs[0];
  if (a.lanes || b.lanes || out.lanes) return "matmul: no tile of it may be lane accumulators";
  if (a.stick < 0 || b.stick < 0 || out.stick < 0) {
    return "matmul: a needs its k on the stick, b and the output their n; restickify first";
  }
  if (b.stick != out.stick)
    return "matmul: b and the output must have the same label, n, on the stick";
  if (a.stick == b.stick) return "matmul: k (a's stick) and n (b's stick) must be different labels";
  for (const Stride& stride : out.strides) {
    if (stride.label == a.stick) return "matmul: the output must not have k, the stick label of a";
  }
  for (const Stride& stride : a.strides) {
    if (stride.label == out.stick)
      return "matmul: a must not have n, the stick label of the output";
  }
  return wrong_formats(a.format, b.format, out.format);
}

namespace detail {

void run_matmul(const ComputeTask& task, MatmulFunction function) {
  const View &a = task.input[0], &b = task.input[1], &out = task.output[0];
  const int k = a.stick, n = out.stick;
  const char* wrong = wrong_formats(a.format, b.format, out.format);
  if (*wrong) throw std::invalid_argument(wrong);
  if (k < 0 || n < 0 || b.stick != n || k == n) {
    throw std::invalid_argument("matmul: a needs k on the stick, b and the output n");
  }
  // Of the labels b lacks the longest makes the rows of one product; all others are walked.
  int m = -1;
  for (int label = 0; label < task.labels; ++label) {
    if (label == k || label == n || moved(b, label) || !moved(out, label)) continue;
    if (m < 0 || task.size[label] > task.size[m]) m = label;
  }
  thread_local Scratch scratch;
  MatmulTile tile{};
  tile.m = m < 0 ? 1 : task.size[m];
  tile.n = task.size[n];
  tile.k = task.size[k];
  tile.a_row = m < 0 ? 0 : a.stride[m];
  tile.a_stick = a.stride[k];
  tile.b_row = b.stride[k];
  tile.b_stick = b.stride[n];
  tile.out_row = m < 0 ? 0 : out.stride[m];
  tile.out_stick = out.stride[n];
  tile.a_format = a.format;
  tile.b_format = b.format;
  tile.accumulate = task.accumulate;
  tile.integers = out.format == Format::IEEE_INT32;
  tile.merged_is_nan = task.numerics->merged_is_nan;
  tile.a_scratch = scratch.a;
  tile.b_scratch = scratch.b;

  int64_t at[kMaxLabels] = {};
  for (;;) {
    int64_t a_at = 0, b_at = 0, out_at = 0;
    for (int label = 0; label < task.labels; ++label) {
      a_at += at[label] * a.stride[label];
      b_at += at[label] * b.stride[label];
      out_at += at[label] * out.stride[label];
    }
    tile.a = a.base + a_at;
    tile.b = b.base + b_at;
    tile.out = out.base + out_at;
    function(tile);
    int label = task.labels - 1;
    for (; label >= 0; --label) {
      if (label == k || label == n || label == m) continue;
      if (++at[label] < task.size[label]) break;
      at[label] = 0;
    }
    if (label < 0) return;
  }
}

}  // namespace detail
}  // namespace openspyre::machine
