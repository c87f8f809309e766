// Matrix products for any processor: vectors of four floats, a product and an addition each.
//
// Where the product is exact this is what the fused operations of the other files give.
#include <bit>
#include <cstring>

#include "machine/formats_internal.h"
#include "machine/kernels/matmul_kernels.h"
#include "machine/kernels/matmul_tile.h"

namespace openspyre::machine::portable {
namespace {

using namespace openspyre::machine::detail;

typedef float Vec __attribute__((vector_size(16)));
typedef int32_t VecInt __attribute__((vector_size(16)));
typedef uint32_t VecBits __attribute__((vector_size(16)));
constexpr int kLanes = 4, kRows = 4;
constexpr int64_t kPanelWidth = 8;

struct Seen;

Vec load(const void* at) {
  Vec value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
void store(void* at, Vec value) { std::memcpy(at, &value, sizeof(value)); }
Vec splat(float x) { return Vec{x, x, x, x}; }
Vec separate(Vec a, Vec b, Vec c) { return a * b + c; }  // -ffp-contract=off
Vec fused(Vec a, Vec b, Vec c) { return a * b + c; }
Vec canonical(Vec x) {
  const VecBits nan = {kFloatNan, kFloatNan, kFloatNan, kFloatNan};
  const VecBits bad = VecBits(x != x);
  return Vec((VecBits(x) & ~bad) | (nan & bad));
}
void add_integers(std::byte* out, Vec value, bool start) {
  VecBits sum = VecBits(__builtin_convertvector(value, VecInt));
  if (!start) {
    VecBits old;
    std::memcpy(&old, out, sizeof(old));
    sum += old;
  }
  std::memcpy(out, &sum, sizeof(sum));
}

float decode_fp8(uint8_t code, bool e4m3) {
  const uint32_t mag = code & 0x7F, sign = uint32_t(code & 0x80) << 24;
  const uint32_t fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  if (mag >> fraction == 0) {  // subnormal: the integer times its unit, both exact
    const float value = float(mag) * (e4m3 ? 0x1p-9f : 0x1p-16f);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
  }
  if (e4m3 ? mag == 0x7F : mag > 0x7C) return std::bit_cast<float>(kFloatNan);
  if (!e4m3 && mag == 0x7C) return std::bit_cast<float>(kFloatInf | sign);
  return std::bit_cast<float>(sign | ((mag << (23 - fraction)) + ((127 - bias) << 23)));
}

template <Format format>
float decode(const std::byte* src, bool merged_is_nan) {
  if constexpr (kBytes<format> == 1) {
    const auto code = uint8_t(*src);
    if constexpr (format == Format::SENINT8) return float(int8_t(code));
    return decode_fp8(code, format == Format::SEN143_FP8);
  } else if constexpr (kBytes<format> == 2) {
    uint16_t code;
    std::memcpy(&code, src, 2);
    uint32_t bits;
    if constexpr (format == Format::SEN169_FP16) bits = dl16_to_float(code, merged_is_nan);
    if constexpr (format == Format::IEEE_FP16) bits = half_to_float(code);
    if constexpr (format == Format::BFLOAT16) bits = bf16_to_float(code);
    return std::bit_cast<float>(bits);
  } else {
    float value;
    std::memcpy(&value, src, 4);
    return value;
  }
}

template <Format format, bool exact>
constexpr int64_t kGroup = 16;
template <Format format, bool exact>
void decode_group(const std::byte* src, float* dst, bool merged_is_nan, Seen&) {
  for (int i = 0; i < 16; ++i) dst[i] = decode<format>(src + i * kBytes<format>, merged_is_nan);
}
bool any_merged(Vec) { return false; }  // decode_group is always exact here

#include "machine/kernels/matmul_body.h"

}  // namespace

void matmul(const ComputeTask& task) { run_matmul(task, blocks); }

}  // namespace openspyre::machine::portable
