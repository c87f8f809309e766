// Counting for MemoryStats: which counters an event moves. Internal; guarded by the caller's lock.
//
// The small pool is what lies below MemoryConfig::small_limit: blocks by their rounded size,
// regions and free remainders by their present size.
#pragma once

#include "card/memory.h"

namespace openspyre::card {

inline void stat_up(Stat& stat, int64_t amount) {
  stat.current += amount;
  stat.allocated += amount;
  if (stat.current > stat.peak) stat.peak = stat.current;
}
inline void stat_down(Stat& stat, int64_t amount) {
  stat.current -= amount;
  stat.freed += amount;
}

class StatsRecorder {
 public:
  explicit StatsRecorder(uint64_t small_limit) : small_limit_(small_limit) {}
  using Pair = std::array<Stat, kStatPools>;

  void up(Pair& pair, uint64_t size, uint64_t amount) {
    stat_up(pair[kAggregate], static_cast<int64_t>(amount));
    stat_up(pair[pool(size)], static_cast<int64_t>(amount));
  }
  void down(Pair& pair, uint64_t size, uint64_t amount) {
    stat_down(pair[kAggregate], static_cast<int64_t>(amount));
    stat_down(pair[pool(size)], static_cast<int64_t>(amount));
  }
  void allocated(uint64_t size, uint64_t requested) {
    up(stats.allocation, size, 1);
    up(stats.allocated_bytes, size, size);
    up(stats.active, size, 1);
    up(stats.active_bytes, size, size);
    up(stats.requested_bytes, size, requested);
  }
  void free_requested(uint64_t size) {
    down(stats.allocation, size, 1);
    down(stats.allocated_bytes, size, size);
  }
  void free_completed(uint64_t size, uint64_t requested) {
    down(stats.active, size, 1);
    down(stats.active_bytes, size, size);
    down(stats.requested_bytes, size, requested);
  }
  void split_added(uint64_t size) {
    up(stats.inactive_split, size, 1);
    up(stats.inactive_split_bytes, size, size);
  }
  void split_removed(uint64_t size) {
    down(stats.inactive_split, size, 1);
    down(stats.inactive_split_bytes, size, size);
  }
  // A region went from `before` to `after` bytes; 0 = it did not or does not exist.
  void region_resized(uint64_t before, uint64_t after) {
    if (before && after && pool(before) == pool(after)) {
      if (after > before) up(stats.reserved_bytes, after, after - before);
      if (after < before) down(stats.reserved_bytes, after, before - after);
      return;
    }
    if (before) down(stats.segment, before, 1), down(stats.reserved_bytes, before, before);
    if (after) up(stats.segment, after, 1), up(stats.reserved_bytes, after, after);
    if (!before) ++stats.num_device_alloc;
    if (!after) ++stats.num_device_free;
  }

  template <class F>
  void each(F&& f) {
    for (Pair* pair : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split,
                       &stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                       &stats.inactive_split_bytes, &stats.requested_bytes})
      for (Stat& stat : *pair) f(stat);
    f(stats.program_bytes);
    f(stats.program_allocation);
  }

  MemoryStats stats;

 private:
  StatPool pool(uint64_t size) const { return size < small_limit_ ? kSmallPool : kLargePool; }
  uint64_t small_limit_;
};

}  // namespace openspyre::card
