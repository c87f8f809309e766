// Matrix products for processors with AVX2, FMA and F16C: vectors of eight floats.
#include "machine/formats_internal.h"
#include "machine/kernels/matmul_kernels.h"
#include "machine/kernels/matmul_tile.h"

#ifdef OPENSPYRE_X86
#include <immintrin.h>

#include <cstring>

namespace openspyre::machine::avx2 {
namespace {

using namespace openspyre::machine::detail;

using Vec = __m256;
constexpr int kLanes = 8, kRows = 6, kSums = 12;
constexpr int64_t kPanelWidth = 16;

struct Seen;

#define OPENSPYRE_STEP __attribute__((always_inline)) static inline

OPENSPYRE_STEP Vec load(const void* at) { return _mm256_loadu_ps(static_cast<const float*>(at)); }
OPENSPYRE_STEP void store(void* at, Vec x) { _mm256_storeu_ps(static_cast<float*>(at), x); }
OPENSPYRE_STEP Vec splat(float x) { return _mm256_set1_ps(x); }
OPENSPYRE_STEP Vec fused(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
OPENSPYRE_STEP Vec separate(Vec a, Vec b, Vec c) { return _mm256_add_ps(_mm256_mul_ps(a, b), c); }
OPENSPYRE_STEP __m256i dword(uint32_t x) { return _mm256_set1_epi32(int(x)); }
OPENSPYRE_STEP Vec canonical(Vec x) {
  return _mm256_blendv_ps(x, _mm256_castsi256_ps(dword(kFloatNan)),
                          _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
OPENSPYRE_STEP void add_integers(std::byte* out, Vec value, bool start) {
  __m256i sum = _mm256_cvttps_epi32(value);
  __m256i* at = reinterpret_cast<__m256i*>(out);
  if (!start) sum = _mm256_add_epi32(sum, _mm256_loadu_si256(at));
  _mm256_storeu_si256(at, sum);
}

OPENSPYRE_STEP __m128i load16(const std::byte* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}
OPENSPYRE_STEP __m128i load8(const std::byte* src) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(src));
}
OPENSPYRE_STEP __m256i load32(const std::byte* src) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
}

// Eight DLFloat16 codes in 32-bit lanes, sign-extended -> float bits; the merged code exactly, or
// as an ordinary number.
template <bool exact>
OPENSPYRE_STEP __m256i dl16_bits(__m256i codes, bool merged_is_nan) {
  const __m256i field = _mm256_and_si256(_mm256_slli_epi32(codes, 14), dword(0x9FFFC000));
  const __m256i mag = _mm256_and_si256(field, dword(0x1FFFC000));
  const __m256i bias = _mm256_sign_epi32(dword(kFloatFromDl), mag);  // none of zero
  __m256i bits = _mm256_add_epi32(field, bias);
  if constexpr (exact) {
    const __m256i sign = _mm256_and_si256(field, dword(0x80000000));
    const __m256i merged =
        merged_is_nan ? dword(kFloatNan) : _mm256_or_si256(sign, dword(kFloatInf));
    bits = _mm256_blendv_epi8(bits, merged, _mm256_cmpeq_epi32(mag, dword(0x1FFFC000)));
  }
  return bits;
}

// Sixteen DLFloat16 codes -> values, the merged code as an ordinary number, in the order that
// unpacking gives: within each eight the first four in `low`, the others in `high`. Eight
// instructions for twelve of dl16_bits, as the fields move in 16-bit lanes.
OPENSPYRE_STEP void dl16_pair(const std::byte* src, Vec& seen, Vec& low, Vec& high) {
  const __m256i codes = load32(src);
  const __m256i mags = _mm256_and_si256(codes, _mm256_set1_epi16(0x7FFF));
  const __m256i field = _mm256_and_si256(_mm256_srai_epi16(codes, 2), _mm256_set1_epi16(-0x6001));
  const __m256i bias = _mm256_sign_epi16(_mm256_set1_epi16(kFloatFromDl >> 16), mags);
  const __m256i top = _mm256_add_epi16(field, bias);
  const __m256i bottom = _mm256_slli_epi16(codes, 14);
  seen = _mm256_castsi256_ps(_mm256_max_epu16(_mm256_castps_si256(seen), mags));
  low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(bottom, top));
  high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(bottom, top));
}
// Two vectors of columns: from that order to the columns', and back.
OPENSPYRE_STEP void in_order(Vec& low, Vec& high) {
  const Vec a = low, b = high;
  low = _mm256_permute2f128_ps(a, b, 0x20);
  high = _mm256_permute2f128_ps(a, b, 0x31);
}
OPENSPYRE_STEP void as_unpacked(Vec& low, Vec& high) { in_order(low, high); }

// Eight fp8 codes, zero-extended to 16 bits -> floats, by way of IEEE half: 1-5-2 is its upper
// byte; 1-4-3 has the same fields with a bias 8 lower.
template <Format format>
OPENSPYRE_STEP Vec fp8_values(__m128i codes) {
  if constexpr (format == Format::SEN152_FP8) return _mm256_cvtph_ps(_mm_slli_epi16(codes, 8));
  const __m128i mag = _mm_and_si128(codes, _mm_set1_epi16(0x7F));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x80)), 8);
  const __m128i nan =
      _mm_and_si128(_mm_cmpeq_epi16(mag, _mm_set1_epi16(0x7F)), _mm_set1_epi16(0x7E00));
  const __m128i half = _mm_or_si128(_mm_or_si128(sign, _mm_slli_epi16(mag, 7)), nan);
  return _mm256_mul_ps(_mm256_cvtph_ps(half), splat(256.0f));
}

template <Format format, bool exact>
OPENSPYRE_STEP Vec values(const std::byte* src, bool merged_is_nan) {
  if constexpr (format == Format::IEEE_FP32) return load(src);
  if constexpr (format == Format::SENINT8) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(src)));
  }
  if constexpr (kBytes<format> == 1) return fp8_values<format>(_mm_cvtepu8_epi16(load8(src)));
  if constexpr (format == Format::IEEE_FP16) return _mm256_cvtph_ps(load16(src));
  if constexpr (format == Format::BFLOAT16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(src)), 16));
  }
  return _mm256_castsi256_ps(dl16_bits<exact>(_mm256_cvtepi16_epi32(load16(src)), merged_is_nan));
}

// What any_merged asks about the first `count` codes at src, 8 or 16.
template <int count>
OPENSPYRE_STEP void note(const std::byte* src, Vec& seen) {
  const __m256i codes = count == 8 ? _mm256_zextsi128_si256(load16(src)) : load32(src);
  const __m256i mags = _mm256_and_si256(codes, _mm256_set1_epi16(0x7FFF));
  seen = _mm256_castsi256_ps(_mm256_max_epu16(_mm256_castps_si256(seen), mags));
}

template <Format format, bool exact>
constexpr int64_t kGroup = 16;
template <Format format, bool exact>
OPENSPYRE_STEP void decode_group(const std::byte* src, float* dst, bool merged_is_nan, Seen& seen);
OPENSPYRE_STEP bool any_merged(Vec seen) {
  const __m256i mags = _mm256_castps_si256(seen);
  return _mm256_movemask_epi8(_mm256_cmpeq_epi16(mags, _mm256_set1_epi16(0x7FFF))) != 0;
}

#include "machine/kernels/matmul_body.h"

template <Format format, bool exact>
OPENSPYRE_STEP void decode_group(const std::byte* src, float* dst, bool merged_is_nan, Seen& seen) {
  Vec low, high;
  if constexpr (format == Format::SEN169_FP16 && !exact) {
    dl16_pair(src, seen.bits, low, high);
    in_order(low, high);
  } else {
    low = values<format, exact>(src, merged_is_nan);
    high = values<format, exact>(src + 8 * kBytes<format>, merged_is_nan);
  }
  store(dst, low);
  store(dst + 8, high);
}

#include "machine/kernels/matmul_gemv.h"

void product(const MatmulTile& t) { t.m <= kFewRows ? few(t) : blocks(t); }

}  // namespace

void matmul(const ComputeTask& task) { run_matmul(task, product); }

}  // namespace openspyre::machine::avx2
#endif
