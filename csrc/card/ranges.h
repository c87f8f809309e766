// Free ranges of one linear space: best fit, low address on ties, coalesced at once.
//
// Torch-free and not thread-safe: PhysicalMemory (card addresses) and TokenSpace (host addresses)
// each guard theirs with their own lock. O(log ranges) per operation.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace openspyre::card {

class RangeMap {
 public:
  struct Range {
    uint64_t start, size;
  };
  explicit RangeMap(uint64_t capacity);  // [0, capacity) is free

  std::optional<uint64_t> take(uint64_t size);    // best fit
  bool take_at(uint64_t start, uint64_t size);    // exactly there; false when not all free
  void give_back(uint64_t start, uint64_t size);  // std::logic_error when part of it is free
  uint64_t free_after(uint64_t address) const;    // free bytes that start exactly there
  Range largest() const;                          // lowest of the largest; {0, 0} when full
  uint64_t used() const { return used_; }

 private:
  void add(uint64_t start, uint64_t size);
  void remove(std::map<uint64_t, uint64_t>::iterator range);
  uint64_t capacity_, used_;
  std::map<uint64_t, uint64_t> by_start_;            // start -> size
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (size, start)
};

}  // namespace openspyre::card
