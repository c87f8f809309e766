// Codes of the card's formats <-> registers, in vectors. Private to the three sfu_<isa>.cpp.
//
// The bits are those of machine/formats.h and openspyre/formats.py. A NaN is stored as the one NaN
// of its format (docs/program.md section 3). Integers narrower than the register keep their low
// bits; the plain loops over them are vectorised by the compiler.
#pragma once

#include "machine/formats_internal.h"
#include "machine/kernels/sfu_isa.h"
#include "machine/kernels/vector.h"

namespace openspyre::machine {
namespace {

OPENSPYRE_STEP I zero_extend(Codes16 c) { return __builtin_convertvector(c, I); }
OPENSPYRE_STEP Codes16 low_halves(I x) { return __builtin_convertvector(x, Codes16); }

template <class Step>
OPENSPYRE_STEP void decode16(const void* from, void* to, int64_t n, Step step) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Codes16 codes = load<Codes16>(static_cast<const uint16_t*>(from) + i);
    store(static_cast<float*>(to) + i, step(codes));
  }
}
template <class Step>
OPENSPYRE_STEP void encode16(const void* from, void* to, int64_t n, Step step) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const F x = load<F>(static_cast<const float*>(from) + i);
    store(static_cast<uint16_t*>(to) + i, step(x));
  }
}

// --- DLFloat16

template <bool merged_is_nan>
OPENSPYRE_STEP F dl16_value(Codes16 codes) {
  const I code = zero_extend(codes), magnitude = code & detail::kMagnitude16;
  const I value = (magnitude << 14) + int32_t(detail::kFloatFromDl);
  const I merged = splat(int32_t(merged_is_nan ? detail::kFloatNan : detail::kFloatInf));
  const I size = select(magnitude == 0, I{}, select(magnitude == detail::kDlMerged, merged, value));
  return as_float(size | (code & detail::kSign16) << 16);  // a NaN's sign is of no account
}
void decode_dl16(const void* from, void* to, int64_t n, const sfu::Context& context) {
  if (context.merged_is_nan) {
    decode16(from, to, n, [](Codes16 c) { return dl16_value<true>(c); });
  } else {
    decode16(from, to, n, [](Codes16 c) { return dl16_value<false>(c); });
  }
}

template <TieRule tie>
OPENSPYRE_STEP Codes16 dl16_code(F x) {
  const I code = bits(x), magnitude = code & kMagnitude;
  const I wide = magnitude - int32_t(detail::kFloatFromDl);
  I up;  // what is added before the last 14 bits are cut: detail::tie_addend
  if constexpr (tie == TieRule::TowardPositive) {
    up = 0x2000 + (code >> 31);
  } else if constexpr (tie == TieRule::AwayFromZero) {
    up = splat(0x2000);
  } else if constexpr (tie == TieRule::ToEven) {
    up = 0x1FFF + ((wide >> 14) & 1);
  } else if constexpr (tie == TieRule::TowardZero) {
    up = splat(0x1FFF);
  } else {
    up = 0x2000 - ((wide >> 14) & 1);
  }
  I cut = (wide + up) >> 14;
  cut = select(cut < 0, I{}, cut);
  cut = select(cut > int32_t(detail::kDlMerged), splat(int32_t(detail::kDlMerged)), cut);
  const I sign = ((code >> 16) & detail::kSign16) & (magnitude <= int32_t(detail::kFloatInf));
  return low_halves(cut | sign);
}
template <TieRule tie>
void encode_dl16_by(const void* from, void* to, int64_t n) {
  encode16(from, to, n, [](F x) { return dl16_code<tie>(x); });
}
void encode_dl16(const void* from, void* to, int64_t n, const sfu::Context& context){
    OPENSPYRE_FOR_TIE(context.tie, encode_dl16_by, from, to, n)}

// --- IEEE half, bfloat16, float32

OPENSPYRE_STEP F one_nan(F x) {
  return select(x != x, splat(__builtin_nanf("")), x);
}

OPENSPYRE_STEP F half_value(Codes16 codes) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return (F)_mm512_cvtph_ps((__m256i)codes);
#elif OPENSPYRE_VECTOR_BYTES == 32
  return (F)_mm256_cvtph_ps((__m128i)codes);
#else
  const I code = zero_extend(codes), magnitude = code & 0x7FFF;
  const F finite = as_float(magnitude << 13) * 0x1p112f;  // exact, subnormals too
  const I top = (magnitude << 13) | int32_t(detail::kFloatInf);
  return as_float(select(magnitude >= 0x7C00, top, bits(finite)) | (code & 0x8000) << 16);
#endif
}
void decode_half(const void* from, void* to, int64_t n, const sfu::Context&) {
  decode16(from, to, n, [](Codes16 c) { return half_value(c); });
}
void encode_half(const void* from, void* to, int64_t n, const sfu::Context&) {
  encode16(from, to, n, [](F x) {
#if OPENSPYRE_VECTOR_BYTES == 64
    return (Codes16)_mm512_cvtps_ph((__m512)one_nan(x), _MM_FROUND_TO_NEAREST_INT);
#elif OPENSPYRE_VECTOR_BYTES == 32
    return (Codes16)_mm256_cvtps_ph((__m256)one_nan(x), _MM_FROUND_TO_NEAREST_INT);
#else
    const I code = bits(one_nan(x));
    Codes16 out;
    for (int i = 0; i < kLanes; ++i) out[i] = detail::float_to_half(uint32_t(code[i]));
    return out;
#endif
  });
}

void decode_bf16(const void* from, void* to, int64_t n, const sfu::Context&) {
  decode16(from, to, n, [](Codes16 c) { return as_float(zero_extend(c) << 16); });
}
void encode_bf16(const void* from, void* to, int64_t n, const sfu::Context&) {
  encode16(from, to, n, [](F x) {
    const U code = (U)bits(x);
    const I rounded = (I)((code + 0x7FFFu + ((code >> 16) & 1u)) >> 16);
    return low_halves(select(x != x, splat(int32_t(detail::kBf16Nan)), rounded));
  });
}

void decode_float(const void* from, void* to, int64_t n, const sfu::Context&) {
  __builtin_memcpy(to, from, size_t(n) * 4);
}
void encode_float(const void* from, void* to, int64_t n, const sfu::Context&) {
  for (int64_t i = 0; i < n; i += kLanes) {
    store(static_cast<float*>(to) + i, one_nan(load<F>(static_cast<const float*>(from) + i)));
  }
}

// --- fp8, by their parameters: float8_e4m3fn and float8_e5m2 of openspyre/formats.py

struct Fp8 {
  int fraction, bias;
  uint32_t largest, overflow;  // magnitude codes; 0x7F is the NaN of both
};
constexpr Fp8 kE4M3 = {3, 7, 0x7E, 0x7E}, kE5M2 = {2, 15, 0x7B, 0x7C};

void decode_e4m3(const void* from, void* to, int64_t n, const sfu::Context&) {
  const uint8_t* in = static_cast<const uint8_t*>(from);
  float* out = static_cast<float*>(to);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = in[i] & 0x7Fu, sign = uint32_t(in[i] & 0x80u) << 24;
    uint32_t code = magnitude << 20;
    float value;
    __builtin_memcpy(&value, &code, 4);
    value *= 0x1p120f;
    __builtin_memcpy(&code, &value, 4);
    code = (magnitude == 0x7F ? detail::kFloatNan : code) | sign;
    __builtin_memcpy(out + i, &code, 4);
  }
}
void decode_e5m2(const void* from, void* to, int64_t n, const sfu::Context&) {
  const uint8_t* in = static_cast<const uint8_t*>(from);
  for (int64_t i = 0; i < n; ++i) {  // the upper half of an IEEE half
    const uint32_t code = detail::half_to_float(uint16_t(in[i] << 8));
    __builtin_memcpy(static_cast<float*>(to) + i, &code, 4);
  }
}

[[gnu::always_inline]] static inline uint8_t fp8_code(uint32_t code, const Fp8& f) {
  const uint32_t magnitude = code & 0x7FFFFFFFu, sign = (code >> 24) & 0x80u;
  if (magnitude > detail::kFloatInf) return 0x7F;
  if (magnitude == detail::kFloatInf) return uint8_t(sign | f.overflow);
  if (magnitude < 0x00800000u) return uint8_t(sign);  // far below half of the smallest code
  const int exponent = int(magnitude >> 23) - 127, least = 1 - f.bias;
  const int field = exponent < least ? least : exponent;
  const int shift = 23 - f.fraction + (field - exponent);
  if (shift > 24) return uint8_t(sign);  // below half of the smallest code
  const uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t rest = significand & ((1u << shift) - 1), middle = 1u << (shift - 1);
  uint32_t whole = significand >> shift;
  whole += rest > middle || (rest == middle && (whole & 1));
  const uint32_t result = (uint32_t(field + f.bias - 1) << f.fraction) + whole;
  return uint8_t(sign | (result > f.largest ? f.overflow : result));
}
void encode_e4m3(const void* from, void* to, int64_t n, const sfu::Context&) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t code;
    __builtin_memcpy(&code, static_cast<const float*>(from) + i, 4);
    static_cast<uint8_t*>(to)[i] = fp8_code(code, kE4M3);
  }
}
void encode_e5m2(const void* from, void* to, int64_t n, const sfu::Context&) {
  for (int64_t i = 0; i < n; ++i) {
    uint32_t code;
    __builtin_memcpy(&code, static_cast<const float*>(from) + i, 4);
    static_cast<uint8_t*>(to)[i] = fp8_code(code, kE5M2);
  }
}

// --- integers, and truth of any format

template <class From, class To>
void convert_integers(const void* from, void* to, int64_t n, const sfu::Context&) {
  for (int64_t i = 0; i < n; ++i) {
    From value;
    __builtin_memcpy(&value, static_cast<const From*>(from) + i, sizeof(From));
    const To result = To(value);
    __builtin_memcpy(static_cast<To*>(to) + i, &result, sizeof(To));
  }
}
template <class To>
void encode_truth(const void* mask, void* to, int64_t n, uint64_t one) {
  for (int64_t i = 0; i < n; ++i) {
    int32_t truth;
    __builtin_memcpy(&truth, static_cast<const int32_t*>(mask) + i, 4);
    const To result = To(To(int64_t(truth)) & To(one));
    __builtin_memcpy(static_cast<To*>(to) + i, &result, sizeof(To));
  }
}

constexpr sfu::CodeLoop kDecode[sfu::kCardFormats] = {
    decode_dl16,
    decode_half,
    decode_bf16,
    decode_float,
    decode_e4m3,
    decode_e5m2,
    convert_integers<int8_t, int32_t>,
    convert_integers<int16_t, int32_t>,
    convert_integers<int32_t, int32_t>,
    convert_integers<int64_t, int64_t>,
    convert_integers<uint8_t, int32_t>,
};
constexpr sfu::CodeLoop kEncode[sfu::kCardFormats] = {
    encode_dl16,
    encode_half,
    encode_bf16,
    encode_float,
    encode_e4m3,
    encode_e5m2,
    convert_integers<int32_t, int8_t>,
    convert_integers<int32_t, int16_t>,
    convert_integers<int32_t, int32_t>,
    convert_integers<int64_t, int64_t>,
    convert_integers<int32_t, uint8_t>,
};

}  // namespace
}  // namespace openspyre::machine
