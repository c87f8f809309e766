// Single elements of tiles: where they are, what register they make, how they are stored.
//
// Private to index_*.cpp, combine.cpp and relayout.cpp; for their general paths. A register is held
// in 64 bits: the value of an integer, the bits of a float32.
#pragma once

#include <bit>
#include <cstring>

#include "machine/formats_internal.h"
#include "machine/kernels/kernels.h"

namespace openspyre::machine {
namespace {

constexpr bool is_float(Format f) {
  return f == Format::SEN169_FP16 || f == Format::IEEE_FP16 || f == Format::BFLOAT16 ||
         f == Format::IEEE_FP32 || f == Format::SEN143_FP8 || f == Format::SEN152_FP8;
}
constexpr bool is_integer(Format f) {
  return f == Format::SENINT8 || f == Format::SENINT16 || f == Format::SENUINT8 ||
         f == Format::IEEE_INT32 || f == Format::IEEE_INT64;
}
// Formats whose elements are held in the same register type.
constexpr bool agree(Format a, Format b) {
  if (is_float(a) || is_float(b)) return is_float(a) && is_float(b);
  return is_integer(a) && is_integer(b) && (a == Format::IEEE_INT64) == (b == Format::IEEE_INT64);
}

// A view with its constants at hand. Offsets are bytes from the view's base.
struct Place {
  explicit Place(const View& view) : view(&view) {
    bytes = format_bytes(view.format);
    eps = kStickBytes / bytes;
  }
  int64_t along(int label, int64_t i) const {
    const int64_t stride = view->stride[label];
    return label == view->stick ? i / eps * stride + i % eps * bytes : i * stride;
  }
  const View* view;
  int64_t bytes, eps;
};

// Walks the box of a task, leaving out the labels of `skip` (bits), in ascending lexicographic
// order; `at` are the local indices.
class Points {
 public:
  Points(const ComputeTask& task, unsigned skip) : task_(task), skip_(skip) {}
  bool next() {
    for (int label = task_.labels - 1; label >= 0; --label) {
      if (skip_ >> label & 1) continue;
      if (++at[label] < task_.size[label]) return true;
      at[label] = 0;
    }
    return false;
  }
  int64_t offset(const Place& place) const {
    int64_t sum = 0;
    for (int label = 0; label < task_.labels; ++label) {
      if (at[label]) sum += place.along(label, at[label]);
    }
    return sum;
  }
  int64_t at[kMaxLabels] = {};

 private:
  const ComputeTask& task_;
  unsigned skip_;
};

struct Fp8 {
  uint32_t fraction, bias, largest;
  bool has_inf;
};
constexpr Fp8 fp8_of(Format f) {
  return f == Format::SEN143_FP8 ? Fp8{3, 7, 0x7E, false} : Fp8{2, 15, 0x7B, true};
}

inline uint32_t fp8_to_float(uint8_t code, Format format) {
  const Fp8 form = fp8_of(format);
  const uint32_t mag = code & 0x7F, sign = uint32_t(code & 0x80) << 24;
  if (mag > form.largest) {
    return form.has_inf && mag == form.largest + 1 ? sign | detail::kFloatInf : detail::kFloatNan;
  }
  if (mag >> form.fraction == 0) {  // subnormal: the integer times its unit, both exact
    const float unit = form.has_inf ? 0x1p-16f : 0x1p-9f;
    return sign | std::bit_cast<uint32_t>(float(mag) * unit);
  }
  return sign | ((mag << (23 - form.fraction)) + ((127 - form.bias) << 23));
}

inline uint8_t float_to_fp8(uint32_t bits, Format format) {
  const Fp8 form = fp8_of(format);
  const uint32_t mag = bits & 0x7FFFFFFFu, sign = bits >> 24 & 0x80;
  if (mag > detail::kFloatInf) return 0x7F;
  const uint32_t overflow = form.has_inf ? form.largest + 1 : form.largest;
  const uint32_t exponent = mag >> 23;
  uint32_t code;
  if (exponent + form.bias > 127) {
    const uint32_t rebased = mag - ((127 - form.bias) << 23), shift = 23 - form.fraction;
    code = (rebased + ((1u << (shift - 1)) - 1) + (rebased >> shift & 1)) >> shift;
  } else {  // in units of the smallest subnormal the value is significand / 2^shift
    const uint32_t shift = 151 - form.bias - form.fraction - exponent;
    if (exponent == 0 || shift > 24) return uint8_t(sign);
    const uint32_t significand = 0x800000u | (mag & 0x7FFFFFu);
    const uint32_t rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
    code = significand >> shift;
    code += rest > half || (rest == half && (code & 1));
  }
  return uint8_t(sign | (code < overflow ? code : overflow));
}

template <class T>
inline T read_as(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
inline void write_as(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

inline int64_t load_cell(Format format, const std::byte* at, const Numerics& numerics) {
  switch (format) {
    case Format::SEN169_FP16:
      return detail::dl16_to_float(read_as<uint16_t>(at), numerics.merged_is_nan);
    case Format::IEEE_FP16:
      return detail::half_to_float(read_as<uint16_t>(at));
    case Format::BFLOAT16:
      return detail::bf16_to_float(read_as<uint16_t>(at));
    case Format::IEEE_FP32:
      return read_as<uint32_t>(at);
    case Format::SEN143_FP8:
    case Format::SEN152_FP8:
      return fp8_to_float(read_as<uint8_t>(at), format);
    case Format::SENINT8:
      return read_as<int8_t>(at);
    case Format::SENUINT8:
      return read_as<uint8_t>(at);
    case Format::SENINT16:
      return read_as<int16_t>(at);
    case Format::IEEE_INT32:
      return read_as<int32_t>(at);
    case Format::IEEE_INT64:
      return read_as<int64_t>(at);
    default:
      return 0;
  }
}

inline float as_float(int64_t cell) { return std::bit_cast<float>(uint32_t(cell)); }
inline int64_t of_float(float value) { return std::bit_cast<uint32_t>(value); }

inline void store_cell(Format format, std::byte* at, int64_t cell, const Numerics& numerics) {
  auto word = uint32_t(cell);
  if (is_float(format) && (word & 0x7FFFFFFFu) > detail::kFloatInf) word = detail::kFloatNan;
  switch (format) {
    case Format::SEN169_FP16:
      return write_as(at, detail::float_to_dl16(word, numerics.tie));
    case Format::IEEE_FP16:
      return write_as(at, detail::float_to_half(word));
    case Format::BFLOAT16:
      return write_as(at, detail::float_to_bf16(word));
    case Format::SEN143_FP8:
    case Format::SEN152_FP8:
      return write_as(at, float_to_fp8(word, format));
    case Format::IEEE_FP32:
    case Format::IEEE_INT32:
      return write_as(at, word);
    case Format::SENINT8:
    case Format::SENUINT8:
      return write_as(at, uint8_t(word));
    case Format::SENINT16:
      return write_as(at, uint16_t(word));
    case Format::IEEE_INT64:
      return write_as(at, cell);
    default:
      return;
  }
}

// A code as it is after it passed through a register of its own format: a NaN becomes the one NaN
// of the format. `above` is the largest magnitude that is no NaN.
struct Settle {
  uint32_t above = ~0u, nan = 0, mask = 0;
  Settle(Format format, const Numerics& numerics) {
    switch (format) {
      case Format::SEN169_FP16:
        if (numerics.merged_is_nan) *this = {detail::kDlMerged - 1u, detail::kDlMerged, 0x7FFF};
        return;
      case Format::IEEE_FP16:
        *this = {detail::kHalfInf, detail::kHalfNan, 0x7FFF};
        return;
      case Format::BFLOAT16:
        *this = {detail::kBf16Inf, detail::kBf16Nan, 0x7FFF};
        return;
      case Format::IEEE_FP32:
        *this = {detail::kFloatInf, detail::kFloatNan, 0x7FFFFFFFu};
        return;
      case Format::SEN143_FP8:
        *this = {0x7E, 0x7F, 0x7F};
        return;
      case Format::SEN152_FP8:
        *this = {0x7C, 0x7F, 0x7F};
        return;
      default:
        return;
    }
  }
  bool idle() const { return mask == 0; }

 private:
  Settle(uint32_t above, uint32_t nan, uint32_t mask) : above(above), nan(nan), mask(mask) {}
};

template <class T>
inline void settle_as(std::byte* at, int64_t n, const Settle& settle) {
  const T above = T(settle.above), nan = T(settle.nan), mask = T(settle.mask);
  for (int64_t i = 0; i < n; ++i, at += sizeof(T)) {
    const T code = read_as<T>(at);
    write_as(at, T(code & mask) > above ? nan : code);
  }
}
// Settles `n` contiguous codes of `bytes` bytes.
inline void settle_run(std::byte* at, int64_t n, int64_t bytes, const Settle& settle) {
  if (settle.idle()) return;
  if (bytes == 1) settle_as<uint8_t>(at, n, settle);
  if (bytes == 2) settle_as<uint16_t>(at, n, settle);
  if (bytes == 4) settle_as<uint32_t>(at, n, settle);
}

}  // namespace
}  // namespace openspyre::machine
