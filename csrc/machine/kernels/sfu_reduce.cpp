// REDUCE and FOLD. See sfu_kernels.h and docs/program.md section 3 for the order of additions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "machine/kernels/sfu_frame.h"
#include "machine/kernels/sfu_kernels.h"
#include "machine/kernels/sfu_plan.h"
#include "machine/program/check.h"

namespace openspyre::machine::sfu {
namespace {

bool is_arg(Combine c) { return c == Combine::ArgMax || c == Combine::ArgMin; }

// The bits of the identity of part `part` of an accumulator.
uint64_t identity(Combine combine, Register type, int part) {
  const auto bits = [](float x) {
    uint32_t code;
    std::memcpy(&code, &x, 4);
    return uint64_t(code);
  };
  const bool f = type == Register::F32, l = type == Register::I64;
  switch (combine) {
    case Combine::Prod:
      return f ? bits(1.0f) : 1;
    case Combine::ArgMax:
    case Combine::ArgMin:
      if (part == 1) return ~uint64_t(0);
      [[fallthrough]];
    case Combine::Max:
    case Combine::Min:
      if (combine == Combine::Max || combine == Combine::ArgMax) {
        if (f) return bits(-std::numeric_limits<float>::infinity());
        return l ? uint64_t(1) << 63 : uint64_t(1) << 31;
      }
      if (f) return bits(std::numeric_limits<float>::infinity());
      return l ? ~(uint64_t(1) << 63) : 0x7FFFFFFF;
    case Combine::All:
      return 1;
    default:
      return 0;
  }
}

// Where the accumulators of one group of elements lie in an output, relative to its row: runs of
// `piece` elements.
struct Cells {
  bool lanes;
  int64_t piece, eps, stride;
  int bytes;
  int64_t first;  // lanes: accumulator of the group's first element

  int64_t offset(int64_t element) const {
    if (lanes) return (first + element) % kLaneAccumulators * bytes;
    return element / eps * stride + element % eps * bytes;
  }
};

class Reduction {
 public:
  Reduction(const Isa& isa, const ComputeTask& task) : isa_(isa), task_(task), code_(*task.code) {
    for (int i = 0; i < task.inputs; ++i) {
      if (task.input[i].stick >= 0) lane_ = task.input[i].stick;
    }
    for (int l = 0; l < task.labels; ++l) kept_[l] = moves(code_.outputs[0], l);
    combine_ = code_.combine;
  }

  void run() {
    const int64_t group = Frame::group_of(task_, lane_);
    Plan& plan = thread_plan();
    plan.build(isa_, task_, group);
    type_ = plan.result_type(0);
    const size_t width = type_ == Register::I64 ? 8 : 4;
    const size_t index_bytes = is_arg(combine_) ? size_t(plan.elements()) * 8 : 0;
    std::byte* const extra = plan.start(task_, index_bytes + size_t(plan.elements()) * 8);
    index_ = reinterpret_cast<int64_t*>(extra);
    spare_ = extra + index_bytes;
    Frame frame(isa_, task_, lane_, group);
    const int64_t rows = std::max<int64_t>(plan.elements() / group, 1);
    const int inner = choose_inner(frame, rows);
    frame.set_inner(inner);

    // Labels that stay go outside, so that a block's accumulators are met again soon; those that
    // are reduced in their order, the last one fastest. A group of 128 elements meets each of the
    // 64 accumulators twice: where other labels are faster than the lane label, they are gone
    // through for the first 64 elements, then for the others.
    int order[kMaxLabels], count = 0, outer = 0;
    int64_t step[kMaxLabels];
    for (const bool kept : {true, false}) {
      for (int l = 0; l < task_.labels; ++l) {
        if (kept_[l] != kept) continue;
        order[count] = l;
        step[count++] = l == inner ? rows : 1;
        if (kept || l <= lane_ || group <= kLaneAccumulators) outer = count;
      }
    }
    if (outer < count && (lane_ < 0 || kept_[lane_])) outer = count;
    halves_ = outer < count ? 2 : 1;
    do {
      for (half_ = 0; half_ < halves_; ++half_) {
        do {
          blocks(frame, plan, rows, width);
        } while (advance(frame, order + outer, step + outer, count - outer));
      }
    } while (advance(frame, order, step, outer));
  }

 private:
  // The blocks of `rows` groups at the frame's place: one, and an incomplete last group by itself.
  void blocks(Frame& frame, Plan& plan, int64_t rows, size_t width) {
    const int inner = frame.inner();
    for (;;) {
      const Block block = frame.block(rows);
      plan.run(frame, block);
      if (is_arg(combine_)) frame.index(reduced_label(), block, index_);
      const bool first = half_ == 0 && at_edge(frame, block, true);
      const bool last = half_ == halves_ - 1 && at_edge(frame, block, false);
      add(frame, block, static_cast<const char*>(plan.result(0)), width, first, last);
      if (inner != lane_ || inner < 0) return;
      const int64_t end = std::min(frame.at[inner] + rows, frame.extent(inner));
      if (frame.at[inner] + block.rows >= end) {
        frame.at[inner] = begin_of(frame.at[inner], rows);
        return;
      }
      frame.at[inner] += block.rows;
    }
  }

  static int64_t begin_of(int64_t at, int64_t rows) { return at / rows * rows; }

  int reduced_label() const {
    for (int l = 0; l < task_.labels; ++l) {
      if (!kept_[l]) return l;
    }
    return 0;
  }

  int choose_inner(const Frame& frame, int64_t rows) const {
    int last_reduced = -1, kept = -1;
    int64_t longest = 0;
    for (int l = 0; l < task_.labels; ++l) {
      if (!kept_[l]) {
        last_reduced = l;
      } else if (std::min(frame.extent(l), rows) > longest) {
        kept = l;
        longest = std::min(frame.extent(l), rows);
      }
    }
    const bool lane_reduced = lane_ >= 0 && !kept_[lane_];
    if (lane_reduced ? longest >= 2 : last_reduced < 0 || frame.extent(last_reduced) < 4) {
      if (kept >= 0) return kept;
    }
    return last_reduced;
  }

  // Whether the block is the first (or the last) that its accumulators see in this task.
  bool at_edge(const Frame& frame, const Block& block, bool first) const {
    for (int l = 0; l < task_.labels; ++l) {
      if (kept_[l]) continue;
      const int64_t steps = l == frame.inner() ? block.rows : 1;
      if (first ? frame.at[l] != 0 : frame.at[l] + steps < frame.extent(l)) return false;
    }
    return true;
  }

  void add(const Frame& frame, const Block& block, const char* v, size_t width, bool first,
           bool last) {
    const bool lanes = task_.output[0].lanes;
    const int64_t group = frame.group();
    const bool shared = frame.inner() < 0 || !kept_[frame.inner()];  // one cell for all rows
    std::byte* base[kMaxTiles];
    Cells cells[kMaxTiles];
    int64_t piece = lanes ? std::min<int64_t>(group, kLaneAccumulators) : group;
    for (int o = 0; o < task_.outputs; ++o) {
      const View& view = task_.output[o];
      base[o] = frame.base(view);
      const int64_t eps = elements_per_stick(view.format);
      cells[o] = {lanes, 0, eps, lane_ < 0 ? 0 : view.stride[lane_], format_bytes(view.format), 0};
      if (!lanes) piece = std::min(piece, eps);
    }
    for (int o = 0; o < task_.outputs; ++o) cells[o].piece = piece;
    const bool fresh = first && !task_.accumulate;
    const bool finish = last && type_ == Register::F32;
    const int64_t begin = half_ * kLaneAccumulators;
    const int64_t end =
        halves_ == 2 ? std::min(block.valid, begin + kLaneAccumulators) : block.valid;
    const bool simple = combine_ <= Combine::All;
    // The accumulators of all rows in one go, where they lie evenly.
    int64_t steps[kMaxTiles] = {};
    bool even = true;
    for (int o = 0; o < task_.outputs && !shared; ++o) {
      even = frame.steady(task_.output[o], &steps[o]) && even;
    }
    const bool moving = lanes && frame.inner() == lane_;  // each row begins at another accumulator
    if (lanes) {
      for (int o = 0; o < task_.outputs; ++o) {
        cells[o].first = (task_.start[lane_] + frame.at[lane_] * group) % kLaneAccumulators;
      }
    }
    if (simple && even && (!moving || group >= kLaneAccumulators)) {
      if (fresh) {
        for (int64_t r = 0; r < (shared ? 1 : block.rows); ++r) {
          std::byte* const row[1] = {base[0] + r * steps[0]};
          clear(row, cells, block.valid);
        }
      }
      const auto how = isa_.combine[int(combine_)][int(type_)];
      if (shared && lane_ < 0) {  // one accumulator, many values
        isa_.serial[int(combine_)][int(type_)](base[0], v, spare_, block.rows);
      } else if (moving && piece < group) {  // 128 elements: twice the same 64 accumulators
        for (int64_t r = 0; r < block.rows; ++r) {
          for (int64_t j = begin; j < end; j += piece) {
            const char* from = v + size_t(r * group + j) * width;
            how(base[0] + cells[0].offset(j), 0, from, 0, std::min(piece, end - j), 1);
          }
        }
      } else {
        for (int64_t j = begin; j < end; j += piece) {
          how(base[0] + cells[0].offset(j), steps[0], v + size_t(j) * width, group * int64_t(width),
              std::min(piece, end - j), block.rows);
        }
      }
      if (finish) {
        for (int64_t r = 0; r < (shared ? 1 : block.rows); ++r) {
          std::byte* const row[1] = {base[0] + r * steps[0]};
          one_nan(row, cells, block.valid);
        }
      }
      return;
    }
    for (int64_t r = 0; r < block.rows; ++r) {
      std::byte* row[kMaxTiles];
      for (int o = 0; o < task_.outputs; ++o) {
        row[o] = shared ? base[o]
                 : even ? base[o] + r * steps[o]
                        : frame.row(task_.output[o], base[o], r);
        if (moving) {
          const int64_t groups = frame.at[lane_] + r;
          cells[o].first = (task_.start[lane_] + groups * group) % kLaneAccumulators;
        }
      }
      if (fresh && (!shared || r == 0)) clear(row, cells, block.valid);
      const char* from = v + size_t(r * group) * width;
      for (int64_t j = begin; j < end; j += piece) {
        const int64_t n = std::min(piece, end - j);
        combine(row, cells, j, from + size_t(j) * width, index_ + r * group + j, n);
      }
      if (finish && (!shared || r == block.rows - 1)) one_nan(row, cells, block.valid);
    }
  }

  void combine(std::byte* const* row, const Cells* cells, int64_t j, const char* v,
               const int64_t* index, int64_t n) const {
    std::byte* const to = row[0] + cells[0].offset(j);
    if (combine_ <= Combine::All) {
      isa_.combine[int(combine_)][int(type_)](to, 0, v, 0, n, 1);
    } else if (is_arg(combine_)) {
      auto* const best = reinterpret_cast<int64_t*>(row[1] + cells[1].offset(j));
      isa_.arg[combine_ == Combine::ArgMin][int(type_)](to, best, v, index, n);
    } else {
      float* const parts[3] = {reinterpret_cast<float*>(to),
                               reinterpret_cast<float*>(row[1] + cells[1].offset(j)),
                               reinterpret_cast<float*>(row[2] + cells[2].offset(j))};
      isa_.welford(parts, reinterpret_cast<const float*>(v), n);
    }
  }

  // Calls visit(place, elements) for the runs of accumulators of a group: all 64 of a lanes tile.
  template <class F>
  void each_run(std::byte* row, const Cells& cells, int64_t valid, F visit) const {
    if (cells.lanes) return visit(row, kLaneAccumulators);
    for (int64_t j = 0; j < valid; j += cells.eps) {
      visit(row + cells.offset(j), std::min(cells.eps, valid - j));
    }
  }

  // Sets the accumulators to the identity.
  void clear(std::byte* const* row, const Cells* cells, int64_t valid) const {
    for (int o = 0; o < task_.outputs; ++o) {
      const uint64_t value = identity(combine_, type_, o);
      each_run(row[o], cells[o], valid, [&](std::byte* p, int64_t n) {
        if (cells[o].bytes == 8) {
          fill(p, n, value);
        } else {
          fill(p, n, uint32_t(value));
        }
      });
    }
  }
  template <class T>
  static void fill(std::byte* p, int64_t n, T value) {
    for (int64_t j = 0; j < n; ++j) std::memcpy(p + j * int64_t(sizeof(T)), &value, sizeof(T));
  }

  // A NaN that is stored is the one NaN.
  void one_nan(std::byte* const* row, const Cells* cells, int64_t valid) const {
    for (int o = 0; o < task_.outputs; ++o) {
      if (task_.output[o].format != Format::IEEE_FP32) continue;
      each_run(row[o], cells[o], valid, [&](std::byte* p, int64_t n) {
        const int64_t whole = n / kPad * kPad;
        isa_.encode[int(Format::IEEE_FP32)](p, p, whole, {});
        for (int64_t j = whole; j < n; ++j) {
          float x;
          std::memcpy(&x, p + j * 4, 4);
          if (x != x) std::memcpy(p + j * 4, &kNanBits, 4);
        }
      });
    }
  }
  static constexpr uint32_t kNanBits = 0x7FC00000;

  const Isa& isa_;
  const ComputeTask& task_;
  const Instruction& code_;
  Combine combine_;
  Register type_ = Register::F32;
  int lane_ = -1;
  int64_t half_ = 0, halves_ = 1;  // of a group of 128 elements
  bool kept_[kMaxLabels] = {};
  int64_t* index_ = nullptr;
  std::byte* spare_ = nullptr;
};

// One point of a FOLD: 64 accumulators in `parts` places to the first of them.
void fold_tree(const Isa& isa, Combine combine, Register type, std::byte* const* parts) {
  const size_t width = type == Register::I64 ? 8 : 4;
  for (int64_t h = kLaneAccumulators / 2; h >= 1; h /= 2) {
    if (combine <= Combine::All) {
      isa.combine[int(combine)][int(type)](parts[0], 0, parts[0] + size_t(h) * width, 0, h, 1);
    } else if (is_arg(combine)) {
      auto* const at = reinterpret_cast<int64_t*>(parts[1]);
      isa.arg[combine == Combine::ArgMin][int(type)](parts[0], at, parts[0] + size_t(h) * width,
                                                     at + h, h);
    } else {
      float* a[3];
      const float* b[3];
      for (int i = 0; i < 3; ++i) {
        a[i] = reinterpret_cast<float*>(parts[i]);
        b[i] = a[i] + h;
      }
      isa.chan(a, b, h);
    }
  }
}

}  // namespace

void reduce(const Isa& isa, const ComputeTask& task) { Reduction(isa, task).run(); }

void fold(const Isa& isa, const ComputeTask& task) {
  const Combine combine = task.code->combine;
  Register type = register_of_format(task.input[0].format);
  if (combine == Combine::Any || combine == Combine::All) type = Register::Bool;
  Frame frame(isa, task, -1, 1);
  int order[kMaxLabels];
  int64_t step[kMaxLabels];
  for (int l = 0; l < task.labels; ++l) order[l] = l, step[l] = 1;
  constexpr size_t kPart = kLaneAccumulators * 8;
  alignas(64) std::byte local[3][kPart];
  std::byte* const parts[3] = {local[0], local[1], local[2]};
  const int count = std::min(task.inputs, 3);
  do {
    for (int i = 0; i < count; ++i) {
      const size_t bytes = size_t(kLaneAccumulators * format_bytes(task.input[i].format));
      std::memcpy(local[i], frame.base(task.input[i]), bytes);
    }
    fold_tree(isa, combine, type, parts);
    for (int i = 0; i < count; ++i) {
      const Format format = task.output[i].format;
      if (format == Format::IEEE_FP32) {
        float x;
        std::memcpy(&x, local[i], 4);
        if (x != x) x = std::numeric_limits<float>::quiet_NaN();
        std::memcpy(local[i], &x, 4);
      }
      std::memcpy(frame.base(task.output[i]), local[i], size_t(format_bytes(format)));
    }
  } while (advance(frame, order, step, task.labels));
}

}  // namespace openspyre::machine::sfu
