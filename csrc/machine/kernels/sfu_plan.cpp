// Registers and steps of a body. See sfu_plan.h.
#include "machine/kernels/sfu_plan.h"

#include <algorithm>
#include <cstring>

namespace openspyre::machine::sfu {

Plan& thread_plan() {
  thread_local Plan plan;
  return plan;
}

void Plan::build(const Isa& isa, const ComputeTask& task, int64_t group) {
  const Body& body = task.code->body;
  const int count = int(body.nodes.size());
  steps_.clear();
  constants_.clear();
  results_.clear();
  types_.clear();
  free_.clear();
  slots_ = 0;
  // The last node that reads each; -1: nobody, the node is left out. Results are read at the end.
  last_use_.assign(size_t(count), -1);
  for (const int result : body.results) last_use_[size_t(result)] = count;
  bool wide = false;
  for (int i = count - 1; i >= 0; --i) {
    if (last_use_[size_t(i)] < 0) continue;
    const Node& node = body.nodes[size_t(i)];
    wide = wide || node.result == Register::I64;
    for (int a = 0; a < node.arity; ++a) {
      int& last = last_use_[size_t(node.args[a])];
      last = std::max(last, i);
    }
  }
  slot_of_.assign(size_t(count), -1);
  for (int i = 0; i < count; ++i) {
    if (last_use_[size_t(i)] < 0) continue;
    const Node& node = body.nodes[size_t(i)];
    const bool constant = node.op == Op::Const || node.op == Op::Scalar;
    int& slot = slot_of_[size_t(i)];
    if (free_.empty() || constant) {  // a constant's register is its own for all blocks
      slot = slots_++;
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    if (constant) {
      constants_.push_back({slot, &node});
      last_use_[size_t(i)] = count;
      continue;
    }
    Step step{isa.op[int(node.op)][int(node.type)],
              node.op,
              slot,
              {-1, -1, -1},
              node.arity,
              node.immediate};
    for (int a = 0; a < node.arity; ++a) {
      const size_t arg = size_t(node.args[a]);
      step.in[a] = slot_of_[arg];
      if (last_use_[arg] == i) {  // free for the next node; not for this one's own result
        last_use_[arg] = count;   // once, if it is read twice here
        free_.push_back(slot_of_[arg]);
      }
    }
    steps_.push_back(step);
  }
  for (const int result : body.results) {
    results_.push_back(slot_of_[size_t(result)]);
    types_.push_back(body.nodes[size_t(result)].result);
  }
  const size_t width = wide ? 8 : 4;
  // Few registers share the first-level cache with the tiles.
  constexpr size_t kBudget = 24 << 10;
  elements_ = kBlock;
  while (elements_ > std::max<int64_t>(group, 256) &&
         size_t(elements_) * width * size_t(slots_) > kBudget) {
    elements_ /= 2;
  }
  slot_bytes_ = size_t(elements_) * width + 64;  // + 64: registers do not fall on the same sets
}

std::byte* Plan::start(const ComputeTask& task, size_t extra) {
  const size_t own = slot_bytes_ * size_t(slots_);
  memory_ = scratch(own + extra);
  for (const Constant& constant : constants_) {
    const Node& node = *constant.node;
    int64_t value = node.immediate;
    if (node.op == Op::Scalar) value = task.symbols[size_t(node.immediate)];
    std::byte* const to = memory_ + slot_bytes_ * size_t(constant.slot);
    if (node.type == Register::I64) {
      std::fill_n(reinterpret_cast<int64_t*>(to), elements_, value);
    } else {
      if (node.type == Register::Bool) value = value ? -1 : 0;
      std::fill_n(reinterpret_cast<int32_t*>(to), elements_, int32_t(value));
    }
  }
  return memory_ + own;
}

void Plan::run(const Frame& frame, const Block& block) {
  const int64_t n = (block.rows * frame.group() + kPad - 1) / kPad * kPad;
  Context context = frame.context();
  for (const Step& step : steps_) {
    std::byte* const out = memory_ + slot_bytes_ * size_t(step.out);
    if (step.op == Op::Input) {
      frame.load(frame.task().input[step.immediate], block, out);
    } else if (step.op == Op::Index) {
      frame.index(int(step.immediate), block, reinterpret_cast<int64_t*>(out));
    } else {
      const void* in[3] = {};
      for (int a = 0; a < step.arity; ++a) in[a] = memory_ + slot_bytes_ * size_t(step.in[a]);
      context.immediate = step.immediate;
      step.loop(out, in, n, context);
    }
  }
}

}  // namespace openspyre::machine::sfu
