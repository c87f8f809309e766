// The body operations as loops over registers, and their table. Private to the three
// sfu_<isa>.cpp. Semantics: openspyre/program/ops.py and docs/program.md section 3.
#pragma once

#include "machine/kernels/sfu_codes.h"
#include "machine/kernels/sfu_isa.h"
#include "machine/kernels/sfu_math_wide.h"

namespace openspyre::machine {
namespace {

using sfu::Context;

// --- loop shapes. T: element, V: its vector.

template <class V>
struct ElementOf;
template <>
struct ElementOf<F> {
  using type = float;
};
template <>
struct ElementOf<I> {
  using type = int32_t;
};
template <>
struct ElementOf<L> {
  using type = int64_t;
};
template <class V>
OPENSPYRE_STEP V at(const void* array, int64_t i) {
  return load<V>(static_cast<const typename ElementOf<V>::type*>(array) + i);
}
template <class V>
OPENSPYRE_STEP void put(void* array, int64_t i, V v) {
  store(static_cast<typename ElementOf<V>::type*>(array) + i, v);
}
template <class V>
constexpr int64_t kStep = sizeof(V) / sizeof(typename ElementOf<V>::type);

template <class V, class R, R (*function)(V)>
void unary(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kStep<V>) put<R>(out, i, function(at<V>(in[0], i)));
}
template <class V, class R, R (*function)(V, V)>
void binary(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kStep<V>) {
    put<R>(out, i, function(at<V>(in[0], i), at<V>(in[1], i)));
  }
}
template <class T, T (*function)(T, T)>
void scalar_binary(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<T*>(out)[i] =
        function(static_cast<const T*>(in[0])[i], static_cast<const T*>(in[1])[i]);
  }
}

// --- float

OPENSPYRE_STEP F neg(F x) { return as_float(bits(x) ^ kSignBit); }
OPENSPYRE_STEP I isnan(F x) { return x != x; }
OPENSPYRE_STEP I isinf(F x) { return abs(x) == kInf; }
OPENSPYRE_STEP I isfinite(F x) { return abs(x) < kInf; }
OPENSPYRE_STEP F add(F a, F b) { return a + b; }
OPENSPYRE_STEP F sub(F a, F b) { return a - b; }
OPENSPYRE_STEP F mul(F a, F b) { return a * b; }
OPENSPYRE_STEP F div(F a, F b) { return a / b; }

// --- integers wrap (these files are compiled with -fwrapv)

template <class V>
OPENSPYRE_STEP V neg(V x) {
  return -x;
}
template <class V>
OPENSPYRE_STEP V abs_int(V x) {
  return select(x < 0, -x, x);
}
template <class V>
OPENSPYRE_STEP V sign_int(V x) {
  return (x < 0) - (x > 0);  // masks are -1
}
template <class V>
OPENSPYRE_STEP V add(V a, V b) {
  return a + b;
}
template <class V>
OPENSPYRE_STEP V sub(V a, V b) {
  return a - b;
}
template <class V>
OPENSPYRE_STEP V mul(V a, V b) {
  return a * b;
}
template <class V>
OPENSPYRE_STEP V minimum(V a, V b) {
  return select(b < a, b, a);
}
template <class V>
OPENSPYRE_STEP V maximum(V a, V b) {
  return select(b > a, b, a);
}
template <class V>
OPENSPYRE_STEP V bit_and(V a, V b) {
  return a & b;
}
template <class V>
OPENSPYRE_STEP V bit_or(V a, V b) {
  return a | b;
}
template <class V>
OPENSPYRE_STEP V bit_xor(V a, V b) {
  return a ^ b;
}
template <class V>
OPENSPYRE_STEP V bit_not(V a) {
  return ~a;
}
template <class V, class Unsigned>
OPENSPYRE_STEP V shl(V a, V b) {
  constexpr int kBits = 8 * int(sizeof(typename ElementOf<V>::type));
  const V in_range = (V)((Unsigned)b < Unsigned{} + unsigned(kBits));
  return (a << (b & (kBits - 1))) & in_range;
}
template <class V, class Unsigned>
OPENSPYRE_STEP V shr_logical(V a, V b) {
  constexpr int kBits = 8 * int(sizeof(typename ElementOf<V>::type));
  const V in_range = (V)((Unsigned)b < Unsigned{} + unsigned(kBits));
  return (V)((Unsigned)a >> (Unsigned)(b & (kBits - 1))) & in_range;
}
template <class V, class Unsigned>
OPENSPYRE_STEP V shr(V a, V b) {
  constexpr int kBits = 8 * int(sizeof(typename ElementOf<V>::type));
  const V in_range = (V)((Unsigned)b < Unsigned{} + unsigned(kBits));
  return a >> select(in_range, b, V{} + (kBits - 1));
}

template <class T>
OPENSPYRE_STEP T int_trunc_div(T a, T b) {
  if (b == 0) return 0;
  return b == -1 ? T(-a) : T(a / b);  // the smallest / -1 wraps
}
template <class T>
OPENSPYRE_STEP T int_fmod(T a, T b) {
  if (b == 0) return a;
  return b == -1 ? T(0) : T(a % b);
}
template <class T>
OPENSPYRE_STEP T int_remainder(T a, T b) {
  const T m = int_fmod(a, b);
  return b != 0 && m != 0 && (m < 0) != (b < 0) ? T(m + b) : m;
}
template <class T>
OPENSPYRE_STEP T int_floor_div(T a, T b) {
  const T q = int_trunc_div(a, b);
  return b != 0 && int_fmod(a, b) != 0 && (a < 0) != (b < 0) ? T(q - 1) : q;
}

// --- comparisons. Of truth values: false < true, while masks are 0 > -1.

enum class Compare { Eq, Ne, Lt, Le, Gt, Ge };
template <Compare kind, class V>
OPENSPYRE_STEP auto compared(V a, V b) {
  if constexpr (kind == Compare::Eq) return a == b;
  if constexpr (kind == Compare::Ne) return a != b;
  if constexpr (kind == Compare::Lt) return a < b;
  if constexpr (kind == Compare::Le) return a <= b;
  if constexpr (kind == Compare::Gt) return a > b;
  if constexpr (kind == Compare::Ge) return a >= b;
}
template <Compare kind>
void compare_f(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kLanes) {
    put<I>(out, i, compared<kind>(at<F>(in[0], i), at<F>(in[1], i)));
  }
}
template <Compare kind>
void compare_i(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kLanes) {
    put<I>(out, i, compared<kind>(at<I>(in[0], i), at<I>(in[1], i)));
  }
}
template <Compare kind>
void compare_b(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kLanes) {
    put<I>(out, i, compared<kind>(at<I>(in[1], i), at<I>(in[0], i)));
  }
}
template <Compare kind>
void compare_l(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kWide) {
    const L mask = compared<kind>(at<L>(in[0], i), at<L>(in[1], i));
    store(static_cast<int32_t*>(out) + i, __builtin_convertvector(mask, HalfI));
  }
}

// --- selection and conversion

template <class V>
void where(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kLanes) {
    put<V>(out, i, select(at<I>(in[0], i), at<V>(in[1], i), at<V>(in[2], i)));
  }
}
void where_l(void* out, const void* const* in, int64_t n, const Context&) {
  for (int64_t i = 0; i < n; i += kWide) {
    const HalfI half = load<HalfI>(static_cast<const int32_t*>(in[0]) + i);
    const L mask = __builtin_convertvector(half, L);
    put<L>(out, i, select(mask, at<L>(in[1], i), at<L>(in[2], i)));
  }
}

template <class To>
OPENSPYRE_STEP To saturate(float x) {  // toward zero; NaN gives 0
  constexpr float kLimit = sizeof(To) == 4 ? 0x1p31f : 0x1p63f;
  constexpr To kLargest = To(~(uint64_t(1) << (8 * sizeof(To) - 1)));
  if (x != x) return 0;
  if (x >= kLimit) return kLargest;
  return x < -kLimit ? To(-kLargest - 1) : To(x);
}
template <class From, class To, To (*step)(From)>
void cast_each(void* out, const void* in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    static_cast<To*>(out)[i] = step(static_cast<const From*>(in)[i]);
  }
}
template <class From, class To>
OPENSPYRE_STEP To converted(From x) {
  return To(x);
}
template <class From>
OPENSPYRE_STEP int32_t is_true(From x) {  // NaN is
  return -int32_t(x != 0);
}
template <class To>
OPENSPYRE_STEP To of_truth(int32_t mask) {
  return To(mask & 1);
}
OPENSPYRE_STEP I to_int(F x) {
  const I safe = (abs(x) < 2147483648.0f);
  const I inside = __builtin_convertvector(select(safe, x, F{}), I);
  const I outside = select(x > 0.0f, splat(INT32_MAX), select(x < 0.0f, splat(INT32_MIN), I{}));
  return select(safe, inside, outside);
}

void cast_f(void* out, const void* const* in, int64_t n, const Context& context) {
  switch (Register(context.immediate)) {
    case Register::F32:
      __builtin_memcpy(out, in[0], size_t(n) * 4);
      return;
    case Register::I32:
      return unary<F, I, to_int>(out, in, n, context);
    case Register::I64:
      return cast_each<float, int64_t, saturate<int64_t>>(out, in[0], n);
    case Register::Bool:
      return cast_each<float, int32_t, is_true<float>>(out, in[0], n);
  }
}
void cast_i(void* out, const void* const* in, int64_t n, const Context& context) {
  switch (Register(context.immediate)) {
    case Register::F32:
      return cast_each<int32_t, float, converted<int32_t, float>>(out, in[0], n);
    case Register::I32:
      __builtin_memcpy(out, in[0], size_t(n) * 4);
      return;
    case Register::I64:
      return cast_each<int32_t, int64_t, converted<int32_t, int64_t>>(out, in[0], n);
    case Register::Bool:
      return cast_each<int32_t, int32_t, is_true<int32_t>>(out, in[0], n);
  }
}
void cast_l(void* out, const void* const* in, int64_t n, const Context& context) {
  switch (Register(context.immediate)) {
    case Register::F32:
      return cast_each<int64_t, float, converted<int64_t, float>>(out, in[0], n);
    case Register::I32:
      return cast_each<int64_t, int32_t, converted<int64_t, int32_t>>(out, in[0], n);
    case Register::I64:
      __builtin_memcpy(out, in[0], size_t(n) * 8);
      return;
    case Register::Bool:
      return cast_each<int64_t, int32_t, is_true<int64_t>>(out, in[0], n);
  }
}
void cast_b(void* out, const void* const* in, int64_t n, const Context& context) {
  switch (Register(context.immediate)) {
    case Register::F32:
      return cast_each<int32_t, float, of_truth<float>>(out, in[0], n);
    case Register::I32:
      return cast_each<int32_t, int32_t, of_truth<int32_t>>(out, in[0], n);
    case Register::I64:
      return cast_each<int32_t, int64_t, of_truth<int64_t>>(out, in[0], n);
    case Register::Bool:
      __builtin_memcpy(out, in[0], size_t(n) * 4);
      return;
  }
}

void round_to(void* out, const void* const* in, int64_t n, const Context& context) {
  constexpr int64_t kChunk = 256;
  alignas(64) char codes[kChunk * 4];
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t part = n - i < kChunk ? n - i : kChunk;
    kEncode[context.immediate](static_cast<const float*>(in[0]) + i, codes, part, context);
    kDecode[context.immediate](codes, static_cast<float*>(out) + i, part, context);
  }
}
OPENSPYRE_STEP I bits_of(F x) { return select(x != x, splat(0x7FC00000), bits(x)); }
void bits_f(void* out, const void* const* in, int64_t n, const Context& context) {
  if (Register(context.immediate) == Register::I32)
    return unary<F, I, bits_of>(out, in, n, context);
  __builtin_memcpy(out, in[0], size_t(n) * 4);
}
void bits_i(void* out, const void* const* in, int64_t n, const Context&) {
  __builtin_memcpy(out, in[0], size_t(n) * 4);
}

// --- random bits: Philox4x32-10 as machine/philox.h has it, one 32-bit number in each 64-bit lane

void philox(void* out, const void* const* in, int64_t n, const Context& context) {
  constexpr uint64_t kLow = 0xFFFFFFFF, kFirst = 0xD2511F53, kSecond = 0xCD9E8D57;
  constexpr uint64_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int64_t i = 0; i < n; i += kWide) {
    const UL key = (UL)at<L>(in[0], i), counter = (UL)at<L>(in[1], i);
    UL k0 = key & kLow, k1 = key >> 32;
    UL c[4] = {counter & kLow, counter >> 32, UL{}, UL{}};
    for (int round = 0; round < 10; ++round) {
#if OPENSPYRE_VECTOR_BYTES == 64
      const UL p0 = (UL)_mm512_mul_epu32((__m512i)c[0], _mm512_set1_epi64(int64_t(kFirst)));
      const UL p1 = (UL)_mm512_mul_epu32((__m512i)c[2], _mm512_set1_epi64(int64_t(kSecond)));
#elif OPENSPYRE_VECTOR_BYTES == 32
      const UL p0 = (UL)_mm256_mul_epu32((__m256i)c[0], _mm256_set1_epi64x(int64_t(kFirst)));
      const UL p1 = (UL)_mm256_mul_epu32((__m256i)c[2], _mm256_set1_epi64x(int64_t(kSecond)));
#else
      const UL p0 = c[0] * kFirst, p1 = c[2] * kSecond;
#endif
      c[0] = (p1 >> 32) ^ c[1] ^ k0;
      c[1] = p1 & kLow;
      c[2] = (p0 >> 32) ^ c[3] ^ k1;
      c[3] = p0 & kLow;
      k0 = (k0 + kWeyl0) & kLow;
      k1 = (k1 + kWeyl1) & kLow;
    }
    const HalfI word = __builtin_convertvector((L)c[context.immediate & 3], HalfI);
    store(static_cast<int32_t*>(out) + i, word);
  }
}
OPENSPYRE_STEP F unit(I word) { return __builtin_convertvector((I)((U)word >> 8), F) * 0x1p-24f; }

// --- the table

#define OPENSPYRE_F1(name, function) t.op[int(Op::name)][0] = unary<F, F, function>
#define OPENSPYRE_F2(name, function) t.op[int(Op::name)][0] = binary<F, F, function>
#define OPENSPYRE_TEST(name, function) t.op[int(Op::name)][0] = unary<F, I, function>
#define OPENSPYRE_I1(name, function)                 \
  t.op[int(Op::name)][1] = unary<I, I, function<I>>; \
  t.op[int(Op::name)][2] = unary<L, L, function<L>>
#define OPENSPYRE_I2(name, function)                  \
  t.op[int(Op::name)][1] = binary<I, I, function<I>>; \
  t.op[int(Op::name)][2] = binary<L, L, function<L>>
#define OPENSPYRE_SHIFT(name, function)                  \
  t.op[int(Op::name)][1] = binary<I, I, function<I, U>>; \
  t.op[int(Op::name)][2] = binary<L, L, function<L, UL>>
#define OPENSPYRE_EACH(name, function)                                \
  t.op[int(Op::name)][1] = scalar_binary<int32_t, function<int32_t>>; \
  t.op[int(Op::name)][2] = scalar_binary<int64_t, function<int64_t>>
#define OPENSPYRE_COMPARE(name)                      \
  t.op[int(Op::name)][0] = compare_f<Compare::name>; \
  t.op[int(Op::name)][1] = compare_i<Compare::name>; \
  t.op[int(Op::name)][2] = compare_l<Compare::name>; \
  t.op[int(Op::name)][3] = compare_b<Compare::name>

constexpr void fill_ops(sfu::Isa& t) {
  OPENSPYRE_F1(Neg, neg);
  OPENSPYRE_F1(Abs, abs);
  OPENSPYRE_F1(Sign, sign);
  OPENSPYRE_F1(Floor, floor);
  OPENSPYRE_F1(Ceil, ceil);
  OPENSPYRE_F1(RoundEven, round_even);
  OPENSPYRE_F1(Trunc, trunc);
  OPENSPYRE_F1(Frac, frac);
  OPENSPYRE_F1(Sqrt, sqrt);
  OPENSPYRE_F1(Rsqrt, rsqrt);
  OPENSPYRE_F1(Reciprocal, reciprocal);
  OPENSPYRE_F1(Exp, exp);
  OPENSPYRE_F1(Exp2, exp2);
  OPENSPYRE_F1(Expm1, expm1);
  OPENSPYRE_F1(Log, log);
  OPENSPYRE_F1(Log2, log2);
  OPENSPYRE_F1(Log10, log10);
  OPENSPYRE_F1(Log1p, log1p);
  OPENSPYRE_F1(Sigmoid, sigmoid);
  OPENSPYRE_F1(Tanh, tanh);
  OPENSPYRE_F1(Erf, erf);
  OPENSPYRE_F1(Erfc, erfc);
  OPENSPYRE_F1(Erfinv, erfinv);
  OPENSPYRE_F1(Gelu, gelu);
  OPENSPYRE_F1(GeluTanh, gelu_tanh);
  OPENSPYRE_F1(Silu, silu);
  OPENSPYRE_F1(Softplus, softplus);
  OPENSPYRE_F1(Mish, mish);
  OPENSPYRE_F1(Relu, relu);
  OPENSPYRE_F1(Sin, sin);
  OPENSPYRE_F1(Cos, cos);
  OPENSPYRE_F1(Tan, tan);
  OPENSPYRE_F1(Asin, asin);
  OPENSPYRE_F1(Acos, acos);
  OPENSPYRE_F1(Atan, atan);
  OPENSPYRE_F1(Sinh, sinh);
  OPENSPYRE_F1(Cosh, cosh);
  OPENSPYRE_F1(Asinh, asinh);
  OPENSPYRE_F1(Acosh, acosh);
  OPENSPYRE_F1(Atanh, atanh);
  OPENSPYRE_TEST(IsNan, isnan);
  OPENSPYRE_TEST(IsInf, isinf);
  OPENSPYRE_TEST(IsFinite, isfinite);
  OPENSPYRE_F2(Add, add);
  OPENSPYRE_F2(Sub, sub);
  OPENSPYRE_F2(Mul, mul);
  OPENSPYRE_F2(Min, minimum);
  OPENSPYRE_F2(Max, maximum);
  OPENSPYRE_F2(Div, div);
  OPENSPYRE_F2(Pow, pow);
  OPENSPYRE_F2(Atan2, atan2);
  OPENSPYRE_F2(CopySign, copysign);
  OPENSPYRE_F2(Fmod, fmod);
  OPENSPYRE_F2(Remainder, remainder);
  OPENSPYRE_F2(FloorDiv, floor_div);
  OPENSPYRE_F2(TruncDiv, trunc_div);
  OPENSPYRE_I1(Neg, neg);
  OPENSPYRE_I1(Abs, abs_int);
  OPENSPYRE_I1(Sign, sign_int);
  OPENSPYRE_I2(Add, add);
  OPENSPYRE_I2(Sub, sub);
  OPENSPYRE_I2(Mul, mul);
  OPENSPYRE_I2(Min, minimum);
  OPENSPYRE_I2(Max, maximum);
  OPENSPYRE_EACH(Fmod, int_fmod);
  OPENSPYRE_EACH(Remainder, int_remainder);
  OPENSPYRE_EACH(FloorDiv, int_floor_div);
  OPENSPYRE_EACH(TruncDiv, int_trunc_div);
  OPENSPYRE_COMPARE(Eq);
  OPENSPYRE_COMPARE(Ne);
  OPENSPYRE_COMPARE(Lt);
  OPENSPYRE_COMPARE(Le);
  OPENSPYRE_COMPARE(Gt);
  OPENSPYRE_COMPARE(Ge);
  OPENSPYRE_I2(And, bit_and);
  OPENSPYRE_I2(Or, bit_or);
  OPENSPYRE_I2(Xor, bit_xor);
  OPENSPYRE_I1(Not, bit_not);
  t.op[int(Op::And)][3] = binary<I, I, bit_and<I>>;
  t.op[int(Op::Or)][3] = binary<I, I, bit_or<I>>;
  t.op[int(Op::Xor)][3] = binary<I, I, bit_xor<I>>;
  t.op[int(Op::Not)][3] = unary<I, I, bit_not<I>>;
  OPENSPYRE_SHIFT(Shl, shl);
  OPENSPYRE_SHIFT(Shr, shr);
  OPENSPYRE_SHIFT(ShrLogical, shr_logical);
  t.op[int(Op::Where)][0] = where<F>;
  t.op[int(Op::Where)][1] = where<I>;
  t.op[int(Op::Where)][2] = where_l;
  t.op[int(Op::Where)][3] = where<I>;
  t.op[int(Op::Cast)][0] = cast_f;
  t.op[int(Op::Cast)][1] = cast_i;
  t.op[int(Op::Cast)][2] = cast_l;
  t.op[int(Op::Cast)][3] = cast_b;
  t.op[int(Op::Round)][0] = round_to;
  t.op[int(Op::Bits)][0] = bits_f;
  t.op[int(Op::Bits)][1] = bits_i;
  t.op[int(Op::Philox)][2] = philox;
  t.op[int(Op::Unit)][1] = unary<I, F, unit>;
}

}  // namespace
}  // namespace openspyre::machine
