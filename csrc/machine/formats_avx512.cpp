// The conversion kernels for processors with AVX-512 F, BW and VL (32 16-bit lanes a step).
//
// Compiled into every x86-64 build through target attributes; called only after the run-time
// check in formats.cpp. Bit-identical to the scalar rules in formats_internal.h.
#include "machine/formats_internal.h"

#ifdef OPENSPYRE_X86
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 header initialises its don't-care operands with themselves, and warns.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#define OPENSPYRE_TARGET __attribute__((target("avx2,f16c,avx512f,avx512bw,avx512vl")))
#define OPENSPYRE_STEP OPENSPYRE_TARGET __attribute__((always_inline)) static inline

namespace openspyre::machine::detail {
namespace {

OPENSPYRE_STEP __m512i word(uint16_t x) { return _mm512_set1_epi16(short(x)); }
OPENSPYRE_STEP __m512i dword(uint32_t x) { return _mm512_set1_epi32(int(x)); }
OPENSPYRE_STEP __mmask32 first(size_t n) { return n >= 32 ? ~__mmask32(0) : (1u << n) - 1; }
OPENSPYRE_STEP __mmask16 first16(size_t n) {
  return n >= 16 ? __mmask16(0xFFFF) : __mmask16((1u << n) - 1);
}
OPENSPYRE_STEP __m512i pair(__m256i low, __m256i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}
OPENSPYRE_STEP __m512i low_half(__m512i x) {
  return _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
}
OPENSPYRE_STEP __m512i high_half(__m512i x) {
  return _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1));
}

// 16 magnitudes below 0x400 -> their DLFloat16 magnitudes. The integer is exact in float32.
OPENSPYRE_STEP __m256i subnormal_codes(__m512i mag) {
  const __m512i bits = _mm512_castps_si512(_mm512_cvtepi32_ps(mag));
  return _mm512_cvtepi32_epi16(
      _mm512_sub_epi32(_mm512_srli_epi32(bits, 14), dword(kSubnormalShift)));
}

template <TieRule tie>
struct HalfToDl16 {
  OPENSPYRE_STEP __m512i step(__m512i x, bool) {
    const __m512i mag = _mm512_and_si512(x, word(kMagnitude16));
    __m512i code;
    if constexpr (tie == TieRule::TowardPositive) {
      code = _mm512_sub_epi16(_mm512_add_epi16(mag, word(kHalfToDl + 1)), _mm512_srli_epi16(x, 15));
    } else if constexpr (tie == TieRule::AwayFromZero) {
      code = _mm512_add_epi16(mag, word(kHalfToDl + 1));
    } else if constexpr (tie == TieRule::TowardZero) {
      code = _mm512_add_epi16(mag, word(kHalfToDl));
    } else {
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(mag, 1), word(1));
      code = tie == TieRule::ToEven
                 ? _mm512_add_epi16(_mm512_add_epi16(mag, word(kHalfToDl)), odd)
                 : _mm512_sub_epi16(_mm512_add_epi16(mag, word(kHalfToDl + 1)), odd);
    }
    code = _mm512_min_epu16(_mm512_srli_epi16(code, 1), word(kDlHalfMax));
    code =
        _mm512_mask_mov_epi16(code, _mm512_cmpge_epu16_mask(mag, word(kHalfInf)), word(kDlMerged));
    const __mmask32 nonzero = _mm512_test_epi16_mask(mag, mag);
    code = _mm512_maskz_mov_epi16(nonzero, code);
    const __mmask32 subnormal = _mm512_mask_cmplt_epu16_mask(nonzero, mag, word(kHalfNormal));
    if (__builtin_expect(subnormal != 0, 0)) {
      code = _mm512_mask_mov_epi16(
          code, subnormal, pair(subnormal_codes(low_half(mag)), subnormal_codes(high_half(mag))));
    }
    const __m512i sign = _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(mag, word(kHalfInf)),
                                                _mm512_and_si512(x, word(kSign16)));
    return _mm512_or_si512(code, sign);
  }
};

struct Bf16ToDl16 {
  OPENSPYRE_STEP __m512i step(__m512i x, bool) {
    const __m512i mag = _mm512_and_si512(x, word(kMagnitude16));
    // 0x2000 << 2 lies above every finite code and still fits 16 bits.
    __m512i code = _mm512_min_epu16(_mm512_subs_epu16(mag, word(kBf16FromDl)), word(0x2000));
    code = _mm512_min_epu16(_mm512_slli_epi16(code, 2), word(kDlLargest));
    code =
        _mm512_mask_mov_epi16(code, _mm512_cmpge_epu16_mask(mag, word(kBf16Inf)), word(kDlMerged));
    const __m512i sign = _mm512_maskz_mov_epi16(_mm512_cmple_epu16_mask(mag, word(kBf16Inf)),
                                                _mm512_and_si512(x, word(kSign16)));
    return _mm512_or_si512(code, sign);
  }
};

OPENSPYRE_STEP __m512i float_bits(__m512i code, bool merged_is_nan) {  // 16 codes in 32-bit lanes
  const __m512i mag = _mm512_and_si512(code, dword(kMagnitude16));
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(code, dword(kSign16)), 16);
  const __m512i value =
      _mm512_or_si512(sign, _mm512_add_epi32(_mm512_slli_epi32(mag, 14), dword(kFloatFromDl)));
  const __m512i merged = merged_is_nan ? dword(kFloatNan) : _mm512_or_si512(sign, dword(kFloatInf));
  const __m512i with_zero = _mm512_mask_mov_epi32(sign, _mm512_test_epi32_mask(mag, mag), value);
  return _mm512_mask_mov_epi32(with_zero, _mm512_cmpeq_epi32_mask(mag, dword(kDlMerged)), merged);
}

OPENSPYRE_STEP __m256i half_bits(__m512i float_bits) {
  return _mm512_cvtps_ph(_mm512_castsi512_ps(float_bits),
                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

struct Dl16ToHalf {
  OPENSPYRE_STEP __m512i step(__m512i x, bool merged_is_nan) {
    const __m512i mag = _mm512_and_si512(x, word(kMagnitude16));
    const __m512i sign = _mm512_and_si512(x, word(kSign16));
    __m512i half = _mm512_sub_epi16(_mm512_add_epi16(mag, mag), word(kHalfToDl));
    half =
        _mm512_mask_mov_epi16(half, _mm512_cmpge_epu16_mask(mag, word(kDlHalfInf)), word(kHalfInf));
    const __mmask32 nonzero = _mm512_test_epi16_mask(mag, mag);
    half = _mm512_or_si512(_mm512_maskz_mov_epi16(nonzero, half), sign);
    const __mmask32 small = _mm512_mask_cmplt_epu16_mask(nonzero, mag, word(kDlHalfNormal));
    if (__builtin_expect(small != 0, 0)) {  // float16 subnormals: let the hardware round
      half = _mm512_mask_mov_epi16(half, small,
                                   pair(half_bits(float_bits(low_half(x), false)),
                                        half_bits(float_bits(high_half(x), false))));
    }
    if (merged_is_nan) {
      half = _mm512_mask_mov_epi16(half, _mm512_cmpeq_epi16_mask(mag, word(kDlMerged)),
                                   word(kHalfNan));
    }
    return half;
  }
};

struct Dl16ToBf16 {
  OPENSPYRE_STEP __m512i step(__m512i x, bool merged_is_nan) {
    const __m512i mag = _mm512_and_si512(x, word(kMagnitude16));
    const __m512i sign = _mm512_and_si512(x, word(kSign16));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(mag, 2), word(1));
    __m512i bf16 = _mm512_srli_epi16(_mm512_add_epi16(_mm512_add_epi16(mag, word(1)), odd), 2);
    bf16 = _mm512_add_epi16(bf16, word(kBf16FromDl));
    bf16 = _mm512_maskz_mov_epi16(_mm512_test_epi16_mask(mag, mag), bf16);
    bf16 = _mm512_or_si512(bf16, sign);
    const __m512i merged = merged_is_nan ? word(kBf16Nan) : _mm512_or_si512(sign, word(kBf16Inf));
    return _mm512_mask_mov_epi16(bf16, _mm512_cmpeq_epi16_mask(mag, word(kDlMerged)), merged);
  }
};

template <class Op>
OPENSPYRE_TARGET void words(const void* src, void* dst, size_t n, bool setting) {
  const uint16_t* in = static_cast<const uint16_t*>(src);
  uint16_t* out = static_cast<uint16_t*>(dst);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    _mm512_storeu_si512(out + i, Op::step(_mm512_loadu_si512(in + i), setting));
  }
  if (i < n) {
    const __mmask32 rest = first(n - i);
    _mm512_mask_storeu_epi16(out + i, rest,
                             Op::step(_mm512_maskz_loadu_epi16(rest, in + i), setting));
  }
}

template <TieRule tie>
struct FloatToDl16 {
  OPENSPYRE_STEP __m256i step(__m512i x) {
    const __m512i mag = _mm512_and_si512(x, dword(0x7FFFFFFFu));
    const __m512i wide = _mm512_sub_epi32(mag, dword(kFloatFromDl));
    __m512i code;
    if constexpr (tie == TieRule::TowardPositive) {
      code = _mm512_sub_epi32(_mm512_add_epi32(wide, dword(0x2000)), _mm512_srli_epi32(x, 31));
    } else if constexpr (tie == TieRule::AwayFromZero) {
      code = _mm512_add_epi32(wide, dword(0x2000));
    } else if constexpr (tie == TieRule::TowardZero) {
      code = _mm512_add_epi32(wide, dword(0x1FFF));
    } else {
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(wide, 14), dword(1));
      code = tie == TieRule::ToEven ? _mm512_add_epi32(_mm512_add_epi32(wide, dword(0x1FFF)), odd)
                                    : _mm512_sub_epi32(_mm512_add_epi32(wide, dword(0x2000)), odd);
    }
    code = _mm512_max_epi32(_mm512_srai_epi32(code, 14), _mm512_setzero_si512());
    code = _mm512_min_epi32(code, dword(kDlMerged));
    const __m512i sign = _mm512_maskz_and_epi32(_mm512_cmple_epu32_mask(mag, dword(kFloatInf)),
                                                _mm512_srli_epi32(x, 16), dword(kSign16));
    return _mm512_cvtepi32_epi16(_mm512_or_si512(code, sign));
  }
};

struct FloatToHalf {
  OPENSPYRE_STEP __m256i step(__m512i x) { return half_bits(x); }
};

struct FloatToBf16 {
  OPENSPYRE_STEP __m256i step(__m512i x) {
    const __m512i top = _mm512_srli_epi32(x, 16);
    const __m512i odd = _mm512_and_si512(top, dword(1));
    const __m512i rounded =
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(x, dword(0x7FFF)), odd), 16);
    const __mmask16 nan =
        _mm512_cmpgt_epu32_mask(_mm512_and_si512(x, dword(0x7FFFFFFFu)), dword(kFloatInf));
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, top, dword(0x40)));
  }
};

template <class Op>
OPENSPYRE_TARGET void narrow(const void* src, void* dst, size_t n) {  // 32-bit -> 16-bit
  const uint32_t* in = static_cast<const uint32_t*>(src);
  uint16_t* out = static_cast<uint16_t*>(dst);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i low = Op::step(_mm512_loadu_si512(in + i));
    const __m256i high = Op::step(_mm512_loadu_si512(in + i + 16));
    _mm512_storeu_si512(out + i, pair(low, high));
  }
  for (; i < n; i += 16) {
    const __mmask16 rest = first16(n - i);
    _mm256_mask_storeu_epi16(out + i, rest, Op::step(_mm512_maskz_loadu_epi32(rest, in + i)));
  }
}

struct Dl16ToFloat {
  OPENSPYRE_STEP __m512i step(__m256i x, bool merged_is_nan) {
    return float_bits(_mm512_cvtepu16_epi32(x), merged_is_nan);
  }
};

struct HalfToFloat {
  OPENSPYRE_STEP __m512i step(__m256i x, bool) { return _mm512_castps_si512(_mm512_cvtph_ps(x)); }
};

struct Bf16ToFloat {
  OPENSPYRE_STEP __m512i step(__m256i x, bool) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
  }
};

template <class Op>
OPENSPYRE_TARGET void widen(const void* src, void* dst, size_t n, bool setting) {
  const uint16_t* in = static_cast<const uint16_t*>(src);
  uint32_t* out = static_cast<uint32_t*>(dst);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    _mm512_storeu_si512(out + i, Op::step(x, setting));
  }
  if (i < n) {
    const __mmask16 rest = first16(n - i);
    _mm512_mask_storeu_epi32(out + i, rest,
                             Op::step(_mm256_maskz_loadu_epi16(rest, in + i), setting));
  }
}

OPENSPYRE_TARGET void bool_to_code(const void* src, void* dst, size_t n, uint16_t one) {
  const uint8_t* in = static_cast<const uint8_t*>(src);
  uint16_t* out = static_cast<uint16_t*>(dst);
  for (size_t i = 0; i < n; i += 32) {
    const __mmask32 rest = first(n - i);
    const __m256i x = _mm256_maskz_loadu_epi8(rest, in + i);
    const __m512i code = _mm512_maskz_mov_epi16(_mm256_test_epi8_mask(x, x), word(one));
    _mm512_mask_storeu_epi16(out + i, rest, code);
  }
}

OPENSPYRE_TARGET void code_to_bool(const void* src, void* dst, size_t n) {
  const uint16_t* in = static_cast<const uint16_t*>(src);
  uint8_t* out = static_cast<uint8_t*>(dst);
  for (size_t i = 0; i < n; i += 32) {
    const __mmask32 rest = first(n - i);
    const __m512i x = _mm512_maskz_loadu_epi16(rest, in + i);
    const __m256i yes = _mm256_maskz_set1_epi8(_mm512_test_epi16_mask(x, word(kMagnitude16)), 1);
    _mm256_mask_storeu_epi8(out + i, rest, yes);
  }
}

template <TieRule tie>
void half_to_dl16_all(const void* src, void* dst, size_t n) {
  words<HalfToDl16<tie>>(src, dst, n, false);
}
template <TieRule tie>
void float_to_dl16_all(const void* src, void* dst, size_t n) {
  narrow<FloatToDl16<tie>>(src, dst, n);
}
void half_to_dl16_any(const void* src, void* dst, size_t n, TieRule tie) {
  OPENSPYRE_FOR_TIE(tie, half_to_dl16_all, src, dst, n)
}
void float_to_dl16_any(const void* src, void* dst, size_t n, TieRule tie) {
  OPENSPYRE_FOR_TIE(tie, float_to_dl16_all, src, dst, n)
}
void bf16_to_dl16_all(const void* src, void* dst, size_t n) {
  words<Bf16ToDl16>(src, dst, n, false);
}
void half_to_float_all(const void* src, void* dst, size_t n) {
  widen<HalfToFloat>(src, dst, n, false);
}
void bf16_to_float_all(const void* src, void* dst, size_t n) {
  widen<Bf16ToFloat>(src, dst, n, false);
}

}  // namespace

const Kernels kAvx512Kernels = {
    half_to_dl16_any,    bf16_to_dl16_all,   float_to_dl16_any,   words<Dl16ToHalf>,
    words<Dl16ToBf16>,   widen<Dl16ToFloat>, narrow<FloatToHalf>, half_to_float_all,
    narrow<FloatToBf16>, bf16_to_float_all,  bool_to_code,        code_to_bool,
};

}  // namespace openspyre::machine::detail
#endif
