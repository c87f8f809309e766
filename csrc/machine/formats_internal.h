// What the format conversions share among themselves: the scalar rules and the kernel table.
//
// Private to csrc/machine/formats*.cpp. Everything here works on bit patterns with integer
// arithmetic, so that neither the rounding mode nor the flush-denormals switch of the processor
// can change a bit. All functions have internal linkage: the files for AVX2 and AVX-512 use them
// too, and no copy compiled there may be picked by the linker for an older processor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/formats.h"

namespace openspyre::machine::detail {

// DLFloat16: sign, 6 exponent bits with bias 31, 9 fraction bits (hardware.md section 3.2).
inline constexpr uint16_t kSign16 = 0x8000;
inline constexpr uint16_t kMagnitude16 = 0x7FFF;
inline constexpr uint16_t kDlMerged = 0x7FFF;      // the one NaN/Inf magnitude
inline constexpr uint16_t kDlLargest = 0x7FFE;     // 2^33 - 2^24
inline constexpr uint16_t kDlHalfMax = 0x5DFF;     // 65472, the limit of host float16 values
inline constexpr uint16_t kDlHalfInf = 0x5E00;     // 65536, the first code float16 cannot hold
inline constexpr uint16_t kDlHalfNormal = 0x2200;  // 2^-14, the smallest normal float16
inline constexpr uint16_t kDlOne = 0x3E00;

inline constexpr uint16_t kHalfInf = 0x7C00;
inline constexpr uint16_t kHalfNan = 0x7E00;
inline constexpr uint16_t kHalfOne = 0x3C00;
inline constexpr uint16_t kHalfNormal = 0x0400;  // below lie the subnormals
inline constexpr uint16_t kBf16Inf = 0x7F80;
inline constexpr uint16_t kBf16Nan = 0x7FC0;
inline constexpr uint32_t kFloatInf = 0x7F800000u;
inline constexpr uint32_t kFloatNan = 0x7FC00000u;

// Differences of exponent biases, placed at the exponent field of the wider format.
inline constexpr uint16_t kHalfToDl = (31 - 15) << 10;        // added to a float16 magnitude
inline constexpr uint16_t kBf16FromDl = (127 - 31) << 7;      // added to a bfloat16 magnitude
inline constexpr uint32_t kFloatFromDl = (127u - 31u) << 23;  // added to a float32 magnitude
// A float16 subnormal is mag * 2^-24. The float32 bits of the integer `mag`, shifted to nine
// fraction bits, carry exponent p + 127; DLFloat16 wants p - 24 + 31.
inline constexpr int32_t kSubnormalShift = (127 - 7) << 9;

// What is added to a magnitude before its low bits are cut. `half` is half a unit of the result;
// `odd` tells whether the cut magnitude would be odd; `negative` is the value's sign.
static constexpr uint32_t tie_addend(TieRule tie, uint32_t half, bool odd, bool negative) {
  switch (tie) {
    case TieRule::TowardPositive:
      return negative ? half - 1 : half;
    case TieRule::AwayFromZero:
      return half;
    case TieRule::ToEven:
      return odd ? half : half - 1;
    case TieRule::TowardZero:
      return half - 1;
    case TieRule::ToOdd:
      return odd ? half - 1 : half;
  }
  return half;
}

static inline uint16_t half_to_dl16(uint16_t bits, TieRule tie) {
  const uint32_t mag = bits & kMagnitude16, sign = bits & kSign16;
  if (mag - 1u < kHalfNormal - 1u) {  // subnormal: at most ten bits, always exact
    const int top = 31 - __builtin_clz(mag);
    return uint16_t(sign | ((uint32_t(top + 6) << 9) + (mag << (9 - top))));
  }
  if (mag == 0) return bits;
  if (mag >= kHalfInf) return mag == kHalfInf ? uint16_t(sign | kDlMerged) : kDlMerged;
  const uint32_t code = (mag + kHalfToDl + tie_addend(tie, 1, (mag >> 1) & 1, sign != 0)) >> 1;
  return uint16_t(sign | (code < kDlHalfMax ? code : kDlHalfMax));
}

static inline uint16_t bf16_to_dl16(uint16_t bits) {  // never a tie: two fraction bits are gained
  const uint32_t mag = bits & kMagnitude16, sign = bits & kSign16;
  if (mag >= kBf16Inf) return mag == kBf16Inf ? uint16_t(sign | kDlMerged) : kDlMerged;
  if (mag <= kBf16FromDl) return uint16_t(sign);
  const uint32_t code = (mag - kBf16FromDl) << 2;
  return uint16_t(sign | (code < kDlLargest ? code : kDlLargest));
}

static inline uint16_t float_to_dl16(uint32_t bits, TieRule tie) {
  const uint32_t mag = bits & 0x7FFFFFFFu, sign = (bits >> 16) & kSign16;
  if (mag > kFloatInf) return kDlMerged;
  const int32_t wide = int32_t(mag - kFloatFromDl);
  const int32_t code = (wide + int32_t(tie_addend(tie, 0x2000, (wide >> 14) & 1, sign != 0))) >> 14;
  return uint16_t(sign | uint32_t(code < 0 ? 0 : code > kDlMerged ? kDlMerged : code));
}

static inline uint32_t dl16_to_float(uint16_t code, bool merged_is_nan) {
  const uint32_t mag = code & kMagnitude16, sign = uint32_t(code & kSign16) << 16;
  if (mag == 0) return sign;
  if (mag == kDlMerged) return merged_is_nan ? kFloatNan : sign | kFloatInf;
  return sign | ((mag << 14) + kFloatFromDl);
}

static inline uint16_t dl16_to_half(uint16_t code, bool merged_is_nan) {
  const uint32_t mag = code & kMagnitude16, sign = code & kSign16;
  if (mag >= kDlHalfInf) {
    return mag == kDlMerged && merged_is_nan ? kHalfNan : uint16_t(sign | kHalfInf);
  }
  if (mag >= kDlHalfNormal) return uint16_t(sign | (2 * mag - kHalfToDl));
  if (mag == 0) return code;
  // In units of 2^-24 the value is (512 + f) / 2^shift: round that to nearest, ties to even.
  const uint32_t shift = 16 - (mag >> 9), significand = 512 + (mag & 511);
  const uint32_t whole = significand >> shift, rest = significand & ((1u << shift) - 1);
  const uint32_t twice = 2 * rest, unit = 1u << shift;
  return uint16_t(sign | (whole + (twice > unit || (twice == unit && (whole & 1)))));
}

static inline uint16_t dl16_to_bf16(uint16_t code, bool merged_is_nan) {
  const uint32_t mag = code & kMagnitude16, sign = code & kSign16;
  if (mag == 0) return code;
  if (mag == kDlMerged) return merged_is_nan ? kBf16Nan : uint16_t(sign | kBf16Inf);
  return uint16_t(sign | (((mag + 1 + ((mag >> 2) & 1)) >> 2) + kBf16FromDl));
}

// The IEEE conversions keep a NaN's sign and the upper part of its payload and make it quiet, as
// the conversion instructions of the usual processors do.
static inline uint16_t float_to_half(uint32_t bits) {
  const uint32_t mag = bits & 0x7FFFFFFFu, sign = (bits >> 16) & kSign16;
  if (mag > kFloatInf) return uint16_t(sign | kHalfNan | ((mag >> 13) & 0x3FF));
  if (mag >= 0x47800000u) return uint16_t(sign | kHalfInf);  // 65536 and above
  if (mag >= 0x38800000u) {  // 2^-14 and above; a carry past the last finite value gives Inf
    const uint32_t rebased = mag - ((127u - 15u) << 23);
    return uint16_t(sign | ((rebased + 0xFFF + ((rebased >> 13) & 1)) >> 13));
  }
  if (mag <= 0x33000000u) return uint16_t(sign);  // 2^-25 and below: zero, the tie goes to even
  // In units of 2^-24 the value is significand / 2^shift.
  const uint32_t shift = 126 - (mag >> 23), significand = 0x800000u | (mag & 0x7FFFFFu);
  const uint32_t whole = significand >> shift, rest = significand & ((1u << shift) - 1);
  const uint32_t middle = 1u << (shift - 1);
  return uint16_t(sign | (whole + (rest > middle || (rest == middle && (whole & 1)))));
}

static inline uint32_t half_to_float(uint16_t bits) {
  const uint32_t mag = bits & kMagnitude16, sign = uint32_t(bits & kSign16) << 16;
  if (mag > kHalfInf) return sign | kFloatNan | (mag & 0x3FF) << 13;
  if (mag == kHalfInf) return sign | kFloatInf;
  if (mag >= kHalfNormal) return sign | ((mag << 13) + ((127u - 15u) << 23));
  if (mag == 0) return sign;
  const int top = 31 - __builtin_clz(mag);
  return sign | ((uint32_t(top - 24 + 127) << 23) + ((mag << (23 - top)) & 0x7FFFFFu));
}

static inline uint16_t float_to_bf16(uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > kFloatInf) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static inline uint32_t bf16_to_float(uint16_t bits) { return uint32_t(bits) << 16; }

// One row per instruction set. src and dst need no alignment and must not overlap.
// Bool kernels carry the code of 1.0 in `one`.
struct Kernels {
  void (*half_to_dl16)(const void* src, void* dst, size_t n, TieRule tie);
  void (*bf16_to_dl16)(const void* src, void* dst, size_t n);
  void (*float_to_dl16)(const void* src, void* dst, size_t n, TieRule tie);
  void (*dl16_to_half)(const void* src, void* dst, size_t n, bool merged_is_nan);
  void (*dl16_to_bf16)(const void* src, void* dst, size_t n, bool merged_is_nan);
  void (*dl16_to_float)(const void* src, void* dst, size_t n, bool merged_is_nan);
  void (*float_to_half)(const void* src, void* dst, size_t n);
  void (*half_to_float)(const void* src, void* dst, size_t n);
  void (*float_to_bf16)(const void* src, void* dst, size_t n);
  void (*bf16_to_float)(const void* src, void* dst, size_t n);
  void (*bool_to_code)(const void* src, void* dst, size_t n, uint16_t one);
  void (*code_to_bool)(const void* src, void* dst, size_t n);
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
#define OPENSPYRE_X86 1
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// Calls `function<tie>(args...)` for the run-time value `tie`.
#define OPENSPYRE_FOR_TIE(tie, function, ...)                \
  switch (tie) {                                             \
    case TieRule::TowardPositive:                            \
      return function<TieRule::TowardPositive>(__VA_ARGS__); \
    case TieRule::AwayFromZero:                              \
      return function<TieRule::AwayFromZero>(__VA_ARGS__);   \
    case TieRule::ToEven:                                    \
      return function<TieRule::ToEven>(__VA_ARGS__);         \
    case TieRule::TowardZero:                                \
      return function<TieRule::TowardZero>(__VA_ARGS__);     \
    case TieRule::ToOdd:                                     \
      return function<TieRule::ToOdd>(__VA_ARGS__);          \
  }

}  // namespace openspyre::machine::detail
