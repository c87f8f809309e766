// The Timeline: a ring of what ran when on the virtual clock. Internal to csrc/card.
//
// Serialised by the scheduler's lock. A slot is the absolute number of an entry; an entry that
// has left the ring is silently skipped by later updates.
#pragma once

#include <cstdint>
#include <vector>

#include "card/stream.h"

namespace openspyre::card {

class Timeline {
 public:
  static constexpr uint64_t kNoSlot = ~0ull;

  explicit Timeline(size_t capacity) : capacity_(capacity) {}

  bool enabled() const { return capacity_ != 0; }
  // Adds a pending entry whose virtual times are not resolved yet (-1).
  uint64_t add(const Step& step, uint64_t correlation, StreamId stream, int64_t submit_ns);
  void set_times(uint64_t slot, int64_t start_ns, int64_t end_ns);
  void set_status(uint64_t slot, TimelineEntry::Status status);
  std::vector<TimelineEntry> entries() const;  // oldest first
  void clear();

 private:
  TimelineEntry* find(uint64_t slot);
  size_t capacity_;
  std::vector<TimelineEntry> ring_;  // grows to the capacity, then wraps
  uint64_t first_ = 0;               // oldest slot still held
  uint64_t next_ = 0;
};

}  // namespace openspyre::card
