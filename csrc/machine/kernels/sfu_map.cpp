// MAP: a body at every point of a box. See sfu_kernels.h.
#include <algorithm>

#include "machine/kernels/index_kernels.h"
#include "machine/kernels/sfu_frame.h"
#include "machine/kernels/sfu_kernels.h"
#include "machine/kernels/sfu_plan.h"

namespace openspyre::machine::sfu {
namespace {

// The label along which blocks grow: the longest (up to a block), and of those the one along which
// most tiles lie stick by stick.
int choose_inner(const Frame& frame, int64_t rows) {
  const ComputeTask& task = frame.task();
  int best = -1;
  int64_t best_score = -1;
  for (int l = 0; l < task.labels; ++l) {
    int64_t score = std::min(frame.extent(l), rows) * 32;
    for (int i = 0; i < task.inputs; ++i) score += task.input[i].stride[l] == kStickBytes;
    for (int i = 0; i < task.outputs; ++i) score += task.output[i].stride[l] == kStickBytes;
    if (score > best_score) {
      best = l;
      best_score = score;
    }
  }
  return best;
}

}  // namespace

void map(const Isa& isa, const ComputeTask& task) {
  if (task.inputs == 1 && task.outputs == 1 && task.input[0].stick != task.output[0].stick &&
      map_relayout(task)) {
    return;
  }
  // Registers lie as the output does; where it has no stick, one element to a row.
  int lane = -1;
  for (int i = task.outputs - 1; i >= 0; --i) {
    if (task.output[i].stick >= 0) lane = task.output[i].stick;
  }
  const int64_t group = Frame::group_of(task, lane);
  Plan& plan = thread_plan();
  plan.build(isa, task, group);
  plan.start(task, 0);
  Frame frame(isa, task, lane, group);
  const int64_t rows = std::max<int64_t>(plan.elements() / group, 1);
  frame.set_inner(choose_inner(frame, rows));
  int order[kMaxLabels], count = 0;
  int64_t step[kMaxLabels];
  for (int l = 0; l < task.labels; ++l) {
    if (l != frame.inner()) order[count] = l, step[count++] = 1;
  }
  do {
    if (frame.inner() >= 0) frame.at[frame.inner()] = 0;
    for (;;) {
      const Block block = frame.block(rows);
      plan.run(frame, block);
      for (int i = 0; i < task.outputs; ++i) {
        frame.store(task.output[i], block, plan.result_type(size_t(i)), plan.result(size_t(i)));
      }
      if (frame.inner() < 0) break;
      frame.at[frame.inner()] += block.rows;
      if (frame.at[frame.inner()] >= frame.extent(frame.inner())) break;
    }
    if (frame.inner() >= 0) frame.at[frame.inner()] = 0;
  } while (advance(frame, order, step, count));
}

}  // namespace openspyre::machine::sfu
