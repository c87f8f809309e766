// Tiles for tests of kernels: memory of exactly the sticks that a view names, with poisoned pads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "machine/formats.h"
#include "machine/kernels/kernels.h"
#include "machine/program/op_table.h"

namespace tiles {

using namespace openspyre::machine;

using Random = std::mt19937_64;
inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

// A tile whose labels `moved` have strides in random order, with gaps, some negative.
class Tile {
 public:
  Tile(Random& random, Format format, std::vector<int64_t> sizes, std::vector<int> moved, int stick,
       bool lanes = false)
      : sizes_(std::move(sizes)), moved_(std::move(moved)) {
    view.format = format;
    view.stick = stick;
    view.lanes = lanes;
    eps_ = elements_per_stick(format);
    point_ = lanes ? kLaneAccumulators * format_bytes(format) : kStickBytes;
    std::vector<int> order = moved_;
    std::shuffle(order.begin(), order.end(), random);
    int64_t pitch = point_, first = 0;
    for (const int label : order) {
      const int64_t steps = label == stick ? (sizes_[label] + eps_ - 1) / eps_ : sizes_[label];
      const bool backwards = pick(random, 0, 7) == 0;
      view.stride[label] = backwards ? -pitch : pitch;
      if (backwards) first += (steps - 1) * pitch;
      pitch = steps * pitch + kStickBytes * pick(random, 0, 2);
    }
    bytes.resize(size_t(pitch));
    poison(format, bytes.data(), bytes.size());
    view.base = bytes.data() + first;
  }
  Tile(const Tile& other) : view(other.view), bytes(other.bytes) {
    sizes_ = other.sizes_, moved_ = other.moved_, eps_ = other.eps_, point_ = other.point_;
    view.base = bytes.data() + (other.view.base - other.bytes.data());
  }
  Tile& operator=(const Tile&) = delete;

  std::byte* at(const std::vector<int64_t>& point, int64_t lane = 0) {
    int64_t offset = lane * format_bytes(view.format);
    for (const int label : moved_) {
      if (label == view.stick) {
        offset += point[label] / eps_ * view.stride[label];
        offset += point[label] % eps_ * format_bytes(view.format);
      } else {
        offset += point[label] * view.stride[label];
      }
    }
    return view.base + offset;
  }
  template <class F>
  void each(F visit) {  // every point of the box of the labels that move it, lexicographically
    std::vector<int64_t> point(sizes_.size(), 0);
    each_from(point, 0, visit);
  }
  template <class F>
  void fill(F code) {  // code() -> the bits of an element
    each([&](const std::vector<int64_t>& point) {
      for (int64_t lane = 0; lane < (view.lanes ? kLaneAccumulators : 1); ++lane) {
        const uint64_t bits = code();
        std::memcpy(at(point, lane), &bits, size_t(format_bytes(view.format)));
      }
    });
  }
  uint64_t bits(const std::vector<int64_t>& point, int64_t lane = 0) {
    uint64_t value = 0;
    std::memcpy(&value, at(point, lane), size_t(format_bytes(view.format)));
    return value;
  }
  // Whether `other`, a copy of this tile that a kernel wrote to, differs outside the tile's sticks.
  bool strayed(Tile& other) {
    std::vector<bool> inside(bytes.size(), false);
    each([&](const std::vector<int64_t>& point) {
      std::vector<int64_t> start = point;
      if (view.stick >= 0) start[view.stick] = start[view.stick] / eps_ * eps_;
      const int64_t offset = at(start) - bytes.data();
      for (int64_t i = 0; i < point_; ++i) inside[size_t(offset + i)] = true;
    });
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (!inside[i] && bytes[i] != other.bytes[i]) return true;
    }
    return false;
  }

  View view;
  std::vector<std::byte> bytes;

 private:
  template <class F>
  void each_from(std::vector<int64_t>& point, size_t label, F& visit) {
    if (label == sizes_.size()) return visit(point);
    const bool walks = std::find(moved_.begin(), moved_.end(), int(label)) != moved_.end();
    for (int64_t i = 0; i < (walks ? sizes_[label] : 1); ++i) {
      point[label] = i;
      each_from(point, label + 1, visit);
    }
    point[label] = 0;
  }

  std::vector<int64_t> sizes_;
  std::vector<int> moved_;
  int64_t eps_, point_;
};

// The value of a code, by the definition of its format.
inline float value_of(Format format, uint64_t bits, const Numerics& numerics = {}) {
  const auto small = [&](int fraction, int exponents, int bias, bool has_inf) {
    const int mag = int(bits & ((1u << (fraction + exponents)) - 1));
    const bool negative = (bits >> (fraction + exponents)) & 1;
    const int exponent = mag >> fraction, part = mag & ((1 << fraction) - 1);
    double value = std::ldexp(double(part + (exponent ? 1 << fraction : 0)),
                              std::max(exponent, 1) - bias - fraction);
    if (exponent == (1 << exponents) - 1 && has_inf) {
      value = part ? std::nan("") : std::numeric_limits<double>::infinity();
    }
    if (!has_inf && mag == 0x7F) value = std::nan("");
    return float(negative ? -value : value);
  };
  float value;
  switch (format) {
    case Format::SEN169_FP16:
      return dl16_decode(uint16_t(bits), numerics);
    case Format::IEEE_FP16:
      return small(10, 5, 15, true);
    case Format::BFLOAT16:
      return small(7, 8, 127, true);
    case Format::SEN143_FP8:
      return small(3, 4, 7, false);
    case Format::SEN152_FP8:
      return small(2, 5, 15, true);
    case Format::SENINT8:
      return float(int8_t(bits));
    default: {
      const auto word = uint32_t(bits);
      std::memcpy(&value, &word, 4);
      return value;
    }
  }
}

inline bool is_float(Format format) {
  Register type;
  return register_of(format, &type) && type == Register::F32;
}
inline int64_t integer_of(Format format, uint64_t bits) {
  switch (format) {
    case Format::SENINT8:
      return int8_t(bits);
    case Format::SENUINT8:
      return uint8_t(bits);
    case Format::SENINT16:
      return int16_t(bits);
    case Format::IEEE_INT32:
      return int32_t(bits);
    default:
      return int64_t(bits);
  }
}
// The one NaN that a computed NaN becomes.
inline uint64_t nan_of(Format format) {
  switch (format) {
    case Format::SEN169_FP16:
      return 0x7FFF;
    case Format::IEEE_FP16:
      return 0x7E00;
    case Format::BFLOAT16:
      return 0x7FC0;
    case Format::IEEE_FP32:
      return 0x7FC00000;
    default:
      return 0x7F;
  }
}
// The code that a computed value becomes: rounded to nearest, ties to even (DLFloat16: as the
// numerics say); 1-4-3 saturates.
inline uint64_t encoded_float(Format format, float value, const Numerics& numerics) {
  uint64_t bits = 0;
  if (std::isnan(value)) return nan_of(format);
  if (format == Format::IEEE_FP32) {
    std::memcpy(&bits, &value, 4);
  } else if (format == Format::SEN169_FP16) {
    bits = dl16_encode(value, numerics);
  } else if (format_bytes(format) == 2) {
    encode(HostType::F32, format, &value, &bits, 1, numerics);
  } else {  // fp8: the nearest of all codes
    const uint64_t sign = std::signbit(value) ? 0x80 : 0;
    const uint64_t largest = format == Format::SEN143_FP8 ? 0x7E : 0x7B;
    const uint64_t over = format == Format::SEN143_FP8 ? 0x7E : 0x7C;
    const double size = std::fabs(double(value));
    const double top = value_of(format, largest), below = value_of(format, largest - 1);
    const double half = top + (top - below) / 2;
    if (size > half || (size == half && (largest & 1))) return sign | over;
    uint64_t best = 0;
    for (uint64_t c = 1; c <= largest; ++c) {
      const double now = std::fabs(size - value_of(format, c));
      const double then = std::fabs(size - value_of(format, best));
      if (now < then || (now == then && c % 2 == 0)) best = c;
    }
    return sign | best;
  }
  return bits;
}

inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (const Isa isa : {Isa::Portable, Isa::AVX2, Isa::AVX512}) {
    if (int(isa) <= int(best_isa())) all.push_back(isa);
  }
  return all;
}

}  // namespace tiles
