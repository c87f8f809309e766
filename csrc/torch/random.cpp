// Random operations over the device's Philox generator, drawn on the host and copied to the card.
//
// Element i of the contiguous logical order takes block offset + i / 4 of the generator's sequence
// (offset + i / 2 where an element needs 64 bits: float64 and integer ranges beyond 32 bits), so
// the numbers depend on neither threads nor strides nor layout. 16-bit tensors are drawn in float32
// and rounded once, by the copy to the card. The CPU's generator is never touched.
// Every operation here counts as a fallback. Argument checks are those of the CPU, from
// ATen/native/DistributionTemplates.h.

#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "machine/philox.h"
#include "torch/copy.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/fallback.h"
#include "torch/generator.h"
#include "torch/native_ops.h"

namespace openspyre::device {
namespace {

namespace templates = at::native::templates;
using at::Tensor;
using machine::half_open_unit;
using machine::open_unit;
using machine::philox_block;
using machine::PhiloxBlock;
using MaybeGenerator = std::optional<at::Generator>;

// ---- Drawing ----------------------------------------------------------------------------------

// Significant bits that a drawn 16-bit value may have and still be exact on the card: float16 lives
// there with 10 (DLFloat16) or 11, bfloat16 reads back with 8. The same in both numerics modes, so
// that a seed means the same numbers.
int exact_bits(at::ScalarType type) {
  if (type == at::kHalf) return 10;
  if (type == at::kBFloat16) return 8;
  return 24;
}

// The largest value of `bits` significant bits that is not above `value`: a half-open interval must
// not reach its end by rounding.
float floor_to_bits(float value, int bits) {
  if (bits >= 24 || !std::isfinite(value)) return value;
  const uint32_t step = 1u << (24 - bits);
  uint32_t code = std::bit_cast<uint32_t>(value);
  const bool inexact = (code & (step - 1)) != 0;
  code &= ~(step - 1);
  if (inexact && value < 0) code += step;
  return std::bit_cast<float>(code);
}

struct Source {
  uint64_t seed, offset;
};

Source reserve(const Tensor& self, const MaybeGenerator& generator, uint64_t blocks) {
  const auto [seed, offset] = generator_for(generator, self.device()).reserve(blocks);
  return {seed, offset};
}

// A generator of the device must not fill a CPU tensor.
void check_self(const Tensor& self, const MaybeGenerator& generator) {
  TORCH_CHECK(self.is_privateuseone(), "Expected a '", self.device().type(),
              "' device type for generator but found '",
              generator ? generator->device().type() : kSpyre, "'");
}

constexpr int64_t kGrain = 4096;  // blocks a thread takes at least

// out[i] = draw(word i), one 32-bit word an element.
template <class T, class Draw>
void fill_words(Tensor& host, Source source, const Draw& draw) {
  T* out = host.data_ptr<T>();
  const int64_t n = host.numel();
  at::parallel_for(0, (n + 3) / 4, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const PhiloxBlock block = philox_block(source.seed, source.offset + static_cast<uint64_t>(b));
      const int64_t count = std::min<int64_t>(4, n - 4 * b);
      for (int64_t k = 0; k < count; ++k) out[4 * b + k] = draw(block[static_cast<size_t>(k)]);
    }
  });
}

uint64_t double_word(const PhiloxBlock& block, int64_t k) {
  return block[static_cast<size_t>(2 * k)] |
         static_cast<uint64_t>(block[static_cast<size_t>(2 * k + 1)]) << 32;
}

// out[i] = draw(word i), one 64-bit word an element.
template <class T, class Draw>
void fill_double_words(Tensor& host, Source source, const Draw& draw) {
  T* out = host.data_ptr<T>();
  const int64_t n = host.numel();
  at::parallel_for(0, (n + 1) / 2, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const PhiloxBlock block = philox_block(source.seed, source.offset + static_cast<uint64_t>(b));
      const int64_t count = std::min<int64_t>(2, n - 2 * b);
      for (int64_t k = 0; k < count; ++k) out[2 * b + k] = draw(double_word(block, k));
    }
  });
}

at::ScalarType drawn_type(at::ScalarType type) { return is_16bit_float(type) ? at::kFloat : type; }

Tensor host_for(const Tensor& self) {
  return at::empty(self.sizes(), at::TensorOptions().dtype(drawn_type(self.scalar_type())));
}

uint64_t blocks_for(const Tensor& self, int per_block) {
  return (static_cast<uint64_t>(self.numel()) + static_cast<uint64_t>(per_block) - 1) /
         static_cast<uint64_t>(per_block);
}

// The dtype of a tensor that `op` fills with floating draws; other dtypes are refused by name.
at::ScalarType floating_type(const char* op, const Tensor& self) {
  const at::ScalarType type = self.scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(type == at::kFloat || type == at::kDouble || is_16bit_float(type),
                              "\"", op, "\" not implemented for '", c10::toString(type), "' (",
                              describe(self), ")");
  return type;
}

// Draws a floating tensor: `draw` takes a uint32_t word for 16- and 32-bit dtypes, and a uint64_t
// word for float64, and gives a double.
template <class Draw>
void draw_floating(const char* op, const Tensor& self, const MaybeGenerator& generator,
                   const Draw& draw) {
  check_self(self, generator);
  const at::ScalarType type = floating_type(op, self);
  FallbackScope scope(op, {});
  scope.on(self.device());
  Tensor host = host_for(self);
  if (type == at::kDouble) {
    fill_double_words<double>(host, reserve(self, generator, blocks_for(self, 2)), draw);
  } else {
    fill_words<float>(host, reserve(self, generator, blocks_for(self, 4)), draw);
  }
  from_host(host, self);
  scope.moved_to_device(self);
}

// Draws any real dtype from one 32-bit word an element; `draw` gives a double, saturated to T.
template <class Draw>
void draw_any(const char* op, const Tensor& self, const MaybeGenerator& generator,
              const Draw& draw) {
  check_self(self, generator);
  FallbackScope scope(op, {});
  scope.on(self.device());
  Tensor host = host_for(self);
  AT_DISPATCH_V2(
      host.scalar_type(), "random on spyre", AT_WRAP([&] {
        const Source source = reserve(self, generator, blocks_for(self, 4));
        fill_words<scalar_t>(host, source, [&](uint32_t word) {
          const double value = draw(word);
          if constexpr (std::is_integral_v<scalar_t> && !std::is_same_v<scalar_t, bool>) {
            constexpr auto top = std::numeric_limits<scalar_t>::max();
            return value >= static_cast<double>(top) ? top : static_cast<scalar_t>(value);
          } else {
            return static_cast<scalar_t>(value);
          }
        });
      }),
      AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool);
  from_host(host, self);
  scope.moved_to_device(self);
}

// ---- Normal -----------------------------------------------------------------------------------

// Box and Muller: two uniforms make two normals.
std::pair<double, double> normal_pair(double u1, double u2) {
  const double radius = std::sqrt(-2.0 * std::log(u1));
  const double angle = 2.0 * std::numbers::pi * u2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}
std::pair<float, float> normal_pair(float u1, float u2) {
  const float radius = std::sqrt(-2.0f * std::log(u1));
  const float angle = 2.0f * std::numbers::pi_v<float> * u2;
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

// out[i] = finish(standard normal i). A block gives four floats or two doubles.
template <class Finish>
void fill_normal(Tensor& host, Source source, const Finish& finish) {
  const int64_t n = host.numel();
  if (host.scalar_type() == at::kDouble) {
    double* out = host.data_ptr<double>();
    at::parallel_for(0, (n + 1) / 2, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        const PhiloxBlock block =
            philox_block(source.seed, source.offset + static_cast<uint64_t>(b));
        const auto [x, y] =
            normal_pair(open_unit(double_word(block, 0)), half_open_unit(double_word(block, 1)));
        out[2 * b] = finish(x);
        if (2 * b + 1 < n) out[2 * b + 1] = finish(y);
      }
    });
    return;
  }
  float* out = host.data_ptr<float>();
  at::parallel_for(0, (n + 3) / 4, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const PhiloxBlock block = philox_block(source.seed, source.offset + static_cast<uint64_t>(b));
      // As a float the first uniform lies in (0, 1]: its logarithm is finite.
      const auto [x0, x1] =
          normal_pair(static_cast<float>(open_unit(block[0])), half_open_unit(block[1]));
      const auto [x2, x3] =
          normal_pair(static_cast<float>(open_unit(block[2])), half_open_unit(block[3]));
      const float values[] = {x0, x1, x2, x3};
      const int64_t count = std::min<int64_t>(4, n - 4 * b);
      for (int64_t k = 0; k < count; ++k) out[4 * b + k] = static_cast<float>(finish(values[k]));
    }
  });
}

template <class Finish>
void draw_normal(const char* op, const Tensor& self, const MaybeGenerator& generator,
                 const Finish& finish) {
  check_self(self, generator);
  const at::ScalarType type = floating_type(op, self);
  FallbackScope scope(op, {});
  scope.on(self.device());
  Tensor host = host_for(self);
  fill_normal(host, reserve(self, generator, blocks_for(self, type == at::kDouble ? 2 : 4)),
              finish);
  from_host(host, self);
  scope.moved_to_device(self);
}

// Whether the card draws: the same numbers from the same place of the generator's sequence, but for
// roundings. Arguments have been checked.
bool on_card(const char* name, const char* overload, torch::jit::Stack arguments) {
  return call_native(name, overload, std::move(arguments)).has_value();
}

// ---- Kernels in the form that DistributionTemplates.h calls after its checks ------------------

template <class>
struct NormalKernel {
  void operator()(const Tensor& self, double mean, double std, const MaybeGenerator& gen) const {
    if (on_card("aten::normal_", "", {self, mean, std, gen})) return;
    draw_normal("aten::normal_", self, gen, [=](double x) { return x * std + mean; });
  }
};

template <class>
struct LogNormalKernel {
  void operator()(at::TensorIterator& iter, double mean, double std,
                  const MaybeGenerator& gen) const {
    if (on_card("aten::log_normal_", "", {iter.tensor(0), mean, std, gen})) return;
    draw_normal("aten::log_normal_", iter.tensor(0), gen,
                [=](double x) { return std::exp(x * std + mean); });
  }
};

template <class>
struct UniformKernel {
  void operator()(at::TensorIterator& iter, double from, double to,
                  const MaybeGenerator& gen) const {
    const Tensor& self = iter.tensor(0);
    if (on_card("aten::uniform_", "", {self, from, to, gen})) return;
    const int bits = exact_bits(self.scalar_type());
    struct Draw {
      double from, to;
      int bits;
      double operator()(uint64_t word) const {
        const double value = half_open_unit(word) * (to - from) + from;
        return value < to ? value : from;
      }
      double operator()(uint32_t word) const {
        const auto low = static_cast<float>(from), high = static_cast<float>(to);
        const float value = floor_to_bits(half_open_unit(word) * (high - low) + low, bits);
        return value < low || value >= high ? low : value;
      }
    };
    draw_floating("aten::uniform_", self, gen, Draw{from, to, bits});
  }
};

template <class>
struct ExponentialKernel {
  void operator()(at::TensorIterator& iter, double lambda, const MaybeGenerator& gen) const {
    if (on_card("aten::exponential_", "", {iter.tensor(0), lambda, gen})) return;
    draw_floating("aten::exponential_", iter.tensor(0), gen,
                  [=](auto word) { return -std::log(open_unit(word)) / lambda; });
  }
};

template <class>
struct CauchyKernel {
  void operator()(at::TensorIterator& iter, double median, double sigma,
                  const MaybeGenerator& gen) const {
    if (on_card("aten::cauchy_", "", {iter.tensor(0), median, sigma, gen})) return;
    draw_floating("aten::cauchy_", iter.tensor(0), gen, [=](auto word) {
      return median + sigma * std::tan(std::numbers::pi * (open_unit(word) - 0.5));
    });
  }
};

template <class>
struct GeometricKernel {
  void operator()(at::TensorIterator& iter, double p, const MaybeGenerator& gen) const {
    if (on_card("aten::geometric_", "", {iter.tensor(0), p, gen})) return;
    const double scale = 1.0 / std::log1p(-p);
    draw_any("aten::geometric_", iter.tensor(0), gen, [=](uint32_t word) {
      return std::max(1.0, std::ceil(std::log(open_unit(word)) * scale));
    });
  }
};

// Integers base + [0, range); range 0 stands for 2^64. (word * range) >> bits keeps the probability
// of each value within 2^-16 of even: 32-bit words serve ranges up to 2^16, 64-bit words the rest.
void draw_range(const char* op, const Tensor& self, uint64_t range, int64_t base,
                const MaybeGenerator& gen) {
  check_self(self, gen);
  FallbackScope scope(op, {});
  scope.on(self.device());
  Tensor host = host_for(self);
  const int bits = exact_bits(self.scalar_type());
  const bool narrow = range != 0 && range <= (1u << 16);
  const Source source = reserve(self, gen, blocks_for(self, narrow ? 4 : 2));
  AT_DISPATCH_V2(host.scalar_type(), "random on spyre", AT_WRAP([&] {
                   const auto place = [&](uint64_t index) {
                     const auto value = static_cast<int64_t>(static_cast<uint64_t>(base) + index);
                     if constexpr (std::is_same_v<scalar_t, float>) {
                       return floor_to_bits(static_cast<float>(value), bits);
                     } else {
                       return static_cast<scalar_t>(value);
                     }
                   };
                   if (narrow) {
                     fill_words<scalar_t>(
                         host, source, [&](uint32_t word) { return place((word * range) >> 32); });
                   } else {
                     fill_double_words<scalar_t>(host, source, [&](uint64_t word) {
                       if (range == 0) return place(word);
                       __extension__ using Wide = unsigned __int128;
                       return place(static_cast<uint64_t>((static_cast<Wide>(word) * range) >> 64));
                     });
                   }
                 }),
                 AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool);
  from_host(host, self);
  scope.moved_to_device(self);
}

template <class>
struct RandomFromToKernel {
  void operator()(at::TensorIterator& iter, uint64_t range, int64_t base,
                  const MaybeGenerator& gen) const {
    int64_t end = 0;
    if (range < uint64_t{1} << 63 &&
        !__builtin_add_overflow(base, static_cast<int64_t>(range), &end) &&
        on_card("aten::random_", "from", {iter.tensor(0), base, end, gen}))
      return;
    draw_range("aten::random_.from", iter.tensor(0), range, base, gen);
  }
  void operator()(at::TensorIterator& iter, const MaybeGenerator& gen) const {
    TORCH_CHECK(iter.dtype() == at::kLong || iter.dtype() == at::kDouble ||
                    iter.dtype() == at::kFloat || iter.dtype() == at::kBFloat16,
                "random_ handles only int64, double, float and bfloat16 over the whole range");
    draw_range("aten::random_.from", iter.tensor(0), 0, 0, gen);
  }
};

template <class>
struct RandomKernel {
  void operator()(at::TensorIterator& iter, const MaybeGenerator& gen) const {
    // [0, largest value], and for floating dtypes [0, 2^digits]: every integer is exact there.
    const Tensor& self = iter.tensor(0);
    if (on_card("aten::random_", "", {self, gen})) return;
    uint64_t range = 0;
    AT_DISPATCH_V2(self.scalar_type(), "random_", AT_WRAP([&] {
                     if constexpr (std::is_same_v<scalar_t, bool>) {
                       range = 2;
                     } else if constexpr (std::is_integral_v<scalar_t>) {
                       range = static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;
                     } else {
                       range = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1;
                     }
                   }),
                   AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kHalf,
                   at::kBFloat16, at::kBool);
    draw_range("aten::random_", self, range, 0, gen);
  }
};

template <class>
struct BernoulliScalarKernel {
  void operator()(const Tensor& self, double p, const MaybeGenerator& gen) const {
    if (on_card("aten::bernoulli_", "float", {self, p, gen})) return;
    draw_any("aten::bernoulli_.float", self, gen,
             [=](uint32_t word) { return open_unit(word) < p ? 1.0 : 0.0; });
  }
};

template <class>
struct BernoulliTensorKernel {
  void operator()(const Tensor& self, const Tensor& p, const MaybeGenerator& gen) const {
    check_self(self, gen);
    TORCH_CHECK(at::isFloatingType(p.scalar_type()),
                "expected probabilities tensor to have floating type, got ", p.scalar_type());
    TORCH_CHECK(p.device() == self.device() || (p.is_cpu() && p.dim() == 0),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                self.device(), " and ", p.device(), "! (aten::bernoulli_.Tensor, ", describe(p),
                ")");
    FallbackScope scope("aten::bernoulli_.Tensor", {p});
    scope.on(self.device());
    const Tensor on_host = (p.is_cpu() ? p : to_host(p)).to(at::kDouble);
    const Tensor chances = on_host.expand(self.sizes()).contiguous();
    const double* chance = chances.data_ptr<double>();
    for (int64_t i = 0; i < chances.numel(); ++i) {
      TORCH_CHECK(0 <= chance[i] && chance[i] <= 1,
                  "bernoulli_ expects p to be in [0, 1], but got p=", chance[i]);
    }
    Tensor host = at::empty(self.sizes(), at::TensorOptions().dtype(at::kDouble));
    // The uniforms first, then the comparison in place.
    fill_words<double>(host, reserve(self, gen, blocks_for(self, 4)),
                       [](uint32_t word) { return open_unit(word); });
    double* value = host.data_ptr<double>();
    for (int64_t i = 0; i < host.numel(); ++i) value[i] = value[i] < chance[i] ? 1.0 : 0.0;
    from_host(host.to(drawn_type(self.scalar_type())), self);
    scope.moved_to_device(self);
  }
};

// ---- Operations -------------------------------------------------------------------------------

Tensor& normal_(Tensor& self, double mean, double std, MaybeGenerator gen) {
  return templates::normal_impl_<NormalKernel, Generator>(self, mean, std, std::move(gen));
}
Tensor& log_normal_(Tensor& self, double mean, double std, MaybeGenerator gen) {
  return templates::log_normal_impl_<LogNormalKernel, Generator>(self, mean, std, std::move(gen));
}
Tensor& uniform_(Tensor& self, double from, double to, MaybeGenerator gen) {
  return templates::uniform_impl_<UniformKernel, Generator>(self, from, to, std::move(gen));
}
Tensor& exponential_(Tensor& self, double lambda, MaybeGenerator gen) {
  return templates::exponential_impl_<ExponentialKernel, Generator>(self, lambda, std::move(gen));
}
Tensor& cauchy_(Tensor& self, double median, double sigma, MaybeGenerator gen) {
  return templates::cauchy_impl_<CauchyKernel, Generator>(self, median, sigma, std::move(gen));
}
Tensor& geometric_(Tensor& self, double p, MaybeGenerator gen) {
  return templates::geometric_impl_<GeometricKernel, Generator>(self, p, std::move(gen));
}
Tensor& random_(Tensor& self, MaybeGenerator gen) {
  return templates::random_impl<RandomKernel, Generator>(self, std::move(gen));
}
Tensor& random_from(Tensor& self, int64_t from, std::optional<int64_t> to, MaybeGenerator gen) {
  return templates::random_from_to_impl<RandomFromToKernel, Generator>(self, from, to,
                                                                       std::move(gen));
}
Tensor& random_to(Tensor& self, int64_t to, MaybeGenerator gen) {
  return random_from(self, 0, to, std::move(gen));
}
Tensor& bernoulli_scalar(Tensor& self, double p, MaybeGenerator gen) {
  return templates::bernoulli_impl_<BernoulliScalarKernel, Generator>(self, p, std::move(gen));
}
Tensor& bernoulli_tensor(Tensor& self, const Tensor& p, MaybeGenerator gen) {
  return templates::bernoulli_impl_<BernoulliTensorKernel, Generator>(self, p, std::move(gen));
}
Tensor& bernoulli_out(const Tensor& self, MaybeGenerator gen, Tensor& out) {
  return templates::bernoulli_out_impl<BernoulliTensorKernel, Generator>(out, self, std::move(gen));
}

// A permutation of [0, n) by Fisher and Yates, one 64-bit word a step.
Tensor& randperm_out(int64_t n, MaybeGenerator gen, Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  check_self(out, gen);
  const at::ScalarType type = out.scalar_type();
  // Every value below n must be a value of its own; 16-bit tensors on the card hold 10 or 8 bits.
  const int64_t largest = is_16bit_float(type)  ? (int64_t{1} << exact_bits(type)) + 1
                          : type == at::kFloat  ? (int64_t{1} << 24) + 1
                          : type == at::kDouble ? (int64_t{1} << 53) + 1
                          : type == at::kByte   ? 256
                          : type == at::kChar   ? 128
                          : type == at::kShort  ? 32768
                          : type == at::kInt    ? int64_t{1} << 31
                          : type == at::kLong   ? std::numeric_limits<int64_t>::max()
                                                : 0;
  TORCH_CHECK_NOT_IMPLEMENTED(largest != 0, "\"randperm\" not implemented for '",
                              c10::toString(type), "'");
  TORCH_CHECK(n <= largest, "n cannot be greater than ", largest, " for ", c10::toString(type),
              " type, got ", n);
  FallbackScope scope("aten::randperm.generator_out", {});
  scope.on(out.device());
  out.resize_({n});
  if (n == 0) return out;
  const Source source = reserve(out, gen, (static_cast<uint64_t>(n) + 1) / 2);
  Tensor host = at::empty({n}, at::TensorOptions().dtype(at::kLong));
  auto* order = host.data_ptr<int64_t>();
  std::iota(order, order + n, int64_t{0});
  __extension__ using Wide = unsigned __int128;
  for (int64_t i = 0; i + 1 < n; ++i) {
    const uint64_t step = static_cast<uint64_t>(i);
    const uint64_t word = double_word(philox_block(source.seed, source.offset + step / 2), i % 2);
    const auto chosen =
        static_cast<int64_t>((static_cast<Wide>(word) * static_cast<uint64_t>(n - i)) >> 64);
    std::swap(order[i], order[i + chosen]);
  }
  from_host(host.to(drawn_type(type)), out);
  scope.moved_to_device(out);
  return out;
}

// Category indices for each row of `weights` (rows x categories), in the order drawn.
void draw_categories(const Tensor& weights, Tensor& drawn, bool replacement, Source source) {
  const int64_t rows = weights.size(0), categories = weights.size(1), samples = drawn.size(1);
  const double* weight = weights.data_ptr<double>();
  auto* out = drawn.data_ptr<int64_t>();
  std::vector<double> key(static_cast<size_t>(categories));
  std::vector<int64_t> order(static_cast<size_t>(categories));
  for (int64_t r = 0; r < rows; ++r, weight += categories, out += samples) {
    double total = 0;
    int64_t possible = 0;
    for (int64_t c = 0; c < categories; ++c) {
      TORCH_CHECK(std::isfinite(weight[c]) && weight[c] >= 0,
                  "probability tensor contains either `inf`, `nan` or element < 0");
      total += weight[c];
      possible += weight[c] > 0;
      key[static_cast<size_t>(c)] = total;
    }
    TORCH_CHECK(total > 0, "invalid multinomial distribution (sum of probabilities <= 0)");
    if (replacement) {
      for (int64_t s = 0; s < samples; ++s) {
        const auto i = static_cast<uint64_t>(r * samples + s);
        const uint64_t word = double_word(philox_block(source.seed, source.offset + i / 2),
                                          static_cast<int64_t>(i % 2));
        const double target = half_open_unit(word) * total;
        auto found = std::upper_bound(key.begin(), key.end(), target) - key.begin();
        // `target` can round up to `total`: the last category that has a weight.
        found = std::min<int64_t>(found, categories - 1);
        while (weight[found] == 0) --found;
        out[s] = found;
      }
      continue;
    }
    TORCH_CHECK(possible >= samples,
                "invalid multinomial distribution (with replacement=False, "
                "not enough non-negative category to sample)");
    // Exponential clocks: the category whose clock of rate `weight` rings first is drawn first.
    for (int64_t c = 0; c < categories; ++c) {
      const auto i = static_cast<uint64_t>(r * categories + c);
      const uint64_t word = double_word(philox_block(source.seed, source.offset + i / 2),
                                        static_cast<int64_t>(i % 2));
      key[static_cast<size_t>(c)] = weight[c] > 0 ? -std::log(open_unit(word)) / weight[c]
                                                  : std::numeric_limits<double>::infinity();
    }
    std::iota(order.begin(), order.end(), int64_t{0});
    std::partial_sort(
        order.begin(), order.begin() + samples, order.end(), [&](int64_t a, int64_t b) {
          const double x = key[static_cast<size_t>(a)], y = key[static_cast<size_t>(b)];
          return x != y ? x < y : a < b;
        });
    std::copy(order.begin(), order.begin() + samples, out);
  }
}

Tensor multinomial_on_host(const Tensor& self, int64_t samples, bool replacement,
                           const MaybeGenerator& gen) {
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ", self.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(replacement || samples <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  TORCH_CHECK(categories <= (int64_t{1} << 24), "number of categories cannot exceed 2^24");
  check_self(self, gen);
  const int64_t rows = self.dim() == 2 ? self.size(0) : 1;
  Tensor drawn = at::empty({rows, samples}, at::TensorOptions().dtype(at::kLong));
  if (self.numel() != 0) {
    const Tensor weights = to_host(self).to(at::kDouble).reshape({rows, categories}).contiguous();
    const auto words = static_cast<uint64_t>(rows * (replacement ? samples : categories));
    draw_categories(weights, drawn, replacement, reserve(self, gen, (words + 1) / 2));
  } else {
    TORCH_CHECK(rows == 0, "invalid multinomial distribution (sum of probabilities <= 0)");
  }
  return self.dim() == 2 ? drawn : drawn.squeeze(0);
}

Tensor multinomial(const Tensor& self, int64_t samples, bool replacement, MaybeGenerator gen) {
  FallbackScope scope("aten::multinomial", {self});
  Tensor result = to_device(multinomial_on_host(self, samples, replacement, gen), self.device());
  scope.moved_to_device(result);
  return result;
}

Tensor& multinomial_out(const Tensor& self, int64_t samples, bool replacement, MaybeGenerator gen,
                        Tensor& out) {
  TORCH_CHECK(out.device() == self.device(),
              "multinomial arguments must have the same device, got ", self.device(), " and ",
              out.device());
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "multinomial expects Long tensor out, got: ", out.scalar_type());
  FallbackScope scope("aten::multinomial.out", {self});
  const Tensor drawn = multinomial_on_host(self, samples, replacement, gen);
  out.resize_(drawn.sizes());
  from_host(drawn, out);
  scope.moved_to_device(out);
  return out;
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  TORCH_CHECK(0 <= p && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (auto results = call_native("aten::native_dropout", "", {input, p, train}))
    return {(*results)[0].toTensor(), (*results)[1].toTensor()};
  FallbackScope scope("aten::native_dropout", {input});
  Tensor mask = at::empty(input.sizes(), at::TensorOptions().dtype(at::kBool));
  const bool drop = train.value_or(true);
  if (drop) {
    fill_words<bool>(mask, reserve(input, std::nullopt, blocks_for(input, 4)),
                     [=](uint32_t word) { return open_unit(word) < 1.0 - p; });
  } else {
    mask.fill_(true);
  }
  const at::ScalarType type = input.scalar_type();
  const Tensor values = to_host(input, drawn_type(type));
  const double scale = p == 1.0 ? 0.0 : 1.0 / (1.0 - p);
  const Tensor kept = drop ? values.mul(mask).mul_(scale) : values;
  Tensor output = to_device(kept, input.device(), type);
  Tensor mask_on_device = to_device(mask, input.device());
  scope.moved_to_device(output);
  scope.moved_to_device(mask_on_device);
  return {output, mask_on_device};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("normal_", &normal_);
  m.impl("log_normal_", &log_normal_);
  m.impl("uniform_", &uniform_);
  m.impl("exponential_", &exponential_);
  m.impl("cauchy_", &cauchy_);
  m.impl("geometric_", &geometric_);
  m.impl("random_", &random_);
  m.impl("random_.from", &random_from);
  m.impl("random_.to", &random_to);
  m.impl("bernoulli_.float", &bernoulli_scalar);
  m.impl("bernoulli_.Tensor", &bernoulli_tensor);
  m.impl("bernoulli.out", &bernoulli_out);
  m.impl("randperm.generator_out", &randperm_out);
  m.impl("multinomial", &multinomial);
  m.impl("multinomial.out", &multinomial_out);
  m.impl("native_dropout", &native_dropout);
}

}  // namespace
}  // namespace openspyre::device
