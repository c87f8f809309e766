// The fast twin of `openspyre/layout.py`: pure integer arithmetic, no memory of the card is
// touched.
//
// Every layout is brought to one form: a mixed radix of the linear element space. The device
// dimensions with a positive stride, sorted, are its digits; they group into axes, and within an
// axis each stride is a multiple of the one below.
#include "machine/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace openspyre::machine {
namespace {

// The DMA's descriptors carry at most this many dim-order entries (compiler.md 2.1); a trailing
// -1 of a sparse order takes one of them.
constexpr size_t kMaxOrder = 6;

std::string dims_text(Dims dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

[[noreturn]] void fail(Dims host_size, Format format, const std::string& rule) {
  throw std::invalid_argument("layout of " + dims_text(host_size) + " " + format_name(format) +
                              ": " + rule);
}

int64_t product(Dims dims, Dims host_size, Format format) {
  // A zero anywhere makes the product zero, whatever the other sizes are.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  int64_t total = 1;
  for (int64_t size : dims) {
    if (__builtin_mul_overflow(total, size, &total))
      fail(host_size, format, "the sizes " + dims_text(dims) + " exceed 64-bit addresses");
  }
  return total;
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void check_sizes(Dims host_size, Format format) {
  for (int64_t size : host_size)
    if (size < 0) fail(host_size, format, "sizes must not be negative");
}

// Dense row-major strides. Zero sizes count as one, as in PyTorch.
std::vector<int64_t> dense_strides(Dims host_size, Format format) {
  std::vector<int64_t> strides(host_size.size());
  int64_t step = 1;
  for (size_t i = host_size.size(); i-- > 0;) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, std::max<int64_t>(host_size[i], 1), &step))
      fail(host_size, format, "the sizes exceed 64-bit addresses");
  }
  return strides;
}

void check_order(Dims host_size, Format format, Dims order, bool sparse) {
  const size_t rank = host_size.size();
  std::vector<bool> seen(rank, false);
  const bool length_ok = order.size() == rank + (sparse ? 1 : 0);
  bool ok = length_ok;
  for (size_t i = 0; ok && i < rank; ++i) {
    const int64_t dim = order[i];
    ok = dim >= 0 && dim < static_cast<int64_t>(rank) && !seen[static_cast<size_t>(dim)];
    if (ok) seen[static_cast<size_t>(dim)] = true;
  }
  if (!ok)
    fail(host_size, format,
         "the dim order " + dims_text(order) + " must name each of the " + std::to_string(rank) +
             " dims once, with at most one -1, at its end");
}

// Collapses the leading dims so that the order has at most kMaxOrder entries.
void collapse(std::vector<int64_t>& host_size, std::vector<int64_t>& order, bool sparse,
              Format format) {
  const size_t limit = kMaxOrder - (sparse ? 1 : 0);
  if (host_size.size() <= limit) return;
  const size_t merged = host_size.size() - limit + 1;  // dims 0..merged-1 become one
  const size_t rank = host_size.size();
  const auto first = std::find(order.begin(), order.end(), 0);
  for (size_t i = 0; i < merged; ++i) {
    const auto place = static_cast<size_t>(first - order.begin()) + i;
    if (place >= rank || order[place] != static_cast<int64_t>(i))
      fail(host_size, format,
           "ranks above " + std::to_string(limit) + " collapse their leading dims, so the order " +
               dims_text(order) + " must keep dims 0.." + std::to_string(merged - 1) +
               " together and ascending");
  }
  const int64_t lead = product(Dims(host_size).first(merged), host_size, format);
  host_size.erase(host_size.begin(), host_size.begin() + static_cast<ptrdiff_t>(merged - 1));
  host_size[0] = lead;
  std::vector<int64_t> kept;
  const auto gap = static_cast<int64_t>(merged - 1);
  for (int64_t dim : order) {
    if (dim == 0)
      kept.push_back(0);
    else if (dim > gap)
      kept.push_back(dim - gap);
    else if (dim < 0)
      kept.push_back(dim);
  }
  order = std::move(kept);
}

// compiler.md 2.1, "Dim map": the first dim moves next to the stick.
std::vector<int64_t> dim_map(Dims order) {
  if (order.size() == 1) return {order[0], order[0]};
  std::vector<int64_t> map(order.begin() + 1, order.end());
  map.push_back(order.front());
  map.push_back(order.back());
  return map;
}

}  // namespace

Layout Layout::make(Dims host_size, Format format, Dims order) {
  check_sizes(host_size, format);
  Layout layout;
  layout.format_ = format;
  layout.host_size_.assign(host_size.begin(), host_size.end());
  const bool sparse = !order.empty() && order.back() == -1;
  std::vector<int64_t> kept_order(order.begin(), order.end());
  if (order.empty()) {
    kept_order.resize(host_size.size());
    std::iota(kept_order.begin(), kept_order.end(), int64_t{0});
  } else {
    check_order(host_size, format, order, sparse);
  }
  collapse(layout.host_size_, kept_order, sparse, format);
  if (kept_order.empty()) kept_order.push_back(-1);  // rank 0: one element in one stick

  const std::vector<int64_t> map = dim_map(kept_order);
  const std::vector<int64_t> strides = dense_strides(layout.host_size_, format);
  const int64_t eps = elements_per_stick(format);
  const int64_t stick_dim = map.back();
  const size_t rank = map.size();
  // The tile count sits at the other occurrence of the stick dim.
  layout.device_size_.resize(rank);
  layout.stride_map_.resize(rank);
  for (size_t i = 0; i + 1 < rank; ++i) {
    const int64_t dim = map[i];
    const int64_t size = dim < 0 ? 1 : layout.host_size_[static_cast<size_t>(dim)];
    layout.device_size_[i] = dim == stick_dim ? ceil_div(size, eps) : size;
  }
  layout.device_size_[rank - 1] = eps;
  for (size_t i = rank; i-- > 0;) {
    const int64_t dim = map[i];
    if (dim < 0 || layout.host_size_[static_cast<size_t>(dim)] == 1) {
      layout.stride_map_[i] = -1;
    } else {
      const int64_t stride = strides[static_cast<size_t>(dim)];
      const bool tile_count = dim == stick_dim && i + 1 < rank;
      if (!tile_count)
        layout.stride_map_[i] = stride;
      else if (__builtin_mul_overflow(stride, eps, &layout.stride_map_[i]))
        fail(host_size, format, "the sizes exceed 64-bit addresses");
    }
  }
  layout.finish();
  return layout;
}

Layout Layout::for_strided(Dims sizes, Dims strides, Format format) {
  check_sizes(sizes, format);
  if (sizes.size() != strides.size())
    fail(sizes, format, "the strides " + dims_text(strides) + " must be one per size");
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return make(sizes, format);
  // Size-1 dims keep their slots: their strides say nothing, and a tensor that PyTorch calls
  // contiguous must get the default layout.
  std::vector<size_t> slots, dims;
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] != 1) slots.push_back(i);
  dims = slots;
  std::stable_sort(dims.begin(), dims.end(),
                   [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> permuted(sizes.begin(), sizes.end());
  for (size_t i = 0; i < slots.size(); ++i) permuted[slots[i]] = sizes[dims[i]];
  int64_t expected = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (strides[dims[i]] != expected)
      fail(sizes, format,
           "the strides " + dims_text(strides) +
               " are no dense permutation; use a linear layout for a storage with holes");
    if (__builtin_mul_overflow(expected, sizes[dims[i]], &expected))
      fail(sizes, format, "the sizes exceed 64-bit addresses");
  }
  return make(permuted, format);
}

Layout Layout::linear(int64_t numel, Format format) {
  const int64_t size[1] = {numel};
  return make(size, format);
}

Layout Layout::explicit_map(Dims host_size, Dims device_size, Dims stride_map, Format format) {
  check_sizes(host_size, format);
  if (device_size.empty() || device_size.size() != stride_map.size())
    fail(host_size, format,
         "device sizes " + dims_text(device_size) + " and stride map " + dims_text(stride_map) +
             " must have the same length, at least 1");
  if (device_size.back() != elements_per_stick(format))
    fail(host_size, format,
         "the last device size must be a stick of " + std::to_string(elements_per_stick(format)) +
             " elements, not " + std::to_string(device_size.back()));
  for (int64_t size : device_size)
    if (size < 0) fail(host_size, format, "device sizes must not be negative");
  for (int64_t step : stride_map)
    if (step < -1)
      fail(host_size, format,
           "stride map entries are host strides, 0 (copies) or -1 (synthetic), not " +
               std::to_string(step));
  Layout layout;
  layout.format_ = format;
  layout.host_size_.assign(host_size.begin(), host_size.end());
  layout.device_size_.assign(device_size.begin(), device_size.end());
  layout.stride_map_.assign(stride_map.begin(), stride_map.end());
  layout.finish();
  return layout;
}

int64_t Layout::default_nbytes(Dims host_size, Format format) {
  if (host_size.empty()) return kStickBytes;
  int64_t sticks = ceil_div(host_size.back(), elements_per_stick(format));
  bool overflow = false, empty = false;
  for (size_t i = 0; i < host_size.size(); ++i) {
    if (host_size[i] < 0) fail(host_size, format, "sizes must not be negative");
    empty |= host_size[i] == 0;
    if (i + 1 < host_size.size()) overflow |= __builtin_mul_overflow(sticks, host_size[i], &sticks);
  }
  if (empty) return 0;
  int64_t bytes = 0;
  if (overflow || __builtin_mul_overflow(sticks, kStickBytes, &bytes))
    fail(host_size, format, "the sizes exceed 64-bit addresses");
  return bytes;
}

void Layout::finish() {
  struct Digit {
    int64_t step, count, device_stride;  // step: host elements per device step
  };
  axes_.clear();
  copies_.clear();
  numel_ = product(host_size_, host_size_, format_);
  const int64_t places = product(device_size_, host_size_, format_);
  if (__builtin_mul_overflow(places, static_cast<int64_t>(format_bytes(format_)), &nbytes_))
    fail(host_size_, format_, "the device sizes exceed 64-bit addresses");
  if (numel_ > 0 && places == 0)
    fail(host_size_, format_,
         "device sizes " + dims_text(device_size_) + " leave no place for " +
             std::to_string(numel_) + " elements");

  std::vector<Digit> digits;
  int64_t device_stride = 1;
  for (size_t i = device_size_.size(); i-- > 0;) {
    const int64_t size = device_size_[i], step = stride_map_[i];
    if (size > 1 && step == 0) copies_.push_back({size, device_stride});
    // A digit whose step passes the space is always 0.
    if (size > 1 && step > 0 && step < numel_) digits.push_back({step, size, device_stride});
    device_stride *= std::max<int64_t>(size, 1);
  }
  std::reverse(copies_.begin(), copies_.end());

  if (numel_ > 1) {
    std::sort(digits.begin(), digits.end(),
              [](const Digit& a, const Digit& b) { return a.step < b.step; });
    const std::string map_text =
        "device sizes " + dims_text(device_size_) + " with stride map " + dims_text(stride_map_);
    if (digits.empty() || digits[0].step != 1)
      fail(host_size_, format_, map_text + " give linear element 1 no place");
    const std::vector<int64_t> strides = dense_strides(host_size_, format_);
    const auto starts_dim = [&](int64_t step) {
      for (size_t i = 0; i < strides.size(); ++i)
        if (host_size_[i] > 1 && strides[i] == step) return true;
      return false;
    };
    // Cut the digits into axes, ascending: at each host dim, and where a step is no multiple.
    size_t begin = 0;
    while (begin < digits.size()) {
      const int64_t start = digits[begin].step;
      size_t end = begin + 1;
      while (end < digits.size() && digits[end].step % digits[end - 1].step == 0 &&
             digits[end].step != digits[end - 1].step && !starts_dim(digits[end].step))
        ++end;
      if (end < digits.size() && digits[end].step == digits[end - 1].step)
        fail(host_size_, format_,
             map_text + " name host stride " + std::to_string(digits[end].step) +
                 " twice, so elements have several places; use 0 for copies");
      if (end < digits.size() && digits[end].step % start)
        fail(host_size_, format_,
             map_text + " do not nest: host stride " + std::to_string(digits[end].step) +
                 " is no multiple of " + std::to_string(start));
      if (numel_ % start)
        fail(host_size_, format_,
             map_text + " do not nest: " + std::to_string(numel_) +
                 " elements are no multiple of " + std::to_string(start));
      const int64_t top = end < digits.size() ? digits[end].step : numel_;
      LayoutAxis axis{ceil_div(top, start), start, {}};
      for (size_t i = end; i-- > begin;) {
        const int64_t next = i + 1 < end ? digits[i + 1].step : top;
        const int64_t count = ceil_div(next, digits[i].step);
        if (count > digits[i].count)
          fail(host_size_, format_,
               map_text + " give linear element " +
                   std::to_string(digits[i].count * digits[i].step) + " no place");
        axis.digits.push_back({digits[i].step / start, count, digits[i].device_stride});
      }
      axes_.push_back(std::move(axis));
      begin = end;
    }
    std::reverse(axes_.begin(), axes_.end());
  }

  is_identity_ = copies_.empty();
  for (const LayoutAxis& axis : axes_)
    for (const LayoutDigit& digit : axis.digits)
      is_identity_ &= digit.device_stride == digit.unit * axis.host_stride;

  // Default means: the first dim next to the stick and the last on it, whichever constructor ran.
  const int64_t eps = elements_per_stick(format_);
  const size_t rank = host_size_.size();
  is_default_ =
      rank <= kMaxOrder && device_size_.size() == std::max<size_t>(rank + 1, 2) && copies_.empty();
  if (is_default_ && rank == 0) {
    is_default_ = device_size_[0] == 1;
  } else if (is_default_) {
    const std::vector<int64_t> strides = dense_strides(host_size_, format_);
    for (size_t i = 0; is_default_ && i <= rank; ++i) {
      const bool tile_count = rank == 1 ? i == 0 : i + 3 == rank + 1;
      const bool lane = i == rank;
      const size_t dim = lane || tile_count ? rank - 1 : i + 2 == rank + 1 ? 0 : i + 1;
      const int64_t size = lane         ? eps
                           : tile_count ? ceil_div(host_size_[dim], eps)
                                        : host_size_[dim];
      const int64_t step = host_size_[dim] == 1  ? -1
                           : tile_count && !lane ? strides[dim] * eps
                                                 : strides[dim];
      is_default_ = device_size_[i] == size && stride_map_[i] == step;
    }
  }
}

int64_t Layout::element_offset(int64_t linear) const {
  if (linear < 0 || linear >= numel_)
    throw std::out_of_range("linear element " + std::to_string(linear) + " of " + str());
  int64_t place = 0;
  for (const LayoutAxis& axis : axes_) {
    const int64_t index = linear / axis.host_stride % axis.size;
    for (const LayoutDigit& digit : axis.digits)
      place += index / digit.unit % digit.count * digit.device_stride;
  }
  return place * format_bytes(format_);
}

std::string Layout::str() const {
  return std::string("SpyreTensorLayout(host_size=") + dims_text(host_size_) +
         ", device_size=" + dims_text(device_size_) + ", stride_map=" + dims_text(stride_map_) +
         ", format=" + format_name(format_) + ", nbytes=" + std::to_string(nbytes_) + ")";
}

}  // namespace openspyre::machine
