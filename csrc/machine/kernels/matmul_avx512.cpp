// Matrix products for processors with AVX-512 F, BW, VL and DQ: vectors of sixteen floats.
#include "machine/formats_internal.h"
#include "machine/kernels/matmul_kernels.h"
#include "machine/kernels/matmul_tile.h"

#ifdef OPENSPYRE_X86
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 header initialises its don't-care operands with themselves, and warns.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstring>

namespace openspyre::machine::avx512 {
namespace {

using namespace openspyre::machine::detail;

using Vec = __m512;
constexpr int kLanes = 16, kRows = 6, kSums = 20;
constexpr int64_t kPanelWidth = 64;

struct Seen;

#define OPENSPYRE_STEP __attribute__((always_inline)) static inline

OPENSPYRE_STEP Vec load(const void* at) { return _mm512_loadu_ps(at); }
OPENSPYRE_STEP void store(void* at, Vec x) { _mm512_storeu_ps(at, x); }
OPENSPYRE_STEP Vec splat(float x) { return _mm512_set1_ps(x); }
OPENSPYRE_STEP Vec fused(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
OPENSPYRE_STEP Vec separate(Vec a, Vec b, Vec c) { return _mm512_add_ps(_mm512_mul_ps(a, b), c); }
OPENSPYRE_STEP __m512i dword(uint32_t x) { return _mm512_set1_epi32(int(x)); }
OPENSPYRE_STEP Vec canonical(Vec x) {
  return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                            _mm512_castsi512_ps(dword(kFloatNan)));
}
OPENSPYRE_STEP void add_integers(std::byte* out, Vec value, bool start) {
  __m512i sum = _mm512_cvttps_epi32(value);
  if (!start) sum = _mm512_add_epi32(sum, _mm512_loadu_si512(out));
  _mm512_storeu_si512(out, sum);
}

OPENSPYRE_STEP __m128i load16(const std::byte* src) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
}
OPENSPYRE_STEP __m256i load32(const std::byte* src) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
}

// Sixteen DLFloat16 codes in 32-bit lanes, sign-extended -> values; the merged code exactly, or as
// an ordinary number.
template <bool exact>
OPENSPYRE_STEP Vec dl16_values(__m512i codes, bool merged_is_nan) {
  const __m512i field = _mm512_and_si512(_mm512_slli_epi32(codes, 14), dword(0x9FFFC000));
  const __mmask16 nonzero = _mm512_test_epi32_mask(field, dword(0x1FFFC000));
  __m512i bits = _mm512_mask_add_epi32(field, nonzero, field, dword(kFloatFromDl));
  if constexpr (exact) {
    const __m512i mag = _mm512_and_si512(field, dword(0x1FFFC000));
    const __m512i sign = _mm512_and_si512(field, dword(0x80000000));
    const __m512i merged =
        merged_is_nan ? dword(kFloatNan) : _mm512_or_si512(sign, dword(kFloatInf));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(mag, dword(0x1FFFC000)), merged);
  }
  return _mm512_castsi512_ps(bits);
}

// Sixteen fp8 codes -> values, by way of IEEE half: 1-5-2 is its upper byte; 1-4-3 has the same
// fields with a bias 8 lower.
template <Format format>
OPENSPYRE_STEP Vec fp8_values(__m128i bytes) {
  const __m256i codes = _mm256_cvtepu8_epi16(bytes);
  if constexpr (format == Format::SEN152_FP8) return _mm512_cvtph_ps(_mm256_slli_epi16(codes, 8));
  const __m256i mag = _mm256_and_si256(codes, _mm256_set1_epi16(0x7F));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x80)), 8);
  const __m256i nan =
      _mm256_and_si256(_mm256_cmpeq_epi16(mag, _mm256_set1_epi16(0x7F)), _mm256_set1_epi16(0x7E00));
  const __m256i half = _mm256_or_si256(_mm256_or_si256(sign, _mm256_slli_epi16(mag, 7)), nan);
  return _mm512_mul_ps(_mm512_cvtph_ps(half), splat(256.0f));
}

// Thirty-two DLFloat16 codes -> values, the merged code as an ordinary number, in the order that
// unpacking gives: within each eight the first four in `low`, the others in `high`. Seven
// instructions for ten of dl16_values, as the fields move in 16-bit lanes.
OPENSPYRE_STEP void dl16_pair(const std::byte* src, Vec& seen, Vec& low, Vec& high) {
  const __m512i codes = _mm512_loadu_si512(src);
  const __mmask32 nonzero = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x7FFF));
  const __m512i field = _mm512_and_si512(_mm512_srai_epi16(codes, 2), _mm512_set1_epi16(-0x6001));
  const __m512i top =
      _mm512_mask_add_epi16(field, nonzero, field, _mm512_set1_epi16(kFloatFromDl >> 16));
  const __m512i bottom = _mm512_slli_epi16(codes, 14);
  const __m512i signs = _mm512_or_si512(codes, _mm512_set1_epi16(-0x8000));
  seen = _mm512_castsi512_ps(_mm512_max_epu16(_mm512_castps_si512(seen), signs));
  low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(bottom, top));
  high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(bottom, top));
}
// Two vectors of columns: from that order to the columns', and back.
OPENSPYRE_STEP void in_order(Vec& low, Vec& high) {
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512d a = _mm512_castps_pd(low), b = _mm512_castps_pd(high);
  low = _mm512_castpd_ps(_mm512_permutex2var_pd(a, first, b));
  high = _mm512_castpd_ps(_mm512_permutex2var_pd(a, second, b));
}
OPENSPYRE_STEP void as_unpacked(Vec& low, Vec& high) {
  const Vec a = low, b = high;
  low = _mm512_shuffle_f32x4(a, b, 0x88);
  high = _mm512_shuffle_f32x4(a, b, 0xDD);
}

template <Format format, bool exact>
OPENSPYRE_STEP Vec values(const std::byte* src, bool merged_is_nan) {
  if constexpr (format == Format::IEEE_FP32) return load(src);
  if constexpr (format == Format::SENINT8) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(src)));
  }
  if constexpr (kBytes<format> == 1) return fp8_values<format>(load16(src));
  if constexpr (format == Format::IEEE_FP16) return _mm512_cvtph_ps(load32(src));
  if constexpr (format == Format::BFLOAT16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(src)), 16));
  }
  return dl16_values<exact>(_mm512_cvtepi16_epi32(load32(src)), merged_is_nan);
}

// What any_merged asks about the first `count` codes at src: not here, where codes come in pairs of
// vectors.
template <int count>
OPENSPYRE_STEP void note(const std::byte*, Vec&) {
  static_assert(count < 0);
}

template <Format format, bool exact>
constexpr int64_t kGroup = format == Format::SEN169_FP16 && !exact ? 32 : 16;
template <Format format, bool exact>
OPENSPYRE_STEP void decode_group(const std::byte* src, float* dst, bool merged_is_nan, Seen& seen);
OPENSPYRE_STEP bool any_merged(Vec bits) {
  return _mm512_cmpeq_epi16_mask(_mm512_castps_si512(bits), _mm512_set1_epi16(-1)) != 0;
}

#include "machine/kernels/matmul_body.h"

template <Format format, bool exact>
OPENSPYRE_STEP void decode_group(const std::byte* src, float* dst, bool merged_is_nan, Seen& seen) {
  if constexpr (kGroup<format, exact> == 32) {
    Vec low, high;
    dl16_pair(src, seen.bits, low, high);
    in_order(low, high);
    store(dst, low);
    store(dst + 16, high);
  } else {
    store(dst, values<format, exact>(src, merged_is_nan));
  }
}

#include "machine/kernels/matmul_gemv.h"

void product(const MatmulTile& t) { t.m <= kFewRows ? few(t) : blocks(t); }

}  // namespace

void matmul(const ComputeTask& task) { run_matmul(task, product); }

}  // namespace openspyre::machine::avx512
#endif
