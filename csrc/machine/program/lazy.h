// LOADs that are not copied until somebody needs the copy.
//
// A plain LOAD of an operand that nobody writes during the launch need not move a byte: a COMPUTE
// that reads the tile can read the operand. Here stands, for the LX of one core, which sticks are
// still only in LPDDR5. Every access to LX asks first; whatever it does is exactly what copying at
// once would have done. Where deferred loads overlap, the later one is what LX holds: a short last
// tile in a slot does not make the copy of the long one before it necessary.
//
// Torch-free. Not thread-safe: cores whose LX others read lock around it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/program/sticks.h"

namespace openspyre::machine {

class LazyLoads {
 public:
  void start(std::byte* lx) {
    lx_ = lx;
    entries_ = 0;
    low_ = INT64_MAX;
    high_ = 0;
  }

  // Notes a LOAD whose target and source are `target` (in LX) and `box` (target's and memory's
  // strides), from `memory`. False: it must be copied (what it overlaps has been dealt with).
  bool defer(const Tile& target, const StickBox& box, const std::byte* memory);

  // Before LX bytes [low, high) are read: copies what is still missing there.
  void before_read(int64_t low, int64_t high) {
    if (high > low_ && low < high_) copy_overlapping(low, high);
  }

  // Before `tile` is written. What it covers need not be copied any more; the rest of any load it
  // overlaps is copied.
  void before_write(const Tile& tile) {
    if (tile.high > low_ && tile.low < high_) overwrite(tile);
  }

  // Where a COMPUTE or STORE finds its input tile: if all of it is a part of one deferred load, the
  // memory address and strides of it and true. Else false: the tile is in LX, now for certain.
  bool find(const Tile& tile, const std::byte** memory, int64_t* stride) {
    if (tile.high <= low_ || tile.low >= high_) return false;
    return find_slow(tile, memory, stride);
  }

  int64_t copied() const { return copied_; }  // bytes, ever

 private:
  static constexpr int kEntries = 64;
  struct Entry {
    int64_t low, high;
    const std::byte* memory;  // of the stick at `low`
    StickBox box;             // nested by LX strides, longest first
  };

  void copy_overlapping(int64_t low, int64_t high);
  void copy_all() { copy_overlapping(INT64_MIN, INT64_MAX); }
  void drop_covered(const Tile& tile);
  void overwrite(const Tile& tile);
  bool find_slow(const Tile& tile, const std::byte** memory, int64_t* stride);
  bool part_of(const Entry& entry, const Tile& tile, const std::byte** memory,
               int64_t* stride) const;
  void copy(const Entry& entry);
  void keep(const bool* dropped);

  std::byte* lx_ = nullptr;
  int entries_ = 0;
  int64_t low_ = INT64_MAX, high_ = 0;  // hull of all entries; never too small
  int64_t copied_ = 0;
  Entry entry_[kEntries];  // by age, oldest first
};

}  // namespace openspyre::machine
