// The SFU's functions, part one: rounding, and the functions that models use most, in float32.
//
// Private to the three sfu_<isa>.cpp. These lines are the law of the functions' bits, for every
// executor: only + - * / sqrt, comparisons and integer operations, in the written order. Errors
// (largest, in units of the last place of float32, from dense sweeps in
// tests/test_sfu_functions.py) stand at each. Coefficients: sfu_fit.py. The rarer functions are in
// sfu_math_wide.h.
#pragma once

#include "machine/kernels/vector.h"

namespace openspyre::machine {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr double kLn2D = 0.693147180559945309, kLog2eD = 1.44269504088896341;
// ln 2 in two parts; k * kLn2High is exact for |k| < 2^15.
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// --- rounding, exact. Values of 2^23 and more are integers; a zero keeps the sign.

OPENSPYRE_STEP F whole(F x, F (*step)(F truncated, F x)) {
  const I small = abs(x) < 8388608.0f;
  const F safe = select(small, x, F{});
  const F truncated = __builtin_convertvector(__builtin_convertvector(safe, I), F);
  return select(small, with_sign(abs(step(truncated, safe)), x), x);
}
OPENSPYRE_STEP F trunc(F x) {
  return whole(x, [](F t, F) { return t; });
}
OPENSPYRE_STEP F floor(F x) {
  return whole(x, [](F t, F v) { return t - select(t > v, splat(1.0f), F{}); });
}
OPENSPYRE_STEP F ceil(F x) {
  return whole(x, [](F t, F v) { return t + select(t < v, splat(1.0f), F{}); });
}
OPENSPYRE_STEP F round_even(F x) {
  const F a = abs(x);
  const F rounded = (a + 8388608.0f) - 8388608.0f;  // the sum's last place is 1
  return select(a < 8388608.0f, with_sign(rounded, x), x);
}
OPENSPYRE_STEP F frac(F x) { return x - trunc(x); }

OPENSPYRE_STEP F sign(F x) {
  const F one = select(x > 0.0f, splat(1.0f), select(x < 0.0f, splat(-1.0f), F{}));
  return select(x != x, x, one);
}
// b when it is greater or NaN (a NaN in a stays): the rule of body and reduction.
OPENSPYRE_STEP F maximum(F a, F b) { return select((b > a) | (b != b), b, a); }
OPENSPYRE_STEP F minimum(F a, F b) { return select((b < a) | (b != b), b, a); }
OPENSPYRE_STEP F relu(F x) { return select(x < 0.0f, F{}, x); }
OPENSPYRE_STEP F reciprocal(F x) { return 1.0f / x; }   // 0.5 units
OPENSPYRE_STEP F rsqrt(F x) { return 1.0f / sqrt(x); }  // 1.5 units: two roundings
OPENSPYRE_STEP F copysign(F x, F from) {                // NaN counts as positive
  return with_sign(abs(x), select(from != from, F{}, from));
}

// --- exponentials

// e^x = p * 2^k, not yet multiplied, so that a factor can go in before a result becomes subnormal.
struct Scaled {
  F p;
  I k;
  OPENSPYRE_STEP F power(I k) { return as_float((k + 127) << 23); }
  // factor * p * 2^k, in two steps: k lies outside a float's exponents where the result does.
  [[gnu::always_inline]] F times(F factor) const {
    const I half = k >> 1;
    return factor * p * power(half) * power(k - half);
  }
  [[gnu::always_inline]] F value() const {
    const I half = k >> 1;
    return p * power(half) * power(k - half);
  }
};

OPENSPYRE_STEP F exp_rest(F r, F lost) {  // e^(r + lost) for |r| <= ln 2 / 2 and tiny `lost`
  const F rest = polynomial(r, 0.5000000014f, 0.1666666668f, 4.166645681e-2f, 8.333310023e-3f,
                            1.393454194e-3f, 1.989198207e-4f);
  return 1.0f + (r + (r * r * rest + lost));
}

// e^(x + small), for -105 <= x <= 89 and |small| < 0.1.
OPENSPYRE_STEP Scaled exp_scaled(F x, F small) {
  const F shifted = x * kLog2e + kMagic;
  const F k = shifted - kMagic;
  const F head = x - k * kLn2High;  // exact
  const F tail = small - k * kLn2Low;
  const F r = head + tail;
  return {exp_rest(r, (head - r) + tail), bits(shifted) - bits(splat(kMagic))};
}
OPENSPYRE_STEP Scaled exp_scaled(F x) {
  const F shifted = x * kLog2e + kMagic;
  const F k = shifted - kMagic;
  const F head = x - k * kLn2High, tail = k * kLn2Low;
  const F r = head - tail;
  return {exp_rest(r, (head - r) - tail), bits(shifted) - bits(splat(kMagic))};
}

// n / (1 + z) for 0 <= z <= 1. What 1 + z loses is put back, divided by a rough 1 + z.
OPENSPYRE_STEP F over_one_and(F n, F z) {
  const F d = 1.0f + z;
  const F lost = z - (d - 1.0f);
  const F q = n / d;
  const F near = q - at_most(q, 3e38f) * (lost * (0.957f - 0.457f * z));  // infinity stays
  return with_sign(abs(near), n);                                         // and so does -0
}

// 0.9 units.
OPENSPYRE_STEP F exp(F x) { return exp_scaled(at_least(at_most(x, 89.0f), -104.0f)).value(); }

// 1 / (1 + e^-x) and e^x / (1 + e^x). 1.8 units.
OPENSPYRE_STEP F sigmoid(F x) {
  const F z = exp_scaled(at_least(-abs(x), -104.0f)).value();
  return over_one_and(select(x < 0.0f, z, splat(1.0f)), z);
}

// x * sigmoid(x); at -inf the limit, -0. 2.4 units.
OPENSPYRE_STEP F silu(F x) {
  const F low = at_least(x, -110.0f);
  const Scaled e = exp_scaled(at_least(-abs(x), -110.0f));
  return over_one_and(select(x < 0.0f, e.times(low), x), e.value());
}

// 1.3 units.
OPENSPYRE_STEP F tanh(F x) {
  const F a = abs(x), square = x * x;
  const F rest = polynomial(square, -0.3333333315f, 0.1333330015f, -5.395846163e-2f,
                            2.176250291e-2f, -8.323187058e-3f, 2.269501684e-3f);
  const F near = x + x * (square * rest);
  const F e = exp_scaled(at_most(a + a, 20.0f)).value();
  return with_sign(abs(select(a < 0.625f, near, 1.0f - 2.0f / (e + 1.0f))), x);
}

// --- GELU: x * Phi(x), Phi the normal distribution: for small x by the series of Phi, else
// max(x, 0) - z * (1 - Phi(z)) with z = |x| and 1 - Phi(z) = e^(-z^2 / 2) * erfcx(z / sqrt 2) / 2.
// At -inf the limit, -0. 2.3 units.
OPENSPYRE_STEP F gelu(F x) {
  const F z = at_most(abs(x), 14.5f), square = z * z;
  const F series = polynomial(square, 0.3989422799f, -6.649032722e-2f, 9.972708268e-3f,
                              -1.182535892e-3f, 1.042779776e-4f);
  const F near = x * (0.5f + x * series);
  // z^2 exactly enough: the upper 12 bits' square is exact, and the rest is small.
  const F head = as_float(bits(z) & ~0xFFF);
  const Scaled e = exp_scaled(-0.5f * (head * head), -0.5f * ((z - head) * (z + head)));
  const F t = (z - 1.5f) / (z + 1.5f);
  const F tail = polynomial(t, 0.3086710011f, 0.211121234f, -0.1262975924f, -1.979801939e-2f,
                            1.777126884e-2f, 1.078681857e-2f, 7.627592402e-4f, -2.34713729e-3f,
                            -2.011079231e-3f, -1.02574635e-3f, 1.313636679e-3f);
  const F far = select(x >= 0.0f, x, splat(-0.0f)) - e.times(tail);
  return select(z < 0.7f, near, far);
}

// x * sigmoid(w), w = sqrt(8 / pi) * (x + 0.044715 x^3): torch's tanh form. w in float64, because
// its error is one of the exponent. 2.2 units.
OPENSPYRE_STEP F gelu_tanh(F x) {
  const F a = at_most(abs(x), 11.0f);
  const Pair wide = widen(a);
  D k[2], r[2];
  for (int i = 0; i < 2; ++i) {
    const D v = i ? wide.high : wide.low;
    const D w = v * (-1.59576912160573071 + v * v * -0.0713548162726009);
    k[i] = (w * kLog2eD + kMagicD) - kMagicD;
    r[i] = w - k[i] * kLn2D;
  }
  const Scaled e = {exp_rest(narrow(r[0], r[1]), F{}),
                    __builtin_convertvector(narrow(k[0], k[1]), I)};
  return over_one_and(select(x < 0.0f, e.times(-a), x), e.value());
}

}  // namespace
}  // namespace openspyre::machine
