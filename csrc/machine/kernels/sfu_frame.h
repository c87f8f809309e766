// How the SFU walks an iteration box: in blocks of some hundred elements, tile by tile.
//
// Torch-free; runs on any processor, the vector code is called through sfu_isa.h. One label, the
// *lane* label, lies along the registers in *groups* (as many elements as the widest stick that has
// it, 64 for 16-bit formats); a block is several groups one after another along a second label, the
// *inner* one (which may be the lane label itself). Without a lane label a group is one element.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/kernels/kernels.h"
#include "machine/kernels/sfu_isa.h"

namespace openspyre::machine::sfu {

inline constexpr int64_t kBlock = 1024;  // elements of a block at most, but for one larger group

// Memory of the calling thread, 64-byte aligned, valid until the next call; contents arbitrary but
// initialised.
std::byte* scratch(size_t bytes);

Register register_of_format(Format format);

struct Block {
  int64_t rows = 0;   // groups
  int64_t valid = 0;  // elements of each group that are inside the box
};

class Frame {
 public:
  // `lane`: the label or -1. `group`: elements of a group.
  Frame(const Isa& isa, const ComputeTask& task, int lane, int64_t group);

  // The largest stick, in elements, of the task's tiles with `lane` on it; at least 16. 1 for -1.
  static int64_t group_of(const ComputeTask& task, int lane);

  int labels() const { return task_.labels; }
  int lane() const { return lane_; }
  int64_t group() const { return group_; }
  // Steps along a label: points, or groups of the lane label.
  int64_t extent(int label) const { return extent_[label]; }
  int64_t unit(int label) const { return label == lane_ ? group_ : 1; }

  void set_inner(int label) { inner_ = label; }  // -1: blocks of one group
  int inner() const { return inner_; }
  // Where the block begins: steps along every label.
  int64_t at[kMaxLabels] = {};

  // The block that begins here, of at most `rows` groups. A group that the box does not fill makes
  // a block of its own where the lane label is the inner one.
  Block block(int64_t rows) const;

  // Where the first group of the block begins, and how far the next one is.
  std::byte* base(const View& view) const;
  std::byte* row(const View& view, std::byte* base, int64_t row) const;
  bool steady(const View& view, int64_t* step) const;  // false: use row()

  // Decodes an input's elements to a register of rows * group elements (padded to 16).
  void load(const View& view, const Block& block, void* to) const;
  // Encodes a register of `type`; may write all of every stick that holds an element.
  void store(const View& view, const Block& block, Register type, const void* from) const;
  // Global indices along `label`.
  void index(int label, const Block& block, int64_t* to) const;

  const Context& context() const { return context_; }
  const Isa& isa() const { return isa_; }
  const ComputeTask& task() const { return task_; }

 private:
  int64_t offset(const View& view, int label, int64_t steps) const;
  void load_sticks(const View& view, const Block& block, char* to, size_t width) const;
  void encode(const View& view, Register type, const void* from, void* to, int64_t n) const;

  const Isa& isa_;
  const ComputeTask& task_;
  int lane_, inner_ = -1;
  int64_t group_;
  int64_t extent_[kMaxLabels] = {};
  Context context_;
};

// Steps `frame.at` to the next point of the labels in `order` (last one fastest), of which label
// order[i] moves by step[i]. False when all are through; they are at zero again then.
bool advance(Frame& frame, const int* order, const int64_t* step, int count);

}  // namespace openspyre::machine::sfu
