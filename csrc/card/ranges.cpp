#include "card/ranges.h"

#include <iterator>
#include <limits>
#include <stdexcept>

namespace openspyre::card {

RangeMap::RangeMap(uint64_t capacity) : capacity_(capacity), used_(capacity) {
  if (capacity) add(0, capacity);
}

void RangeMap::add(uint64_t start, uint64_t size) {
  by_start_.emplace(start, size);
  by_size_.emplace(size, start);
  used_ -= size;
}

void RangeMap::remove(std::map<uint64_t, uint64_t>::iterator range) {
  used_ += range->second;
  by_size_.erase({range->second, range->first});
  by_start_.erase(range);
}

std::optional<uint64_t> RangeMap::take(uint64_t size) {
  auto best = by_size_.lower_bound({size, 0});
  if (size == 0 || best == by_size_.end()) return std::nullopt;
  uint64_t start = best->second;
  take_at(start, size);
  return start;
}

bool RangeMap::take_at(uint64_t start, uint64_t size) {
  auto range = by_start_.upper_bound(start);
  if (size == 0 || range == by_start_.begin()) return false;
  --range;
  auto [first, length] = *range;
  if (start - first > length || length - (start - first) < size) return false;
  remove(range);
  if (start > first) add(first, start - first);
  if (first + length > start + size) add(start + size, first + length - start - size);
  return true;
}

void RangeMap::give_back(uint64_t start, uint64_t size) {
  if (size == 0) return;
  if (start > capacity_ || size > capacity_ - start)
    throw std::logic_error("a range outside of its space was given back");
  auto after = by_start_.lower_bound(start);
  if (after != by_start_.end() && after->first < start + size)
    throw std::logic_error("a range that is free was given back");
  if (after != by_start_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second > start)
      throw std::logic_error("a range that is free was given back");
    if (before->first + before->second == start) {
      start = before->first;
      size += before->second;
      remove(before);
    }
  }
  if (after != by_start_.end() && after->first == start + size) {
    size += after->second;
    remove(after);
  }
  add(start, size);
}

uint64_t RangeMap::free_after(uint64_t address) const {
  auto range = by_start_.upper_bound(address);
  if (range == by_start_.begin()) return 0;
  --range;
  uint64_t end = range->first + range->second;
  return end > address ? end - address : 0;
}

RangeMap::Range RangeMap::largest() const {
  if (by_size_.empty()) return {0, 0};
  auto lowest = by_size_.lower_bound({by_size_.rbegin()->first, 0});
  return {lowest->second, lowest->first};
}

}  // namespace openspyre::card
