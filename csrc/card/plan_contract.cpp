// Layouts of operands and of tensors, compared dim by dim.

#include "card/plan_contract.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "machine/program/evaluate.h"

namespace openspyre::card {

using machine::ExprStep;
using machine::kStickBytes;
using machine::LayoutAxis;
using machine::LayoutDigit;

namespace {

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

int64_t multiply(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) refuse(std::string(what) + " exceeds 64 bits");
  return product;
}

}  // namespace

std::string dims_text(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

bool is_constant(const machine::Expr& expr) {
  return std::none_of(expr.steps.begin(), expr.steps.end(),
                      [](const ExprStep& step) { return step.code == ExprStep::Var; });
}

int64_t evaluate(const machine::Expr& expr, std::span<const int64_t> symbols) {
  if (expr.steps.empty()) refuse("an expression is missing");
  for (const ExprStep& step : expr.steps) {
    if (step.code == ExprStep::Var &&
        (step.value < 0 || static_cast<size_t>(step.value) >= symbols.size()))
      refuse("a size of an operand uses a name that is no symbol");
  }
  try {
    return machine::evaluate(expr, symbols.data());
  } catch (const machine::Fault& fault) {
    refuse(fault.text);
  }
}

namespace {

// The bytes to the end of the last stick.
void finish(OperandLayout& out) {
  int64_t end = kStickBytes;
  for (int dim = 0; dim < out.rank; ++dim) {
    const int64_t steps = dim == out.stick ? (out.shape[dim] - 1) / out.eps : out.shape[dim] - 1;
    if (__builtin_add_overflow(end, multiply(steps, out.strides[dim], "its size"), &end))
      refuse("its size is beyond 64 bits");
  }
  out.nbytes = end;
}

struct Loop {
  int64_t count, stride;
};

// What moves the address, innermost first.
std::vector<Loop> loops_of(const OperandLayout& operand) {
  std::vector<Loop> loops;
  for (int dim = 0; dim < operand.rank; ++dim) {
    const int64_t count =
        dim == operand.stick ? ceil_div(operand.shape[dim], operand.eps) : operand.shape[dim];
    if (count > 1) loops.push_back({count, operand.strides[dim]});
  }
  std::sort(loops.begin(), loops.end(), [](Loop a, Loop b) { return a.stride < b.stride; });
  return loops;
}

// Whether each dim's step does not leave what all dims with smaller steps span. Sizes are laid out
// already, so nothing overflows.
bool overlaps_itself(const OperandLayout& operand) {
  int64_t end = kStickBytes;
  for (const Loop& loop : loops_of(operand)) {
    if (loop.stride < end) return true;
    end += (loop.count - 1) * loop.stride;
  }
  return false;
}

}  // namespace

OperandLayout lay_operand(const machine::Operand& operand, std::span<const int64_t> symbols) {
  OperandLayout out;
  const size_t rank = operand.shape.size();
  if (rank > kMaxRank) refuse("its rank " + std::to_string(rank) + " is above 6");
  out.rank = static_cast<int>(rank);
  out.eps = machine::elements_per_stick(operand.format);
  int64_t within[kMaxRank] = {};
  for (size_t i = 0; i < rank; ++i) {
    out.shape[i] = evaluate(operand.shape[i], symbols);
    within[i] = operand.has_within ? evaluate(operand.within.at(i), symbols) : out.shape[i];
    if (out.shape[i] < 1) refuse("a size is below 1");
    if (out.shape[i] > within[i])
      refuse("its shape is not inside the layout it is declared within");
  }
  if (operand.has_strides) {
    out.stick = static_cast<int>(operand.stick);
    for (size_t i = 0; i < rank; ++i) {
      out.strides[i] = evaluate(operand.strides.at(i), symbols);
      if (out.strides[i] < 0 || out.strides[i] % kStickBytes != 0)
        refuse("its strides must be multiples of 128, none negative");
    }
    finish(out);
    const bool stored = operand.role != machine::Role::In && operand.role != machine::Role::Const;
    if (stored && overlaps_itself(out))
      refuse("its strides let sticks of a stored operand overlap");
    return out;
  }
  std::vector<int> order(operand.order.begin(), operand.order.end());
  if (!operand.has_order) {
    order.resize(rank);
    std::iota(order.begin(), order.end(), 0);
  }
  if (order.empty()) order.push_back(-1);
  std::vector<bool> named(rank, false);
  for (size_t i = 0; i < order.size(); ++i) {
    const bool sparse_end = order[i] == -1 && i + 1 == order.size();
    if (sparse_end) continue;
    if (order[i] < 0 || static_cast<size_t>(order[i]) >= rank ||
        named[static_cast<size_t>(order[i])])
      refuse("its dim order names a dim twice or not at all");
    named[static_cast<size_t>(order[i])] = true;
  }
  if (std::find(named.begin(), named.end(), false) != named.end())
    refuse("its dim order leaves out a dim");
  out.stick = order.back();
  // The first dim of the order moves next to the stick (docs/layouts.md).
  std::vector<int> map(order.begin() + 1, order.end());
  map.push_back(order.front());
  int64_t pitch = kStickBytes;
  for (size_t i = map.size(); i-- > 0;) {
    const int dim = map[i];
    if (dim < 0) continue;
    int64_t size = within[dim];
    // The stick dim's entry counts sticks. A sparse order has no such entry.
    if (dim == out.stick) size = ceil_div(size, out.eps);
    out.strides[dim] = pitch;
    pitch = multiply(pitch, size, "its size");
  }
  finish(out);
  return out;
}

namespace {

// How one axis of a storage moves on the card.
struct AxisWay {
  bool plain = false;  // understood
  bool lanes = false;
  int64_t stride = 0;  // bytes a step (a stick, if `lanes`)
};

AxisWay way_of(const LayoutAxis& axis, int64_t eps, int64_t itemsize) {
  AxisWay way;
  if (axis.digits.size() == 1) {
    const LayoutDigit& digit = axis.digits[0];
    if (digit.unit != 1 || digit.count < axis.size) return way;
    way.plain = true;
    way.lanes = digit.device_stride == 1 && axis.size <= eps;
    way.stride = way.lanes ? 0 : digit.device_stride * itemsize;
  } else if (axis.digits.size() == 2) {
    const LayoutDigit &high = axis.digits[0], &low = axis.digits[1];
    if (low.unit != 1 || low.device_stride != 1 || low.count != eps || high.unit != eps) return way;
    way.plain = true;
    way.lanes = true;
    way.stride = high.device_stride * itemsize;
  }
  return way;
}

}  // namespace

std::string match_layout(const OperandLayout& operand, const TensorView& view, bool written,
                         int64_t* base) {
  const machine::Layout& layout = *view.layout;
  const auto& axes = layout.axes();
  const int64_t itemsize = machine::format_bytes(layout.format());
  const int64_t eps = operand.eps;
  if (layout.has_copies()) return "its storage keeps several copies of its elements";
  if (view.offset < 0 || view.offset >= layout.numel()) return "it starts outside its storage";
  *base = layout.element_offset(view.offset);
  if (*base % kStickBytes != 0)
    return "its first element lies " + std::to_string(*base % kStickBytes / itemsize) +
           " elements into a stick, and must begin one";

  constexpr size_t kAxes = 16;
  if (axes.size() > kAxes) return "its storage has more than 16 dims";
  int64_t reach[kAxes];  // index of the last element along the axis
  AxisWay ways[kAxes];
  int64_t lane_count[kAxes];  // elements of a stick that the view takes, in a row
  bool lanes_moved[kAxes] = {}, sticks_moved[kAxes] = {};
  for (size_t a = 0; a < axes.size(); ++a) {
    reach[a] = view.offset / axes[a].host_stride % axes[a].size;
    ways[a] = way_of(axes[a], eps, itemsize);
    lane_count[a] = 1;
  }
  for (int dim = 0; dim < operand.rank; ++dim) {
    const int64_t size = operand.shape[dim];
    if (size == 1) continue;
    const int64_t step = view.strides[static_cast<size_t>(dim)];
    const auto who = [dim] { return "dim " + std::to_string(dim); };
    if (step == 0 && operand.strides[dim] == 0 && dim != operand.stick && !written) continue;
    if (step < 1) return who() + " is expanded (stride " + std::to_string(step) + ")";
    // The axis it moves along: the outermost one whose step divides its own. (Axes descend.)
    size_t a = 0;
    while (a < axes.size() && (axes[a].host_stride > step || axes[a].size == 1)) ++a;
    if (a == axes.size() || step % axes[a].host_stride != 0)
      return who() + " with stride " + std::to_string(step) + " cuts across dims of its storage";
    const int64_t move = step / axes[a].host_stride;
    int64_t span = 0;
    if (__builtin_mul_overflow(size - 1, move, &span) || span >= axes[a].size - reach[a])
      return who() + " runs over more than one dim of its storage";
    reach[a] += span;
    if (!ways[a].plain) return who() + " lies in a dim that its storage folds in its own way";
    const bool on_stick = dim == operand.stick;
    const int64_t wanted = operand.strides[dim];
    int64_t got = 0;
    if (!ways[a].lanes) {
      if (on_stick)
        return who() + " must lie on the stick, but moves " +
               std::to_string(move * ways[a].stride) + " bytes a step";
      got = move * ways[a].stride;
    } else if (move % eps == 0) {
      if (on_stick) return who() + " must lie on the stick, but moves by whole sticks";
      got = move / eps * ways[a].stride;
      sticks_moved[a] = true;
    } else if (move == 1) {
      if (!on_stick) return who() + " lies on the stick of its storage and must not";
      if (lanes_moved[a]) return who() + " shares its stick with another dim";
      lanes_moved[a] = true;
      lane_count[a] = size;
      got = size > eps ? ways[a].stride : wanted;  // inside one stick the stride says nothing
    } else {
      return who() + " takes every " + std::to_string(move) + "th element of a stick";
    }
    if (got != wanted)
      return who() + " moves " + std::to_string(got) + " bytes a " + (on_stick ? "stick" : "step") +
             ", not " + std::to_string(wanted);
  }
  for (size_t a = 0; written && a < axes.size(); ++a) {
    if (!ways[a].lanes) continue;
    // A store writes whole sticks: what they hold beyond the view must be nobody's.
    const bool filled = lane_count[a] % eps == 0;
    const bool at_end = !sticks_moved[a] && reach[a] + 1 == axes[a].size;
    if (!filled && !at_end)
      return "its sticks also hold elements outside it, which a store of whole sticks would "
             "overwrite";
  }
  return "";
}

std::vector<ByteRange> sticks_of(const OperandLayout& operand, int64_t base) {
  const std::vector<Loop> loops = loops_of(operand);
  // Innermost loops without a gap are one run of bytes.
  int64_t run = kStickBytes;
  size_t outer = 0;
  for (; outer < loops.size() && loops[outer].stride <= run; ++outer)
    run += (loops[outer].count - 1) * loops[outer].stride;
  std::vector<ByteRange> ranges{{static_cast<uint64_t>(base), static_cast<uint64_t>(base + run)}};
  for (size_t i = outer; i < loops.size(); ++i) {
    const size_t before = ranges.size();
    for (int64_t step = 1; step < loops[i].count; ++step)
      for (size_t r = 0; r < before; ++r) {
        const auto shift = static_cast<uint64_t>(step * loops[i].stride);
        ranges.push_back({ranges[r].begin + shift, ranges[r].end + shift});
      }
  }
  if (!overlaps_itself(operand)) return ranges;
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> joined;
  for (const ByteRange& range : ranges)
    if (!joined.empty() && range.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, range.end);
    else
      joined.push_back(range);
  return joined;
}

}  // namespace openspyre::card
