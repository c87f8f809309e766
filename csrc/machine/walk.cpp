// See walk.h.
#include "machine/walk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <stdexcept>

namespace openspyre::machine {
namespace {

// An axis spans at least a factor of two of a 63-bit space.
constexpr size_t kMaxAxes = 63;

void keep_loops(Dims sizes, Dims strides, std::vector<int64_t>& kept_sizes,
                std::vector<int64_t>& kept_strides) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    kept_sizes.push_back(sizes[i]);
    kept_strides.push_back(strides[i]);
  }
  if (kept_sizes.empty()) {
    kept_sizes.push_back(1);
    kept_strides.push_back(0);
  }
}

// Calls row(start, n, out) for the rows of [begin, begin + n); start is the strided sum.
template <class Row>
void each_row(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t begin,
              int64_t n, int64_t* out, const Row& row) {
  const int64_t length = sizes.back();
  while (n > 0) {
    int64_t rest = begin / length, start = begin % length * strides.back();
    for (size_t i = sizes.size() - 1; i-- > 0;) {
      start += rest % sizes[i] * strides[i];
      rest /= sizes[i];
    }
    const int64_t count = std::min(n, length - begin % length);
    row(start, count, out);
    out += count;
    begin += count;
    n -= count;
  }
}

}  // namespace

StridedWalker::StridedWalker(Dims sizes, Dims strides, int64_t element_bytes) {
  keep_loops(sizes, strides, sizes_, strides_);
  for (int64_t& stride : strides_) stride *= element_bytes;
}

void StridedWalker::offsets(int64_t begin, int64_t n, int64_t* out) const {
  const int64_t step = strides_.back();
  each_row(sizes_, strides_, begin, n, out, [&](int64_t start, int64_t count, int64_t* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = start + i * step;
  });
}

LayoutWalker::LayoutWalker(const Layout& layout, int64_t offset, Dims sizes, Dims strides)
    : offset_(offset) {
  keep_loops(sizes, strides, sizes_, strides_);
  if (layout.axes().size() > kMaxAxes)
    throw std::invalid_argument("too many axes in " + layout.str());
  const int64_t bytes = format_bytes(layout.format());
  for (size_t a = layout.axes().size(); a-- > 0;) {
    const LayoutAxis& axis = layout.axes()[a];
    const size_t first = digits_.size();
    for (const LayoutDigit& digit : axis.digits) {
      const auto unit = static_cast<uint64_t>(digit.unit);
      digits_.push_back({digit.unit, digit.device_stride * bytes,
                         std::has_single_bit(unit) ? std::countr_zero(unit) : -1});
    }
    axes_.push_back({axis.size, axis.host_stride, first, digits_.size()});
  }
}

int64_t LayoutWalker::Axis::place(const std::vector<Digit>& digits, int64_t index) const {
  int64_t place = 0;
  for (size_t i = first; i < last; ++i) {  // most significant first
    const Digit& digit = digits[i];
    const int64_t value = digit.shift >= 0 ? index >> digit.shift : index / digit.unit;
    place += value * digit.device_bytes;
    index -= value * digit.unit;
  }
  return place;
}

void LayoutWalker::row(int64_t linear, int64_t step, int64_t n, int64_t* out) const {
  struct State {
    int64_t index, pace, place;
  };
  std::array<State, kMaxAxes> state;
  const size_t rank = axes_.size();
  int64_t total = 0;
  size_t moving = 0;  // axes from here up stand still unless a carry reaches them
  for (size_t a = rank; a-- > 0;) {
    const Axis& axis = axes_[a];
    State& s = state[a];
    s.index = linear / axis.host_stride;
    s.pace = step / axis.host_stride;
    linear -= s.index * axis.host_stride;
    step -= s.pace * axis.host_stride;
    if (s.pace && moving == 0) moving = a + 1;
    s.place = axis.place(digits_, s.index);
    total += s.place;
  }
  out[0] = total;
  for (int64_t i = 1; i < n; ++i) {
    int64_t carry = 0;
    for (size_t a = 0; a < rank && (a < moving || carry); ++a) {
      State& s = state[a];
      const int64_t move = s.pace + carry;
      if (move == 0) continue;
      s.index += move;
      carry = 0;
      if (s.index >= axes_[a].size && a + 1 < rank) {
        s.index -= axes_[a].size;
        carry = 1;
      }
      total -= s.place;
      s.place = axes_[a].place(digits_, s.index);
      total += s.place;
    }
    out[i] = total;
  }
}

void LayoutWalker::offsets(int64_t begin, int64_t n, int64_t* out) const {
  const int64_t step = strides_.back();
  each_row(sizes_, strides_, begin, n, out, [&](int64_t start, int64_t count, int64_t* to) {
    row(offset_ + start, step, count, to);
  });
}

std::vector<int64_t> copy_offsets(const Layout& layout) {
  std::vector<int64_t> offsets{0};
  const int64_t bytes = format_bytes(layout.format());
  for (const Layout::Copies& copies : layout.copies()) {
    const size_t before = offsets.size();
    for (int64_t i = 1; i < copies.count; ++i)
      for (size_t j = 0; j < before; ++j)
        offsets.push_back(offsets[j] + i * copies.device_stride * bytes);
  }
  return offsets;
}

}  // namespace openspyre::machine
