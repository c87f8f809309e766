// See affine.h. The view's loops are cut at the borders of the axes first, then at the borders of
// the digits inside each axis; a loop that passes a border evenly becomes two loops.
#include "machine/affine.h"

#include <algorithm>

namespace openspyre::machine {
namespace {

// A place value of the mixed radix: `start` linear elements per step, `radix` steps before the
// next level takes over. The top level's radix is never passed.
struct Level {
  int64_t start, radix, device_stride;
};

struct Loop {
  int64_t size, step, other;
};

struct Nest {
  int64_t offset = 0, other_offset = 0;
  int rank = 0;
  std::array<Loop, kMaxBoxRank> loops;
};

// Where the boxes of an unrolled loop are worth more than the general path.
constexpr int64_t kMaxUnroll = 32, kMinUnrolledWork = 128;
constexpr int64_t kUnbounded = INT64_MAX;
constexpr int kMaxLevels = 48;

struct Levels {
  int count = 0;
  std::array<Level, kMaxLevels> at;

  bool add(Level level) {
    if (count == kMaxLevels) return false;
    at[static_cast<size_t>(count++)] = level;
    return true;
  }
  const Level& operator[](int i) const { return at[static_cast<size_t>(i)]; }
};

class Cutter {
 public:
  explicit Cutter(const Layout& layout) : layout_(layout) {}

  bool prepare() {
    const std::vector<LayoutAxis>& axes = layout_.axes();
    for (size_t a = axes.size(); a-- > 0;) {
      const LayoutAxis& axis = axes[a];
      if (!axis_levels_.add({axis.host_stride, a ? axis.size : kUnbounded, 0})) return false;
      for (size_t d = axis.digits.size(); d-- > 0;) {
        const LayoutDigit& digit = axis.digits[d];
        // The axis stage has seen to it that the top digit of an axis never overflows.
        if (!digit_levels_.add(
                {axis.host_stride * digit.unit, d ? digit.count : kUnbounded, digit.device_stride}))
          return false;
      }
    }
    return true;
  }

  bool cut(Nest nest, bool at_digits) {
    const Levels& levels = at_digits ? digit_levels_ : axis_levels_;
    for (;;) {
      const int verdict = cut_once(nest, levels, at_digits);
      if (verdict < 0) return false;
      if (verdict == 2) return true;
      if (verdict == 1) continue;
      return at_digits ? emit(nest) : cut(nest, true);
    }
  }

  std::vector<Box> boxes;

 private:
  // The value of each level's digit of linear element `offset`.
  void digits_of(int64_t offset, bool at_digits, std::array<int64_t, kMaxLevels>& value) const {
    size_t i = 0;
    const std::vector<LayoutAxis>& axes = layout_.axes();
    for (size_t a = axes.size(); a-- > 0;) {
      const LayoutAxis& axis = axes[a];
      const int64_t index = a ? offset / axis.host_stride % axis.size : offset / axis.host_stride;
      if (!at_digits) {
        value[i++] = index;
        continue;
      }
      for (size_t d = axis.digits.size(); d-- > 0;) {
        const LayoutDigit& digit = axis.digits[d];
        value[i++] = d ? index / digit.unit % digit.count : index / digit.unit;
      }
    }
  }

  // 0: every loop stays inside its level; 1: one loop was cut, look again; -1: not affine;
  // 2: all of the nest has been cut loop by loop.
  int cut_once(Nest& nest, const Levels& levels, bool at_digits) {
    const auto first = nest.loops.begin();
    std::sort(first, first + nest.rank,
              [](const Loop& a, const Loop& b) { return a.step < b.step; });
    std::array<int64_t, kMaxLevels> used;  // the digit's value plus what smaller loops add
    digits_of(nest.offset, at_digits, used);
    int level = 0;
    for (int i = 0; i < nest.rank; ++i) {
      Loop& loop = nest.loops[static_cast<size_t>(i)];
      if (loop.step == 0 || loop.size == 1) continue;
      while (level + 1 < levels.count && levels[level + 1].start <= loop.step) ++level;
      if (loop.step % levels[level].start) return unroll(nest, i, at_digits);
      const int64_t pace = loop.step / levels[level].start, radix = levels[level].radix;
      int64_t& reach = used[static_cast<size_t>(level)];
      if (reach + pace * (loop.size - 1) < radix) {
        reach += pace * (loop.size - 1);
        continue;
      }
      if (radix % pace) return unroll(nest, i, at_digits);
      if (reach < pace) {  // each pass over the border begins at the same phase
        const int64_t period = radix / pace;
        const int64_t body = loop.size / period * period;
        if (body < loop.size && !fork(nest, i, body, loop.size - body, at_digits)) return -1;
        if (nest.rank == kMaxBoxRank) return -1;
        nest.loops[static_cast<size_t>(nest.rank++)] = {body / period, loop.step * period,
                                                        loop.other * period};
        nest.loops[static_cast<size_t>(i)].size = period;
        return 1;
      }
      // A head that ends at the border, if nothing straddles it.
      const int64_t head = reach >= radix ? 0 : (radix - 1 - reach) / pace + 1;
      std::array<int64_t, kMaxLevels> start;
      digits_of(nest.offset, at_digits, start);
      if (head == 0 || start[static_cast<size_t>(level)] + head * pace < radix)
        return unroll(nest, i, at_digits);
      if (!fork(nest, i, 0, head, at_digits)) return -1;
      nest.offset += head * loop.step;
      nest.other_offset += head * loop.other;
      loop.size -= head;
      return 1;
    }
    return 0;
  }

  // Loop `i` fits no border (attention heads of one and a half sticks). A short loop around much
  // work is taken index by index.
  int unroll(const Nest& nest, int i, bool at_digits) {
    const int64_t size = nest.loops[static_cast<size_t>(i)].size;
    if (size > kMaxUnroll) return -1;
    int64_t work = 1;
    for (int j = 0; j < nest.rank; ++j) work *= nest.loops[static_cast<size_t>(j)].size;
    if (work / size < kMinUnrolledWork) return -1;
    for (int64_t at = 0; at < size; ++at)
      if (!fork(nest, i, at, 1, at_digits)) return -1;
    return 2;
  }

  // Cuts the part [begin, begin + size) of loop `i` on its own.
  bool fork(const Nest& nest, int i, int64_t begin, int64_t size, bool at_digits) {
    Nest part = nest;
    Loop& loop = part.loops[static_cast<size_t>(i)];
    part.offset += begin * loop.step;
    part.other_offset += begin * loop.other;
    loop.size = size;
    return cut(part, at_digits);
  }

  bool emit(const Nest& nest) {
    if (boxes.size() == kMaxBoxes) return false;
    Box& box = boxes.emplace_back();
    std::array<int64_t, kMaxLevels> value;
    digits_of(nest.offset, true, value);
    for (int i = 0; i < digit_levels_.count; ++i)
      box.card_offset += value[static_cast<size_t>(i)] * digit_levels_[i].device_stride;
    box.other_offset = nest.other_offset;
    int level = 0;
    for (int i = 0; i < nest.rank; ++i) {  // ascending by step: cut_once has sorted
      const Loop& loop = nest.loops[static_cast<size_t>(i)];
      while (level + 1 < digit_levels_.count && digit_levels_[level + 1].start <= loop.step)
        ++level;
      if (loop.size == 1) continue;
      const int64_t card =
          loop.step ? loop.step / digit_levels_[level].start * digit_levels_[level].device_stride
                    : 0;
      box.dims[static_cast<size_t>(box.rank++)] = {loop.size, card, loop.other};
    }
    return true;
  }

  const Layout& layout_;
  Levels axis_levels_, digit_levels_;
};

}  // namespace

std::optional<std::vector<Box>> affine_boxes(const Layout& layout, int64_t offset, Dims sizes,
                                             Dims strides, int64_t other_offset,
                                             Dims other_strides) {
  Nest nest;
  nest.offset = offset;
  nest.other_offset = other_offset;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    if (nest.rank > 0) {  // adjacent loops that continue each other on both sides are one
      Loop& last = nest.loops[static_cast<size_t>(nest.rank - 1)];
      if (last.step == sizes[i] * strides[i] && last.other == sizes[i] * other_strides[i]) {
        last = {last.size * sizes[i], strides[i], other_strides[i]};
        continue;
      }
    }
    if (nest.rank == kMaxBoxRank) return std::nullopt;
    nest.loops[static_cast<size_t>(nest.rank++)] = {sizes[i], strides[i], other_strides[i]};
  }
  Cutter cutter(layout);
  if (!cutter.prepare() || !cutter.cut(nest, false)) return std::nullopt;
  return std::move(cutter.boxes);
}

}  // namespace openspyre::machine
