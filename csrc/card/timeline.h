// The Timeline: a ring of what ran when on the virtual clock. Internal to csrc/card.
//
// Serialised by the scheduler's lock. A slot is the absolute number of an entry; an entry that
// has left the ring is silently skipped by later updates. What the ring is told goes to the
// recorder too, while somebody listens.
#pragma once

#include <cstdint>
#include <vector>

#include "card/recorder.h"
#include "card/stream.h"

namespace openspyre::card {

// When the work of a step ran, by the wall clock, and on which thread; zeros where nobody listens.
struct Ran {
  int64_t begin_wall = 0, end_wall = 0;
  int thread = 0;
};

// A step's place in the ring and in the recorder.
struct StepSlot {
  uint64_t ring = ~uint64_t{0};
  uint64_t recorded = Recorder::kNone;
};

class Timeline {
 public:
  static constexpr StepSlot kNoSlot{};

  Timeline(size_t capacity, int device) : capacity_(capacity), device_(device) {}

  bool enabled() const { return capacity_ != 0; }
  // Adds a pending entry whose virtual times are not resolved yet (-1). `began_wall`: when the call
  // of submit() began; 0: nobody listens.
  StepSlot add(const Step& step, uint64_t correlation, StreamId stream, int64_t submit_ns,
               int64_t began_wall);
  void set_times(StepSlot slot, int64_t start_ns, int64_t end_ns);
  void set_status(StepSlot slot, TimelineEntry::Status status);
  void set_ran(StepSlot slot, const Ran& ran);
  void set_submitted(StepSlot slot);           // the call of submit() ends now
  std::vector<TimelineEntry> entries() const;  // oldest first
  void clear();

 private:
  TimelineEntry* find(StepSlot slot);
  size_t capacity_;
  int device_;
  std::vector<TimelineEntry> ring_;  // grows to the capacity, then wraps
  uint64_t first_ = 0;               // oldest slot still held
  uint64_t next_ = 0;
};

}  // namespace openspyre::card
