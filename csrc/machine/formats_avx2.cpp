// The conversion kernels for processors with AVX2 and F16C (16 16-bit lanes a step).
//
// Compiled into every x86-64 build through target attributes; called only after the run-time
// check in formats.cpp. Bit-identical to the scalar rules in formats_internal.h, which also do
// the last elements that fill no vector. Magnitudes are below 0x8000, so signed compares serve.
#include "machine/formats_internal.h"

#ifdef OPENSPYRE_X86
#include <immintrin.h>

#define OPENSPYRE_TARGET __attribute__((target("avx2,f16c")))
#define OPENSPYRE_STEP OPENSPYRE_TARGET __attribute__((always_inline)) static inline

namespace openspyre::machine::detail {
namespace {

OPENSPYRE_STEP __m256i word(uint16_t x) { return _mm256_set1_epi16(short(x)); }
OPENSPYRE_STEP __m256i dword(uint32_t x) { return _mm256_set1_epi32(int(x)); }
OPENSPYRE_STEP __m256i load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
OPENSPYRE_STEP void store(void* at, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), x);
}
OPENSPYRE_STEP __m256i low_half(__m256i x) {
  return _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
}
OPENSPYRE_STEP __m256i high_half(__m256i x) {
  return _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
}
OPENSPYRE_STEP __m256i pair(__m128i low, __m128i high) { return _mm256_set_m128i(high, low); }
// Two vectors of 32-bit lanes below 65536 -> one of 16-bit lanes, in order.
OPENSPYRE_STEP __m256i pack(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
}
OPENSPYRE_STEP bool any(__m256i mask) { return !_mm256_testz_si256(mask, mask); }
OPENSPYRE_STEP __m256i choose(__m256i otherwise, __m256i mask, __m256i x) {
  return _mm256_blendv_epi8(otherwise, x, mask);
}

OPENSPYRE_STEP __m256i subnormal_codes(__m256i mag) {  // 8 magnitudes below 0x400, zero included
  const __m256i bits = _mm256_castps_si256(_mm256_cvtepi32_ps(mag));
  const __m256i code = _mm256_sub_epi32(_mm256_srli_epi32(bits, 14), dword(kSubnormalShift));
  return _mm256_max_epi32(code, _mm256_setzero_si256());
}

template <TieRule tie>
struct HalfToDl16 {
  OPENSPYRE_STEP __m256i step(__m256i x, bool) {
    const __m256i mag = _mm256_and_si256(x, word(kMagnitude16));
    __m256i code;
    if constexpr (tie == TieRule::TowardPositive) {
      code = _mm256_sub_epi16(_mm256_add_epi16(mag, word(kHalfToDl + 1)), _mm256_srli_epi16(x, 15));
    } else if constexpr (tie == TieRule::AwayFromZero) {
      code = _mm256_add_epi16(mag, word(kHalfToDl + 1));
    } else if constexpr (tie == TieRule::TowardZero) {
      code = _mm256_add_epi16(mag, word(kHalfToDl));
    } else {
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(mag, 1), word(1));
      code = tie == TieRule::ToEven
                 ? _mm256_add_epi16(_mm256_add_epi16(mag, word(kHalfToDl)), odd)
                 : _mm256_sub_epi16(_mm256_add_epi16(mag, word(kHalfToDl + 1)), odd);
    }
    code = _mm256_min_epu16(_mm256_srli_epi16(code, 1), word(kDlHalfMax));
    code = choose(code, _mm256_cmpgt_epi16(mag, word(kHalfInf - 1)), word(kDlMerged));
    const __m256i zero = _mm256_cmpeq_epi16(mag, _mm256_setzero_si256());
    code = _mm256_andnot_si256(zero, code);
    const __m256i small = _mm256_cmpgt_epi16(word(kHalfNormal), mag);
    const __m256i subnormal = _mm256_andnot_si256(zero, small);
    if (__builtin_expect(any(subnormal), 0)) {
      // Lanes that are no subnormals are not looked at, but must not disturb the packing.
      const __m256i only = _mm256_and_si256(mag, subnormal);
      code = choose(code, subnormal,
                    pack(subnormal_codes(low_half(only)), subnormal_codes(high_half(only))));
    }
    const __m256i nan = _mm256_cmpgt_epi16(mag, word(kHalfInf));
    return _mm256_or_si256(code, _mm256_andnot_si256(nan, _mm256_and_si256(x, word(kSign16))));
  }
  static uint16_t scalar(uint16_t x, bool) { return half_to_dl16(x, tie); }
};

struct Bf16ToDl16 {
  OPENSPYRE_STEP __m256i step(__m256i x, bool) {
    const __m256i mag = _mm256_and_si256(x, word(kMagnitude16));
    __m256i code = _mm256_min_epu16(_mm256_subs_epu16(mag, word(kBf16FromDl)), word(0x2000));
    code = _mm256_min_epu16(_mm256_slli_epi16(code, 2), word(kDlLargest));
    code = choose(code, _mm256_cmpgt_epi16(mag, word(kBf16Inf - 1)), word(kDlMerged));
    const __m256i nan = _mm256_cmpgt_epi16(mag, word(kBf16Inf));
    return _mm256_or_si256(code, _mm256_andnot_si256(nan, _mm256_and_si256(x, word(kSign16))));
  }
  static uint16_t scalar(uint16_t x, bool) { return bf16_to_dl16(x); }
};

OPENSPYRE_STEP __m256i float_bits(__m256i code, bool merged_is_nan) {  // 8 codes in 32-bit lanes
  const __m256i mag = _mm256_and_si256(code, dword(kMagnitude16));
  const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, dword(kSign16)), 16);
  const __m256i value = _mm256_add_epi32(_mm256_slli_epi32(mag, 14), dword(kFloatFromDl));
  const __m256i zero = _mm256_cmpeq_epi32(mag, _mm256_setzero_si256());
  const __m256i finite = _mm256_or_si256(sign, _mm256_andnot_si256(zero, value));
  const __m256i merged = merged_is_nan ? dword(kFloatNan) : _mm256_or_si256(sign, dword(kFloatInf));
  return choose(finite, _mm256_cmpeq_epi32(mag, dword(kDlMerged)), merged);
}

OPENSPYRE_STEP __m128i half_bits(__m256i float_bits) {
  return _mm256_cvtps_ph(_mm256_castsi256_ps(float_bits),
                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

struct Dl16ToHalf {
  OPENSPYRE_STEP __m256i step(__m256i x, bool merged_is_nan) {
    const __m256i mag = _mm256_and_si256(x, word(kMagnitude16));
    const __m256i sign = _mm256_and_si256(x, word(kSign16));
    __m256i half = _mm256_sub_epi16(_mm256_add_epi16(mag, mag), word(kHalfToDl));
    half = choose(half, _mm256_cmpgt_epi16(mag, word(kDlHalfInf - 1)), word(kHalfInf));
    const __m256i zero = _mm256_cmpeq_epi16(mag, _mm256_setzero_si256());
    half = _mm256_or_si256(sign, _mm256_andnot_si256(zero, half));
    const __m256i small = _mm256_andnot_si256(zero, _mm256_cmpgt_epi16(word(kDlHalfNormal), mag));
    if (__builtin_expect(any(small), 0)) {  // float16 subnormals: let the hardware round
      half = choose(half, small,
                    pair(half_bits(float_bits(low_half(x), false)),
                         half_bits(float_bits(high_half(x), false))));
    }
    if (merged_is_nan) {
      half = choose(half, _mm256_cmpeq_epi16(mag, word(kDlMerged)), word(kHalfNan));
    }
    return half;
  }
  static uint16_t scalar(uint16_t x, bool merged_is_nan) { return dl16_to_half(x, merged_is_nan); }
};

struct Dl16ToBf16 {
  OPENSPYRE_STEP __m256i step(__m256i x, bool merged_is_nan) {
    const __m256i mag = _mm256_and_si256(x, word(kMagnitude16));
    const __m256i sign = _mm256_and_si256(x, word(kSign16));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi16(mag, 2), word(1));
    __m256i bf16 = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(mag, word(1)), odd), 2);
    bf16 = _mm256_add_epi16(bf16, word(kBf16FromDl));
    const __m256i zero = _mm256_cmpeq_epi16(mag, _mm256_setzero_si256());
    bf16 = _mm256_or_si256(sign, _mm256_andnot_si256(zero, bf16));
    const __m256i merged = merged_is_nan ? word(kBf16Nan) : _mm256_or_si256(sign, word(kBf16Inf));
    return choose(bf16, _mm256_cmpeq_epi16(mag, word(kDlMerged)), merged);
  }
  static uint16_t scalar(uint16_t x, bool merged_is_nan) { return dl16_to_bf16(x, merged_is_nan); }
};

// Unaligned scalar access for the last elements.
template <class T>
inline T get(const void* base, size_t i) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(base) + i * sizeof(T), sizeof(T));
  return value;
}
template <class T>
inline void put(void* base, size_t i, T value) {
  __builtin_memcpy(static_cast<char*>(base) + i * sizeof(T), &value, sizeof(T));
}

template <class Op>
OPENSPYRE_TARGET void words(const void* src, void* dst, size_t n, bool setting) {
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(out + 2 * i, Op::step(load(in + 2 * i), setting));
  for (; i < n; ++i) put<uint16_t>(dst, i, Op::scalar(get<uint16_t>(src, i), setting));
}

template <TieRule tie>
struct FloatToDl16 {
  OPENSPYRE_STEP __m256i lanes(__m256i x) {
    const __m256i mag = _mm256_and_si256(x, dword(0x7FFFFFFFu));
    const __m256i wide = _mm256_sub_epi32(mag, dword(kFloatFromDl));
    __m256i code;
    if constexpr (tie == TieRule::TowardPositive) {
      code = _mm256_sub_epi32(_mm256_add_epi32(wide, dword(0x2000)), _mm256_srli_epi32(x, 31));
    } else if constexpr (tie == TieRule::AwayFromZero) {
      code = _mm256_add_epi32(wide, dword(0x2000));
    } else if constexpr (tie == TieRule::TowardZero) {
      code = _mm256_add_epi32(wide, dword(0x1FFF));
    } else {
      const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(wide, 14), dword(1));
      code = tie == TieRule::ToEven ? _mm256_add_epi32(_mm256_add_epi32(wide, dword(0x1FFF)), odd)
                                    : _mm256_sub_epi32(_mm256_add_epi32(wide, dword(0x2000)), odd);
    }
    code = _mm256_max_epi32(_mm256_srai_epi32(code, 14), _mm256_setzero_si256());
    code = _mm256_min_epi32(code, dword(kDlMerged));
    const __m256i nan = _mm256_cmpgt_epi32(mag, dword(kFloatInf));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(x, 16), dword(kSign16));
    return _mm256_or_si256(code, _mm256_andnot_si256(nan, sign));
  }
  OPENSPYRE_STEP __m256i step(__m256i low, __m256i high) { return pack(lanes(low), lanes(high)); }
  static uint16_t scalar(uint32_t x) { return float_to_dl16(x, tie); }
};

struct FloatToHalf {
  OPENSPYRE_STEP __m256i step(__m256i low, __m256i high) {
    return pair(half_bits(low), half_bits(high));
  }
  static uint16_t scalar(uint32_t x) { return float_to_half(x); }
};

struct FloatToBf16 {
  OPENSPYRE_STEP __m256i lanes(__m256i x) {
    const __m256i top = _mm256_srli_epi32(x, 16);
    const __m256i odd = _mm256_and_si256(top, dword(1));
    const __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(x, dword(0x7FFF)), odd), 16);
    const __m256i nan =
        _mm256_cmpgt_epi32(_mm256_and_si256(x, dword(0x7FFFFFFFu)), dword(kFloatInf));
    return choose(rounded, nan, _mm256_or_si256(top, dword(0x40)));
  }
  OPENSPYRE_STEP __m256i step(__m256i low, __m256i high) { return pack(lanes(low), lanes(high)); }
  static uint16_t scalar(uint32_t x) { return float_to_bf16(x); }
};

template <class Op>
OPENSPYRE_TARGET void narrow(const void* src, void* dst, size_t n) {  // 32-bit -> 16-bit
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    store(out + 2 * i, Op::step(load(in + 4 * i), load(in + 4 * i + 32)));
  }
  for (; i < n; ++i) put<uint16_t>(dst, i, Op::scalar(get<uint32_t>(src, i)));
}

struct Dl16ToFloat {
  OPENSPYRE_STEP __m256i step(__m128i x, bool merged_is_nan) {
    return float_bits(_mm256_cvtepu16_epi32(x), merged_is_nan);
  }
  static uint32_t scalar(uint16_t x, bool merged_is_nan) { return dl16_to_float(x, merged_is_nan); }
};

struct HalfToFloat {
  OPENSPYRE_STEP __m256i step(__m128i x, bool) { return _mm256_castps_si256(_mm256_cvtph_ps(x)); }
  static uint32_t scalar(uint16_t x, bool) { return half_to_float(x); }
};

struct Bf16ToFloat {
  OPENSPYRE_STEP __m256i step(__m128i x, bool) {
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16);
  }
  static uint32_t scalar(uint16_t x, bool) { return bf16_to_float(x); }
};

template <class Op>
OPENSPYRE_TARGET void widen(const void* src, void* dst, size_t n, bool setting) {
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + 2 * i));
    store(out + 4 * i, Op::step(x, setting));
  }
  for (; i < n; ++i) put<uint32_t>(dst, i, Op::scalar(get<uint16_t>(src, i), setting));
}

OPENSPYRE_TARGET void bool_to_code(const void* src, void* dst, size_t n, uint16_t one) {
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256i zero = _mm256_cmpeq_epi16(_mm256_cvtepu8_epi16(x), _mm256_setzero_si256());
    store(out + 2 * i, _mm256_andnot_si256(zero, word(one)));
  }
  for (; i < n; ++i) put<uint16_t>(dst, i, get<uint8_t>(src, i) ? one : uint16_t(0));
}

OPENSPYRE_TARGET void code_to_bool(const void* src, void* dst, size_t n) {
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m256i low = _mm256_cmpeq_epi16(_mm256_and_si256(load(in + 2 * i), word(kMagnitude16)),
                                           _mm256_setzero_si256());
    const __m256i high = _mm256_cmpeq_epi16(
        _mm256_and_si256(load(in + 2 * i + 32), word(kMagnitude16)), _mm256_setzero_si256());
    const __m256i zero = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
    store(out + i, _mm256_andnot_si256(zero, _mm256_set1_epi8(1)));
  }
  for (; i < n; ++i) {
    put<uint8_t>(dst, i, uint8_t((get<uint16_t>(src, i) & kMagnitude16) != 0));
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

const Kernels kAvx2Kernels = {
    half_to_dl16_any,    bf16_to_dl16_all,   float_to_dl16_any,   words<Dl16ToHalf>,
    words<Dl16ToBf16>,   widen<Dl16ToFloat>, narrow<FloatToHalf>, half_to_float_all,
    narrow<FloatToBf16>, bf16_to_float_all,  bool_to_code,        code_to_bool,
};

}  // namespace openspyre::machine::detail
#endif
