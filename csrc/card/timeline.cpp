// The ring behind DeviceStreams::timeline().

#include "card/timeline.h"

namespace openspyre::card {

uint64_t Timeline::add(const Step& step, uint64_t correlation, StreamId stream, int64_t submit_ns) {
  if (!capacity_) return kNoSlot;
  const size_t at = static_cast<size_t>(next_ % capacity_);
  if (at == ring_.size()) ring_.emplace_back();
  TimelineEntry& entry = ring_[at];
  entry.correlation = correlation;
  entry.name = step.name;  // reuses the old entry's buffer
  entry.engine = step.engine;
  entry.stream = stream;
  entry.start_ns = entry.end_ns = -1;
  entry.submit_ns = submit_ns;
  entry.bytes = step.bytes;
  entry.status = TimelineEntry::Status::Pending;
  const uint64_t slot = next_++;
  if (next_ - first_ > capacity_) first_ = next_ - capacity_;
  return slot;
}

TimelineEntry* Timeline::find(uint64_t slot) {
  if (slot == kNoSlot || slot < first_ || slot >= next_) return nullptr;
  return &ring_[static_cast<size_t>(slot % capacity_)];
}

void Timeline::set_times(uint64_t slot, int64_t start_ns, int64_t end_ns) {
  if (TimelineEntry* entry = find(slot)) {
    entry->start_ns = start_ns;
    entry->end_ns = end_ns;
  }
}

void Timeline::set_status(uint64_t slot, TimelineEntry::Status status) {
  if (TimelineEntry* entry = find(slot)) entry->status = status;
}

std::vector<TimelineEntry> Timeline::entries() const {
  std::vector<TimelineEntry> out;
  out.reserve(static_cast<size_t>(next_ - first_));
  for (uint64_t slot = first_; slot < next_; ++slot)
    out.push_back(ring_[static_cast<size_t>(slot % capacity_)]);
  return out;
}

// Slots stay monotonic (work in flight still holds old ones), so the ring keeps its storage:
// `at == ring_.size()` above holds only while it grows from the front.
void Timeline::clear() { first_ = next_; }

}  // namespace openspyre::card
