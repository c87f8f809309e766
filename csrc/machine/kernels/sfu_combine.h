// How values are combined: reductions, folds, scans. Private to the three sfu_<isa>.cpp.
#pragma once

#include "machine/kernels/sfu_ops.h"

namespace openspyre::machine {
namespace {

// One combination, of vectors and of single elements (the last of an array) with the same bits.
struct SumOf {
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return a + b;
  }
};
struct ProdOf {
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return a * b;
  }
};
struct MaxOf {
  OPENSPYRE_STEP F of(F a, F b) { return maximum(a, b); }
  OPENSPYRE_STEP float of(float a, float b) { return b > a || b != b ? b : a; }
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return b > a ? b : a;
  }
};
struct MinOf {
  OPENSPYRE_STEP F of(F a, F b) { return minimum(a, b); }
  OPENSPYRE_STEP float of(float a, float b) { return b < a || b != b ? b : a; }
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return b < a ? b : a;
  }
};
struct AnyOf {  // b: a mask, or 1 and 0; a: 1 and 0
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return a | (b & 1);
  }
};
struct AllOf {
  template <class V>
  OPENSPYRE_STEP V of(V a, V b) {
    return a & b & 1;
  }
};

template <class How, class V>
void combine_all(void* to, int64_t acc_step, const void* from, int64_t v_step, int64_t n,
                 int64_t rows) {
  using T = typename ElementOf<V>::type;
  char* acc = static_cast<char*>(to);
  const char* v = static_cast<const char*>(from);
  int64_t i = 0;
  if (acc_step == 0 && rows > 1) {
    for (; i + kStep<V> <= n; i += kStep<V>) {
      V sum = at<V>(acc, i);
      for (int64_t r = 0; r < rows; ++r) sum = How::of(sum, at<V>(v + r * v_step, i));
      put<V>(acc, i, sum);
    }
  }
  for (int64_t r = 0; r < rows; ++r, acc += acc_step, v += v_step) {
    int64_t k = i;
    for (; k + kStep<V> <= n; k += kStep<V>) put<V>(acc, k, How::of(at<V>(acc, k), at<V>(v, k)));
    for (; k < n; ++k) {
      T a, b;
      __builtin_memcpy(&a, acc + k * int64_t(sizeof(T)), sizeof(T));
      __builtin_memcpy(&b, v + k * int64_t(sizeof(T)), sizeof(T));
      a = How::of(a, b);
      __builtin_memcpy(acc + k * int64_t(sizeof(T)), &a, sizeof(T));
    }
  }
}
template <class How, class T>
void combine_serial(void* running, const void* v, void* y, int64_t n) {
  T a;
  __builtin_memcpy(&a, running, sizeof(T));
  for (int64_t i = 0; i < n; ++i) {
    T b;
    __builtin_memcpy(&b, static_cast<const T*>(v) + i, sizeof(T));
    a = How::of(a, b);
    __builtin_memcpy(static_cast<T*>(y) + i, &a, sizeof(T));
  }
  __builtin_memcpy(running, &a, sizeof(T));
}

// The better of two (value, index): NaN beats all, then the value, then the smaller index; an
// index of -1 stands for nothing seen yet.
template <class T, bool largest>
OPENSPYRE_STEP void better_one(void* acc, int64_t* at, const void* v, const int64_t* index,
                               int64_t i) {
  T a, b;
  int64_t ia, ib;
  __builtin_memcpy(&a, static_cast<T*>(acc) + i, sizeof(T));
  __builtin_memcpy(&b, static_cast<const T*>(v) + i, sizeof(T));
  __builtin_memcpy(&ia, at + i, 8);
  __builtin_memcpy(&ib, index + i, 8);
  const bool a_nan = a != a, b_nan = b != b;
  const bool wins = b_nan ? !a_nan : (largest ? b > a : b < a);
  const bool same = (a_nan & b_nan) | (a == b);
  if (!((ib >= 0) & ((ia < 0) | wins | (same & (ib < ia))))) return;
  __builtin_memcpy(static_cast<T*>(acc) + i, &b, sizeof(T));
  __builtin_memcpy(at + i, &ib, 8);
}
// Which of kWide pairs to take, given which values win or are the same; takes their indices.
OPENSPYRE_STEP HalfI better_index(HalfI wins, HalfI same, int64_t* at, const int64_t* index) {
  const L ia = load<L>(at), ib = load<L>(index);
  const L wins_l = __builtin_convertvector(wins, L), same_l = __builtin_convertvector(same, L);
  const L take = (ib >= 0) & ((ia < 0) | wins_l | (same_l & (ib < ia)));
  store(at, select(take, ib, ia));
  return __builtin_convertvector(take, HalfI);
}
template <class V, bool largest>
void better(void* acc, int64_t* at_, const void* v, const int64_t* index, int64_t n) {
  using T = typename ElementOf<V>::type;
  int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    for (; i + kLanes <= n; i += kLanes) {
      const V a = at<V>(acc, i), b = at<V>(v, i);
      const I a_nan = a != a, b_nan = b != b;
      const I wins = ((largest ? b > a : b < a) & ~a_nan) | (b_nan & ~a_nan);
      const I same = (a_nan & b_nan) | (a == b);
      HalfI half_wins[2], half_same[2], taken[2];
      __builtin_memcpy(half_wins, &wins, sizeof(I));
      __builtin_memcpy(half_same, &same, sizeof(I));
      for (int h = 0; h < 2; ++h) {
        taken[h] =
            better_index(half_wins[h], half_same[h], at_ + i + h * kWide, index + i + h * kWide);
      }
      I take;
      __builtin_memcpy(&take, taken, sizeof(I));
      put<V>(acc, i, select(take, b, a));
    }
  }
  for (; i < n; ++i) better_one<T, largest>(acc, at_, v, index, i);
}

OPENSPYRE_STEP float select(bool mask, float a, float b) { return mask ? a : b; }
template <class V>
OPENSPYRE_STEP void welford_step(V& mean, V& m2, V& count, V x) {
  count = count + 1.0f;
  const V d = x - mean;
  mean = mean + d / count;
  m2 = m2 + d * (x - mean);
}
template <class V>
OPENSPYRE_STEP void chan_step(V& ma, V& sa, V& na, V mb, V sb, V nb) {
  const V n = na + nb;
  const V d = mb - ma;
  const V mean = ma + d * (nb / n);
  const V m2 = (sa + sb) + (d * d) * ((na * nb) / n);
  const auto none_a = na == 0.0f, none_b = nb == 0.0f;  // both: the other side's zeros
  ma = select(none_b, ma, select(none_a, mb, mean));
  sa = select(none_b, sa, select(none_a, sb, m2));
  na = n;
}
OPENSPYRE_STEP float element(const float* p, int64_t i) {
  float x;
  __builtin_memcpy(&x, p + i, 4);
  return x;
}
void welford(float* const a[3], const float* v, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F mean = at<F>(a[0], i), m2 = at<F>(a[1], i), count = at<F>(a[2], i);
    welford_step(mean, m2, count, at<F>(v, i));
    put<F>(a[0], i, mean);
    put<F>(a[1], i, m2);
    put<F>(a[2], i, count);
  }
  for (; i < n; ++i) {
    float part[3] = {element(a[0], i), element(a[1], i), element(a[2], i)};
    welford_step(part[0], part[1], part[2], element(v, i));
    for (int k = 0; k < 3; ++k) __builtin_memcpy(a[k] + i, &part[k], 4);
  }
}
void chan(float* const a[3], const float* const b[3], int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    F mean = at<F>(a[0], i), m2 = at<F>(a[1], i), count = at<F>(a[2], i);
    chan_step(mean, m2, count, at<F>(b[0], i), at<F>(b[1], i), at<F>(b[2], i));
    put<F>(a[0], i, mean);
    put<F>(a[1], i, m2);
    put<F>(a[2], i, count);
  }
  for (; i < n; ++i) {
    float part[3] = {element(a[0], i), element(a[1], i), element(a[2], i)};
    chan_step(part[0], part[1], part[2], element(b[0], i), element(b[1], i), element(b[2], i));
    for (int k = 0; k < 3; ++k) __builtin_memcpy(a[k] + i, &part[k], 4);
  }
}

template <class How, class V>
constexpr void fill_simple(sfu::Isa& t, Combine combine, Register type) {
  t.combine[int(combine)][int(type)] = combine_all<How, V>;
  t.serial[int(combine)][int(type)] = combine_serial<How, typename ElementOf<V>::type>;
}
template <class V>
constexpr void fill_numbers(sfu::Isa& t, Register type) {
  fill_simple<SumOf, V>(t, Combine::Sum, type);
  fill_simple<ProdOf, V>(t, Combine::Prod, type);
  fill_simple<MaxOf, V>(t, Combine::Max, type);
  fill_simple<MinOf, V>(t, Combine::Min, type);
  t.arg[0][int(type)] = better<V, true>;
  t.arg[1][int(type)] = better<V, false>;
}

constexpr sfu::Isa make_isa() {
  sfu::Isa t{};
  fill_ops(t);
  for (int i = 0; i < sfu::kCardFormats; ++i) {
    t.decode[i] = kDecode[i];
    t.encode[i] = kEncode[i];
  }
  t.truth[0] = encode_truth<uint8_t>;
  t.truth[1] = encode_truth<uint16_t>;
  t.truth[2] = encode_truth<uint32_t>;
  t.truth[3] = encode_truth<uint64_t>;
  fill_numbers<F>(t, Register::F32);
  fill_numbers<I>(t, Register::I32);
  fill_numbers<L>(t, Register::I64);
  fill_simple<AnyOf, I>(t, Combine::Any, Register::Bool);
  fill_simple<AllOf, I>(t, Combine::All, Register::Bool);
  t.welford = welford;
  t.chan = chan;
  return t;
}

}  // namespace
}  // namespace openspyre::machine
