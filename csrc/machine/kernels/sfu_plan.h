// A body, made ready to run on blocks: which loop, on which registers, in which order.
//
// Torch-free. Built once per task; run once per block.
#pragma once

#include <vector>

#include "machine/kernels/sfu_frame.h"

namespace openspyre::machine::sfu {

inline constexpr size_t kMaxNodes = 4096;  // of a body: bounds the registers' memory

class Plan {
 public:
  // Plans the body of a checked task. The registers hold `elements` each.
  void build(const Isa& isa, const ComputeTask& task, int64_t group);

  int64_t elements() const { return elements_; }  // of a block, a multiple of the group
  // Allots the registers, fills the constants; `extra` bytes are the caller's. Once per task.
  std::byte* start(const ComputeTask& task, size_t extra);
  // Runs the body on the block at `frame`.
  void run(const Frame& frame, const Block& block);
  const void* result(size_t i) const { return memory_ + slot_bytes_ * size_t(results_[i]); }
  Register result_type(size_t i) const { return types_[i]; }

 private:
  struct Step {
    OpLoop loop;  // null: an input or an index
    Op op;
    int out, in[3], arity;
    int64_t immediate;
  };
  struct Constant {
    int slot;
    const Node* node;
  };
  std::vector<Step> steps_;
  std::vector<Constant> constants_;
  std::vector<int> results_, slot_of_, last_use_, free_;
  std::vector<Register> types_;
  int64_t elements_ = 0;
  size_t slot_bytes_ = 0;
  int slots_ = 0;
  std::byte* memory_ = nullptr;
};

// The plan of the calling thread: its memory is used again for the next task.
Plan& thread_plan();

}  // namespace openspyre::machine::sfu
