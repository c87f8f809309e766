// Virtual time of one engine: which stretches of the card's clock are already taken.
//
// Torch-free and lock-free: the caller (the scheduler) serialises. Times are nanoseconds on the
// card's virtual clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace openspyre::card {

// Sorted, disjoint, non-touching busy intervals. A step takes the earliest gap that fits, so that
// a step held back by an event leaves the engine free for later submissions of other streams.
class BusyList {
 public:
  // Above this many intervals the oldest gap is closed: a program that leaves thousands of holes
  // behind loses the oldest one, and the list stays bounded. A pure function of the calls.
  static constexpr size_t kMaxIntervals = 4096;

  // Takes `length` ns (>= 0) at the earliest time >= `earliest`; returns the start. A step of no
  // length takes nothing, but still waits for the end of an interval it falls into.
  int64_t reserve(int64_t earliest, int64_t length);

  // The caller promises that no later reserve() asks for a time before `time`.
  void forget_before(int64_t time);

  size_t size() const { return busy_.size() - head_; }

 private:
  struct Interval {
    int64_t start, end;
  };
  void insert(size_t at, int64_t start, int64_t end);
  std::vector<Interval> busy_;
  size_t head_ = 0;  // intervals before it are forgotten; compacted now and then
};

}  // namespace openspyre::card
