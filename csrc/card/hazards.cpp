#include "card/hazards.h"

#include <algorithm>

#include "card/scheduler.h"

namespace openspyre::card {
namespace {

// The first bytes that both have; both are sorted and disjoint.
std::optional<ByteRange> overlap(const std::vector<ByteRange>& a, const std::vector<ByteRange>& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const uint64_t begin = std::max(a[i].begin, b[j].begin), end = std::min(a[i].end, b[j].end);
    if (begin < end) return ByteRange{begin, end};
    a[i].end < b[j].end ? ++i : ++j;
  }
  return std::nullopt;
}

bool covers(const std::vector<ByteRange>& outer, const std::vector<ByteRange>& inner) {
  size_t o = 0;
  for (const ByteRange& range : inner) {
    while (o < outer.size() && outer[o].end < range.end) ++o;
    if (o == outer.size() || outer[o].begin > range.begin) return false;
  }
  return true;
}

std::string where(const Stream& stream) {
  return "stream " + std::to_string(stream.id) + " of device " +
         std::to_string(stream.owner->device);
}

}  // namespace

uint64_t VectorClock::at(const Stream* stream) const {
  for (const auto& [s, step] : steps_)
    if (s == stream) return step;
  return 0;
}

void VectorClock::reach(const Stream* stream, uint64_t step) {
  for (auto& [s, reached] : steps_) {
    if (s != stream) continue;
    reached = std::max(reached, step);
    return;
  }
  steps_.emplace_back(stream, step);
}

void VectorClock::merge(const VectorClock& other) {
  for (const auto& [stream, step] : other.steps_) reach(stream, step);
}

void VectorClock::forget(const Stream* stream) {
  std::erase_if(steps_, [&](const auto& step) { return step.first == stream; });
}

std::optional<HazardFound> HazardTracker::find(const Stream& stream, const VectorClock& clock,
                                               const Step& step) const {
  for (const Access& access : step.accesses) {
    const auto block = blocks_.find(access.block);
    if (block == blocks_.end()) continue;
    for (const Record& record : block->second) {
      if (!record.write && !access.write) continue;
      if (record.stream == &stream || clock.at(record.stream) >= record.number) continue;
      const auto shared_bytes = overlap(record.ranges, access.ranges);
      if (!shared_bytes) continue;
      const char* kind = !record.write ? "WAR" : access.write ? "WAW" : "RAW";
      const std::string first = "'" + record.name + "' on " + where(*record.stream);
      return HazardFound{
          kind, record.stream,
          std::string(kind) + " hazard: '" + step.name + "' on " + where(stream) + " would " +
              (access.write ? "write" : "read") + " bytes [" + std::to_string(shared_bytes->begin) +
              ", " + std::to_string(shared_bytes->end) + ") of a block that " + first +
              (record.write ? " writes" : " reads") +
              ", and nothing orders the two. Let the later stream wait (wait_stream or "
              "wait_event), or set OPENSPYRE_HAZARDS=insert to have the wait added"};
    }
  }
  return std::nullopt;
}

void HazardTracker::record(Stream& stream, uint64_t number, const VectorClock& clock,
                           const Step& step) {
  for (const Access& access : step.accesses) {
    std::vector<Record>& records = blocks_[access.block];
    // Whoever runs behind this step also runs behind what it covers: that need not be kept.
    std::erase_if(records, [&](const Record& old) {
      return (access.write || !old.write) && clock.at(old.stream) >= old.number &&
             covers(access.ranges, old.ranges);
    });
    records.push_back({&stream, number, access.write, step.name, access.ranges});
  }
}

void HazardTracker::forget(const void* block) { blocks_.erase(block); }

void HazardTracker::forget_stream(const Stream* stream) {
  for (auto& [block, records] : blocks_)
    std::erase_if(records, [&](const Record& record) { return record.stream == stream; });
}

size_t HazardTracker::records() const {
  size_t sum = 0;
  for (const auto& [block, records] : blocks_) sum += records.size();
  return sum;
}

}  // namespace openspyre::card
