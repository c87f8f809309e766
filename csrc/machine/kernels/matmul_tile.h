// One matrix product without batch labels, as plain numbers: what the driver (matmul_driver.cpp)
// hands to the vector code (matmul_body.h), and the scratch memory that code works in.
//
// Private to csrc/machine/kernels/matmul_*. Holds nothing that emits code: the files compiled for
// one instruction set include it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/formats.h"

namespace openspyre::machine {

struct ComputeTask;

namespace detail {

// Element (m, k) of a is at a + m * a_row + (k / eps) * a_stick + (k % eps) * bytes; (k, n) of b at
// b + k * b_row + (n / eps) * b_stick + (n % eps) * bytes; (m, n) of out, 4 bytes each, at
// out + m * out_row + (n / 32) * out_stick + (n % 32) * 4. All strides are bytes, of any sign.
struct MatmulTile {
  const std::byte* a;
  const std::byte* b;
  std::byte* out;
  int64_t m, n, k;  // >= 1
  int64_t a_row, a_stick, b_row, b_stick, out_row, out_stick;
  Format a_format, b_format;
  bool accumulate;     // start from out, not from zero
  bool integers;       // SENINT8 inputs, int32 out
  bool merged_is_nan;  // numerics of DLFloat16
  float* a_scratch;    // kScratchA floats
  float* b_scratch;    // kScratchB floats
};

// A block of a that is decoded at a time; kBlockK is a multiple of every format's stick.
inline constexpr int64_t kBlockM = 256, kBlockK = 256;
// Between rows of a decoded block of a: no two rows of a micro-kernel share cache sets.
inline constexpr int64_t kRowA = kBlockK + 16;
inline constexpr int64_t kPanel = 64;  // columns of b that are decoded at a time
inline constexpr int64_t kScratchA = kBlockM * kRowA;
inline constexpr int64_t kScratchB = kBlockK * kPanel;

// Bytes of an element of a format that matmul takes.
static constexpr int64_t format_width(Format format) {
  switch (format) {
    case Format::IEEE_FP32:
      return 4;
    case Format::SEN143_FP8:
    case Format::SEN152_FP8:
    case Format::SENINT8:
      return 1;
    default:
      return 2;
  }
}
template <Format format>
inline constexpr int64_t kBytes = format_width(format);

using MatmulFunction = void (*)(const MatmulTile&);
// Walks the batch labels of `task` and calls `function` for each product.
void run_matmul(const ComputeTask& task, MatmulFunction function);

}  // namespace detail
}  // namespace openspyre::machine
