// When has the work that may touch a freed place ended? Markers of streams, as sequence numbers.
//
// Internal to csrc/card; guarded by the lock of the DeviceMemory that owns it, which also keeps
// the hooks out: a fence is *reserved* under the lock, its marker is recorded with no lock held
// and then *set*, and questions to the streams are collected, asked unlocked and answered.
// Nothing is assumed about the markers' values; sequence numbers of a stream pass in order.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace openspyre::card {

class Fences {
 public:
  struct Question {
    int stream;
    uint64_t sequence, marker;
    bool recorded;  // false: the marker is still to be recorded
  };

  // A new fence at the present end of `stream`. It cannot pass before its marker is set.
  uint64_t reserve(int stream) {
    Lane& lane = lane_of(stream);
    lane.marks.push_back({++lane.last, 0, Mark::Unrecorded});
    ++outstanding_;
    return lane.last;
  }
  void set_marker(int stream, uint64_t sequence, uint64_t marker) {
    if (Mark* mark = find(stream, sequence))
      if (mark->state == Mark::Unrecorded) mark->marker = marker, mark->state = Mark::Waiting;
  }
  bool passed(int stream, uint64_t sequence) const {
    for (const Lane& lane : lanes_)
      if (lane.stream == stream) return sequence <= lane.passed;
    return true;
  }
  void set_passed(int stream, uint64_t sequence) {
    Mark* mark = find(stream, sequence);
    if (!mark) return;
    mark->state = Mark::Passed;
    Lane& lane = lane_of(stream);
    while (!lane.marks.empty() && lane.marks.front().state == Mark::Passed) {
      lane.passed = lane.marks.front().sequence;
      lane.marks.pop_front();
      --outstanding_;
    }
  }
  int64_t outstanding() const { return outstanding_; }
  // At most `limit` of the oldest open fences of each stream.
  std::vector<Question> questions(size_t limit) const {
    std::vector<Question> all;
    for (const Lane& lane : lanes_)
      for (size_t i = 0; i < lane.marks.size() && i < limit; ++i)
        if (const Mark& mark = lane.marks[i]; mark.state != Mark::Passed)
          all.push_back({lane.stream, mark.sequence, mark.marker, mark.state == Mark::Waiting});
    return all;
  }

 private:
  struct Mark {
    uint64_t sequence, marker;
    enum State : uint8_t { Unrecorded, Waiting, Passed } state;
  };
  struct Lane {
    int stream;
    uint64_t last = 0, passed = 0;
    std::deque<Mark> marks;
  };
  Lane& lane_of(int stream) {
    for (Lane& lane : lanes_)
      if (lane.stream == stream) return lane;
    lanes_.push_back({stream, 0, 0, {}});
    return lanes_.back();
  }
  Mark* find(int stream, uint64_t sequence) {
    Lane& lane = lane_of(stream);
    if (lane.marks.empty() || sequence < lane.marks.front().sequence || sequence > lane.last)
      return nullptr;
    return &lane.marks[sequence - lane.marks.front().sequence];  // sequences have no gaps
  }
  std::vector<Lane> lanes_;  // a handful: linear search beats a map
  int64_t outstanding_ = 0;
};

}  // namespace openspyre::card
