// Vectors of one instruction set, as GCC vector extensions: the words the SFU's source is written
// in.
//
// Private to sfu_portable.cpp, sfu_avx2.cpp and sfu_avx512.cpp, which define OPENSPYRE_VECTOR_BYTES
// (16, 32 or 64) and include this first. Everything is in an unnamed namespace: no copy compiled
// for one instruction set may serve another. Every operation here is exact or rounds once, as IEEE
// says, in every lane, so that the width of a vector changes no bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own AVX-512 header initialises its don't-care operands with themselves, and warns.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#define OPENSPYRE_STEP [[gnu::always_inline]] static inline

namespace openspyre::machine {
namespace {

constexpr int kVectorBytes = OPENSPYRE_VECTOR_BYTES;
constexpr int kLanes = kVectorBytes / 4;  // of float32
constexpr int kWide = kLanes / 2;         // of float64

typedef float F __attribute__((vector_size(kVectorBytes)));
typedef int32_t I __attribute__((vector_size(kVectorBytes)));  // also masks: 0 or -1
typedef uint32_t U __attribute__((vector_size(kVectorBytes)));
typedef double D __attribute__((vector_size(kVectorBytes)));
typedef int64_t L __attribute__((vector_size(kVectorBytes)));
typedef uint64_t UL __attribute__((vector_size(kVectorBytes)));
typedef float HalfF __attribute__((vector_size(kVectorBytes / 2)));
typedef int32_t HalfI __attribute__((vector_size(kVectorBytes / 2)));
typedef uint16_t Codes16 __attribute__((vector_size(kVectorBytes / 2)));  // kLanes of them

template <class V, class T>
OPENSPYRE_STEP V load(const T* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}
template <class V, class T>
OPENSPYRE_STEP void store(T* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

OPENSPYRE_STEP F splat(float x) { return x - F{}; }  // x + 0.0 would lose the sign of -0.0
OPENSPYRE_STEP I splat(int32_t x) { return I{} + x; }
OPENSPYRE_STEP D splat(double x) { return x - D{}; }
OPENSPYRE_STEP L splat(int64_t x) { return L{} + x; }

OPENSPYRE_STEP I bits(F x) { return (I)x; }
OPENSPYRE_STEP F as_float(I x) { return (F)x; }
OPENSPYRE_STEP L bits(D x) { return (L)x; }
OPENSPYRE_STEP D as_double(L x) { return (D)x; }

constexpr int32_t kSignBit = INT32_MIN, kMagnitude = INT32_MAX;
constexpr float kInf = __builtin_inff();

OPENSPYRE_STEP F abs(F x) { return as_float(bits(x) & kMagnitude); }
OPENSPYRE_STEP D abs(D x) { return as_double(bits(x) & INT64_MAX); }
OPENSPYRE_STEP F with_sign(F magnitude, F of) {  // magnitude has none
  return as_float(bits(magnitude) | (bits(of) & kSignBit));
}
OPENSPYRE_STEP D with_sign(D magnitude, D of) {
  return as_double(bits(magnitude) | (bits(of) & INT64_MIN));
}
OPENSPYRE_STEP F select(I mask, F a, F b) { return mask ? a : b; }
OPENSPYRE_STEP I select(I mask, I a, I b) { return mask ? a : b; }
OPENSPYRE_STEP D select(L mask, D a, D b) { return mask ? a : b; }
OPENSPYRE_STEP L select(L mask, L a, L b) { return mask ? a : b; }
// For values that are not NaN, or where a NaN in `a` shall stay.
OPENSPYRE_STEP F at_most(F a, float limit) { return a > limit ? splat(limit) : a; }
OPENSPYRE_STEP F at_least(F a, float limit) { return a < limit ? splat(limit) : a; }
OPENSPYRE_STEP D at_most(D a, double limit) { return a > limit ? splat(limit) : a; }
OPENSPYRE_STEP D at_least(D a, double limit) { return a < limit ? splat(limit) : a; }

OPENSPYRE_STEP bool any(I mask) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif OPENSPYRE_VECTOR_BYTES == 32
  return _mm256_movemask_ps((__m256)mask) != 0;
#else
  const L wide = (L)mask;
  return (wide[0] | wide[1]) != 0;
#endif
}

OPENSPYRE_STEP F sqrt(F x) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return (F)_mm512_sqrt_ps((__m512)x);
#elif OPENSPYRE_VECTOR_BYTES == 32
  return (F)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
  return (F)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}
OPENSPYRE_STEP D sqrt(D x) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return (D)_mm512_sqrt_pd((__m512d)x);
#elif OPENSPYRE_VECTOR_BYTES == 32
  return (D)_mm256_sqrt_pd((__m256d)x);
#elif defined(__x86_64__)
  return (D)_mm_sqrt_pd((__m128d)x);
#else
  for (int i = 0; i < kWide; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// --- halves: kLanes float32 <-> two vectors of float64

struct Pair {
  D low, high;
};
OPENSPYRE_STEP HalfF low_half(F x) {
  HalfF h;
  __builtin_memcpy(&h, &x, sizeof(h));
  return h;
}
OPENSPYRE_STEP HalfF high_half(F x) {
  HalfF h;
  __builtin_memcpy(&h, reinterpret_cast<const char*>(&x) + sizeof(h), sizeof(h));
  return h;
}
OPENSPYRE_STEP F join(HalfF low, HalfF high) {
  F x;
  __builtin_memcpy(&x, &low, sizeof(low));
  __builtin_memcpy(reinterpret_cast<char*>(&x) + sizeof(low), &high, sizeof(high));
  return x;
}
OPENSPYRE_STEP Pair widen(F x) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return {(D)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)),
          (D)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1))};
#elif OPENSPYRE_VECTOR_BYTES == 32
  return {(D)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)),
          (D)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1))};
#else
  return {__builtin_convertvector(low_half(x), D), __builtin_convertvector(high_half(x), D)};
#endif
}
OPENSPYRE_STEP F narrow(D low, D high) {
#if OPENSPYRE_VECTOR_BYTES == 64
  return (F)_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps((__m512d)low)),
                               _mm512_cvtpd_ps((__m512d)high), 1);
#elif OPENSPYRE_VECTOR_BYTES == 32
  return (F)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps((__m256d)low)),
                                 _mm256_cvtpd_ps((__m256d)high), 1);
#else
  return join(__builtin_convertvector(low, HalfF), __builtin_convertvector(high, HalfF));
#endif
}

// `function` on float64 of one, or two, float32 vectors; its result rounded once to float32.
template <class Function>
OPENSPYRE_STEP F in_double(F x, Function function) {
  const Pair p = widen(x);
  return narrow(function(p.low), function(p.high));
}
template <class Function>
OPENSPYRE_STEP F in_double(F x, F y, Function function) {
  const Pair p = widen(x), q = widen(y);
  return narrow(function(p.low, q.low), function(p.high, q.high));
}

// To the nearest integer, halves to even, for |x| <= 2^22 (2^51): as a float, and its bits' low
// part as an integer. The magic number makes the last fraction bit a unit.
constexpr float kMagic = 12582912.0f;           // 1.5 * 2^23
constexpr double kMagicD = 6755399441055744.0;  // 1.5 * 2^52

// c[0] + c[1] x + ..: Horner, each step a product and a sum.
template <class V, class T>
OPENSPYRE_STEP V polynomial(V x, T c0) {
  (void)x;
  return splat(c0);
}
template <class V, class T, class... Rest>
OPENSPYRE_STEP V polynomial(V x, T c0, T c1, Rest... rest) {
  return polynomial(x, c1, rest...) * x + c0;
}

}  // namespace
}  // namespace openspyre::machine
