// The SFU's functions, part two: those computed in float64 and rounded once to float32.
//
// Private to the three sfu_<isa>.cpp; the law of bits as in sfu_math.h. Polynomials reach 1e-10
// or better, so a result is off by little more than the last rounding (0.51 units). Coefficients:
// sfu_fit.py. Odd functions get the argument's sign, so that -0 stays -0.
#pragma once

#include "machine/kernels/sfu_math.h"

namespace openspyre::machine {
namespace {

constexpr double kPi = 3.14159265358979312, kHalfPi = 1.57079632679489656;
constexpr double kLog10eD = 0.434294481903251828;
constexpr double kInfD = __builtin_inf(), kNanD = __builtin_nan("");
constexpr float kNan = __builtin_nanf("");

OPENSPYRE_STEP F odd(F result, F x) { return with_sign(abs(result), x); }

// --- the building blocks in float64

struct ScaledD {
  D rest;   // e^r - 1
  D power;  // 2^k
};
OPENSPYRE_STEP D exp_restd(D r) {  // e^r - 1 for |r| <= ln 2 / 2
  return r + r * r *
                 polynomial(r, 0.5, 0.166666666666467806, 4.16666666666500959e-2,
                            8.33333335497192033e-3, 1.38888889069182344e-3, 1.98412062747479545e-4,
                            2.48015343387852264e-5, 2.76264660652889828e-6, 2.76149330216984298e-7);
}
OPENSPYRE_STEP ScaledD exp_parts(D x) {  // |x| <= 700
  const D shifted = x * kLog2eD + kMagicD;
  const L k = bits(shifted) - bits(splat(kMagicD));
  return {exp_restd(x - (shifted - kMagicD) * kLn2D), as_double((k + 1023) << 52)};
}
OPENSPYRE_STEP D expd(D x) {
  const ScaledD e = exp_parts(x);
  return e.power + e.power * e.rest;
}
OPENSPYRE_STEP D expm1d(D x) {
  const ScaledD e = exp_parts(x);
  return e.power * e.rest + (e.power - 1.0);
}

// x = 2^k * m, m in sqrt(1/2) .. sqrt 2; k and ln m. x positive, finite and no subnormal.
struct Logarithm {
  D k, rest;
};
OPENSPYRE_STEP Logarithm log_parts(D x) {
  constexpr int64_t kOne = 0x3FF0000000000000, kRootHalf = 0x3FE6A09E667F3BCD;
  constexpr int64_t kFraction = 0x000FFFFFFFFFFFFF;
  const L moved = (L)((UL)bits(x) + (uint64_t)(kOne - kRootHalf));  // wraps for codes of NaN
  const L k = (L)((UL)moved >> 52) - 1023;
  const D m = as_double((moved & kFraction) + kRootHalf);
  const D s = (m - 1.0) / (m + 1.0), q = s * s;
  const D rest = polynomial(q, 0.666666666666666973, 0.399999999998981919, 0.285714286265702036,
                            0.222222110378165849, 0.181828961834832473, 0.153314872358613723,
                            0.146193434535581242);
  return {as_double(k + bits(splat(kMagicD))) - kMagicD, (s + s) + s * q * rest};
}
OPENSPYRE_STEP D log_edges(D x, D result) {
  result = select(x == 0.0, splat(-kInfD), result);
  result = select(x < 0.0, splat(kNanD), result);
  return select((x == kInfD) | (x != x), x, result);
}
OPENSPYRE_STEP D logd(D x) {
  const Logarithm l = log_parts(x);
  return log_edges(x, l.k * kLn2D + l.rest);
}
OPENSPYRE_STEP D log1pd(D u) {
  const D w = 1.0 + u;
  const D lost = u - (w - 1.0);  // what 1 + u rounded away
  const D result = logd(w) + lost / w;
  return select((u == kInfD) | (u == -1.0), logd(w), result);
}
OPENSPYRE_STEP D atand(D v) {  // v >= 0
  const L beyond = v > 2.41421356237309492, middle = v > 0.414213562373095034;
  const D upper = select(beyond, splat(-1.0), select(middle, v - 1.0, v));
  const D lower = select(beyond, v, select(middle, v + 1.0, splat(1.0)));
  const D base = select(beyond, splat(kHalfPi), select(middle, splat(kHalfPi / 2), D{}));
  const D t = upper / lower, q = t * t;
  const D rest =
      polynomial(q, -0.333333333333309177, 0.199999999977178763, -0.142857139294316231,
                 0.111110896009118432, -9.09025475182137215e-2, 7.68102909059972614e-2,
                 -6.55078819359091634e-2, 5.16837854678745614e-2, -2.72258091770572381e-2);
  return base + (t + t * q * rest);
}
OPENSPYRE_STEP D asin_near(D x) {  // |x| <= 1/2
  const D q = x * x;
  return x + x * q *
                 polynomial(q, 0.166666666666621606, 7.50000000359942162e-2, 4.4642852420329453e-2,
                            3.03821835715368016e-2, 2.23660480917394488e-2, 1.7441719105459923e-2,
                            1.31862828715330533e-2, 1.56825856920467118e-2, -2.95554790900039437e-3,
                            2.79219120477876212e-2);
}
OPENSPYRE_STEP D erf_near(D x) {  // |x| <= 1
  return x * polynomial(x * x, 1.12837916709549382, -0.376126389028086136, 0.112837916585487128,
                        -2.68661690505993239e-2, 5.22396719354389959e-3, -8.54793373651962989e-4,
                        1.20462612697797472e-4, -1.47950314006615863e-5, 1.53063731636387954e-6,
                        -1.04691103321463948e-7);
}
OPENSPYRE_STEP D erfc_far(D x) {  // 1/2 <= x <= 11
  const D t = (x - 2.0) / (x + 2.0);
  return expd(-(x * x)) *
         polynomial(t, 0.255395676323742679, -0.427185847135979062, 0.241658191774370535,
                    -7.89785960030022215e-2, 3.73296910122222298e-3, 6.99768405754607593e-3,
                    -8.48036999095078965e-4, -9.83283562115663784e-4, 4.83930078430166768e-5,
                    1.77482072388499045e-4, 1.49263023747160349e-5, -2.94546036318504254e-5);
}

// --- exponentials and logarithms

OPENSPYRE_STEP F exp2(F x) {
  return in_double(x, [](D v) {
    v = at_least(at_most(v, 300.0), -300.0);
    const D shifted = v + kMagicD;
    const L k = bits(shifted) - bits(splat(kMagicD));
    const D power = as_double((k + 1023) << 52);
    return power + power * exp_restd((v - (shifted - kMagicD)) * kLn2D);
  });
}
OPENSPYRE_STEP F expm1(F x) {
  return odd(in_double(x, [](D v) { return expm1d(at_least(at_most(v, 200.0), -200.0)); }), x);
}
OPENSPYRE_STEP F log(F x) {
  return in_double(x, [](D v) { return logd(v); });
}
OPENSPYRE_STEP F log2(F x) {
  return in_double(x, [](D v) {
    const Logarithm l = log_parts(v);
    return log_edges(v, l.k + l.rest * kLog2eD);
  });
}
OPENSPYRE_STEP F log10(F x) {
  return in_double(x, [](D v) { return logd(v) * kLog10eD; });
}
OPENSPYRE_STEP F log1p(F x) {
  return odd(in_double(x, [](D v) { return log1pd(v); }), x);
}

// x^y with the edges of C. The logarithm's error, times |y log x| <= 104, is below 1e-12.
OPENSPYRE_STEP F pow(F x, F y) {
  const F size = in_double(
      abs(x), y, [](D a, D b) { return expd(at_least(at_most(b * logd(a), 200.0), -200.0)); });
  const I whole_y = trunc(y) == y;  // infinities too
  const F halved = y * 0.5f;
  const I odd_y = whole_y & (trunc(halved) != halved) & (abs(y) < 16777216.0f);
  F result = select(odd_y, with_sign(size, x), size);
  result = select((x < 0.0f) & (x > -kInf) & ~whole_y & (y == y), splat(kNan), result);
  return select((x == 1.0f) | (y == 0.0f) | ((x == -1.0f) & (abs(y) == kInf)), splat(1.0f), result);
}

// --- the rarer activations

OPENSPYRE_STEP F softplus(F x) {
  return in_double(x, [](D v) {
    const D e = expd(at_least(-abs(v), -200.0));
    return select(v < 0.0, D{}, v) + log1pd(e);
  });
}
OPENSPYRE_STEP F mish(F x) {  // x tanh(softplus x) = x n / (n + 2), n = e^x (e^x + 2); -0 at -inf
  return in_double(x, [](D v) {
    const D low = at_least(v, -120.0);
    const D e = expd(at_most(low, 60.0));
    const D n = e * (e + 2.0);
    return low * (n / (n + 2.0));
  });
}
OPENSPYRE_STEP F erf(F x) {
  return odd(in_double(abs(x),
                       [](D v) {
                         const D far = 1.0 - erfc_far(at_least(at_most(v, 6.0), 1.0));
                         return select(v < 1.0, erf_near(v), select(v == v, far, v));
                       }),
             x);
}
OPENSPYRE_STEP F erfc(F x) {
  return in_double(x, [](D v) {
    const D far = erfc_far(at_least(at_most(abs(v), 11.0), 0.5));
    const D result = select(v < 0.0, 2.0 - far, far);
    return select(abs(v) < 0.5, 1.0 - erf_near(v), select(v == v, result, v));
  });
}
OPENSPYRE_STEP F erfinv(F x) {
  const F a = abs(x);
  const F result = in_double(a, [](D v) {
    const D w = -logd((1.0 - v) * (1.0 + v));
    const D near =
        polynomial(w, 0.88622692530993267, 0.232013675884298562, 1.15492397515696352e-2,
                   -2.33465753077200351e-3, -1.29056646043344495e-4, 4.80050438545151126e-5,
                   7.72946956303824553e-7, -2.54514290619655315e-7, -3.5632990583882895e-7,
                   1.15271712720368176e-7, -1.69239024470862133e-8, 1.40325847241321568e-9,
                   -6.42214576169602565e-11, 1.27328687137463671e-12);
    const D root = sqrt(w);
    const D far = polynomial(root, 2.29154234538998143e-4, 3.74744040929799421,
                             -6.01101688699187234, 5.5479807231612192, -2.91903265148663626,
                             0.962607781188772492, -0.203890380803087979, 2.70833462603162542e-2,
                             -2.06195905648850985e-3, 6.88602109241985733e-5);
    return v * select(w < 6.0, near, far);
  });
  return odd(select(a == 1.0f, splat(kInf), result), x);
}

// --- circular functions

// x - quadrant * pi/2 in -pi/4 .. pi/4, in float64; two bits of the quadrant.
struct Angle {
  D r[2];
  I quadrant;
};

// Payne and Hanek: |x| >= 2^23. x / 2 pi modulo 1 needs those bits of 1 / 2 pi that meet x's 24.
[[gnu::noinline]] static double reduce_huge(float x, int32_t* quadrant) {
  static const uint64_t kInverse[4] = {0x28BE60DB9391054A, 0x7F09D5F47D4D3770, 0x36D8A5664F10E410,
                                       0x7F9458EAF7AEF158};  // 1 / 2 pi, 256 bits after the point
  uint32_t code;
  __builtin_memcpy(&code, &x, 4);
  const uint32_t mantissa = (code & 0x7FFFFF) | 0x800000;
  const int shift = int((code >> 23) & 0xFF) - 150;  // |x| = mantissa * 2^shift, 0 <= shift < 105
  const int word = shift / 64, bit = shift % 64;
  uint64_t f[2];
  for (int i = 0; i < 2; ++i) {
    f[i] = kInverse[word + i] << bit;
    if (bit) f[i] |= kInverse[word + i + 1] >> (64 - bit);
  }
  const unsigned __int128 turns = (((unsigned __int128)f[0] << 64) | f[1]) * mantissa;
  const uint64_t top = uint64_t(turns >> 64);
  const uint64_t q = (top + (uint64_t(1) << 61)) >> 62;
  const double r = double(int64_t(top - (q << 62))) * 3.40612158008655459e-19;  // 2 pi / 2^64
  *quadrant = int32_t(code >> 31 ? -q : q) & 3;
  return code >> 31 ? -r : r;
}

OPENSPYRE_STEP Angle reduce(F x) {
  // Cody and Waite: k * the first two parts of pi/2, of 29 bits each, is exact for k < 2^24.
  constexpr double kFirst = 0x1.921fb54p+0, kSecond = 0x1.10b4611p-30,
                   kThird = 0x1.4c4c6628b80dcp-59;
  const Pair wide = widen(x);
  Angle angle;
  D k[2];
  for (int i = 0; i < 2; ++i) {
    const D v = i ? wide.high : wide.low;
    k[i] = (v * 0.636619772367581383 + kMagicD) - kMagicD;
    angle.r[i] = ((v - k[i] * kFirst) - k[i] * kSecond) - k[i] * kThird;
  }
  const I huge = abs(x) >= 8388608.0f;
  const F turns = narrow(k[0], k[1]);
  angle.quadrant = __builtin_convertvector(select(huge | (turns != turns), F{}, turns), I);
  if (__builtin_expect(any(huge), 0)) {
    for (int i = 0; i < kLanes; ++i) {
      const float one = x[i];
      if (!(one - one == 0.0f) || !huge[i]) continue;  // NaN and infinity give NaN by themselves
      int32_t quadrant;
      angle.r[i / kWide][i % kWide] = reduce_huge(one, &quadrant);
      angle.quadrant[i] = quadrant;
    }
  }
  return angle;
}
OPENSPYRE_STEP D sin_near(D r) {
  const D q = r * r;
  return r + r * q *
                 polynomial(q, -0.166666666666666644, 8.33333333333069934e-3,
                            -1.98412698363854345e-4, 2.75573159109390015e-6,
                            -2.50510923084313127e-8, 1.59153091830577249e-10);
}
OPENSPYRE_STEP D cos_near(D r) {
  const D q = r * r;
  return (1.0 - 0.5 * q) + q * q *
                               polynomial(q, 4.16666666666666652e-2, -1.38888888888872414e-3,
                                          2.4801587298532259e-5, -2.7557317151858863e-7,
                                          2.08761215346082091e-9, -1.13808681714356705e-11);
}
// sin(x + turn * pi/2)
OPENSPYRE_STEP F sine(F x, int32_t turn) {
  const Angle a = reduce(x);
  const F s = narrow(sin_near(a.r[0]), sin_near(a.r[1]));
  const F c = narrow(cos_near(a.r[0]), cos_near(a.r[1]));
  const I quadrant = a.quadrant + turn;
  const F result = select((quadrant & 1) != 0, c, s);
  return as_float(bits(result) ^ (quadrant & 2) << 30);
}
OPENSPYRE_STEP F sin(F x) { return select(x == 0.0f, x, sine(x, 0)); }
OPENSPYRE_STEP F cos(F x) { return sine(x, 1); }
OPENSPYRE_STEP F tan(F x) {
  const Angle a = reduce(x);
  const D s[2] = {sin_near(a.r[0]), sin_near(a.r[1])}, c[2] = {cos_near(a.r[0]), cos_near(a.r[1])};
  const F even = narrow(s[0] / c[0], s[1] / c[1]), other = narrow(-c[0] / s[0], -c[1] / s[1]);
  return select(x == 0.0f, x, select((a.quadrant & 1) != 0, other, even));
}
OPENSPYRE_STEP F asin(F x) {
  return odd(in_double(abs(x),
                       [](D v) {
                         const D far = kHalfPi - 2.0 * asin_near(sqrt((1.0 - v) * 0.5));
                         return select(v <= 0.5, asin_near(v), far);
                       }),
             x);
}
OPENSPYRE_STEP F acos(F x) {
  return in_double(x, [](D v) {
    const D far = 2.0 * asin_near(sqrt((1.0 - abs(v)) * 0.5));
    return select(abs(v) <= 0.5, kHalfPi - asin_near(v), select(v < 0.0, kPi - far, far));
  });
}
OPENSPYRE_STEP F atan(F x) {
  return odd(in_double(abs(x), [](D v) { return atand(v); }), x);
}
OPENSPYRE_STEP F atan2(F y, F x) {
  const F size = in_double(abs(y), x, [](D a, D v) {
    const D b = abs(v);
    D ratio = a / b;
    ratio = select((a == 0.0) & (b == 0.0), D{}, ratio);
    ratio = select((a == kInfD) & (b == kInfD), splat(1.0), ratio);
    const D angle = atand(ratio);
    return select(bits(v) < 0, kPi - angle, angle);
  });
  return odd(size, y);
}

// --- hyperbolic functions

OPENSPYRE_STEP F sinh(F x) {
  return odd(in_double(abs(x),
                       [](D v) {
                         const D e = expm1d(at_most(v, 200.0));
                         return 0.5 * (e + e / (e + 1.0));
                       }),
             x);
}
OPENSPYRE_STEP F cosh(F x) {
  return in_double(abs(x), [](D v) {
    const D e = expd(at_most(v, 200.0));
    return 0.5 * (e + 1.0 / e);
  });
}
OPENSPYRE_STEP F asinh(F x) {
  const F a = abs(x);
  const F result = in_double(a, [](D v) {
    const D q = v * v;
    return log1pd(v + q / (1.0 + sqrt(q + 1.0)));
  });
  return odd(select(a == kInf, a, result), x);
}
OPENSPYRE_STEP F acosh(F x) {
  return in_double(x, [](D v) {
    const D t = v - 1.0;
    return select(v < 1.0, splat(kNanD), log1pd(t + sqrt(t * (t + 2.0))));
  });
}
OPENSPYRE_STEP F atanh(F x) {
  return odd(in_double(abs(x), [](D v) { return 0.5 * log1pd((v + v) / (1.0 - v)); }), x);
}

// --- remainders, exact

OPENSPYRE_STEP F fmod(F x, F y) {
  const F a = abs(x), b = abs(y);
  F rest = in_double(a, b, [](D p, D q) {
    const D ratio = p / q;
    const D near = (ratio + kMagicD) - kMagicD;
    const D times = near - select(near > ratio, splat(1.0), D{});
    // times < 2^29 has at most 29 bits: the product and the difference are exact. A ratio just
    // below an integer may have been rounded up to it.
    const D r = p - times * q;
    return select(r < 0.0, r + q, r);
  });
  rest = select(a < b, a, rest);
  const I far = ~(a < b * 268435456.0f);
  if (__builtin_expect(any(far), 0)) {
    for (int i = 0; i < kLanes; ++i) {
      if (far[i]) rest[i] = __builtin_fmodf(a[i], b[i]);
    }
  }
  return select(rest != rest, rest, with_sign(rest, x));
}
OPENSPYRE_STEP F remainder(F x, F y) {
  const F m = fmod(x, y);
  return select((m != 0.0f) & ((y < 0.0f) != (m < 0.0f)), m + y, m);
}
// torch.div(rounding_mode="floor") and "trunc".
OPENSPYRE_STEP F floor_div(F x, F y) {
  const F m = fmod(x, y);
  F q = (x - m) / y;
  q = select((m != 0.0f) & ((y < 0.0f) != (m < 0.0f)), q - 1.0f, q);
  F result = floor(q);
  result = select(q - result > 0.5f, result + 1.0f, result);
  result = select(q == 0.0f, with_sign(F{}, x / y), result);
  return select(y == 0.0f, x / y, result);
}
OPENSPYRE_STEP F trunc_div(F x, F y) { return trunc(x / y); }

}  // namespace
}  // namespace openspyre::machine
