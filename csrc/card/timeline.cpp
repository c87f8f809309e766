// The ring behind DeviceStreams::timeline().

#include "card/timeline.h"

namespace openspyre::card {

StepSlot Timeline::add(const Step& step, uint64_t correlation, StreamId stream, int64_t submit_ns,
                       int64_t began_wall) {
  StepSlot made;
  if (began_wall)
    made.recorded = Recorder::get().add(step, correlation, device_, stream, began_wall, submit_ns);
  if (!capacity_) return made;
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
  made.ring = next_++;
  if (next_ - first_ > capacity_) first_ = next_ - capacity_;
  return made;
}

TimelineEntry* Timeline::find(StepSlot slot) {
  if (slot.ring < first_ || slot.ring >= next_) return nullptr;
  return &ring_[static_cast<size_t>(slot.ring % capacity_)];
}

void Timeline::set_times(StepSlot slot, int64_t start_ns, int64_t end_ns) {
  if (TimelineEntry* entry = find(slot)) {
    entry->start_ns = start_ns;
    entry->end_ns = end_ns;
  }
  if (RecordedStep* entry = Recorder::get().find(slot.recorded)) {
    entry->begin_virtual = start_ns;
    entry->end_virtual = end_ns;
  }
}

void Timeline::set_status(StepSlot slot, TimelineEntry::Status status) {
  if (TimelineEntry* entry = find(slot)) entry->status = status;
  if (RecordedStep* entry = Recorder::get().find(slot.recorded)) entry->status = status;
}

void Timeline::set_ran(StepSlot slot, const Ran& ran) {
  if (RecordedStep* entry = Recorder::get().find(slot.recorded)) {
    entry->begin_wall = ran.begin_wall;
    entry->end_wall = ran.end_wall;
    entry->run_thread = ran.thread;
  }
}

void Timeline::set_submitted(StepSlot slot) {
  if (RecordedStep* entry = Recorder::get().find(slot.recorded))
    entry->submit_end_wall = Recorder::wall_ns();
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
