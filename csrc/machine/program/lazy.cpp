// See lazy.h.
#include "machine/program/lazy.h"

#include <algorithm>

namespace openspyre::machine {

namespace {

// The dims of a tile as a box of its own addresses.
StickBox box_of(const Tile& tile) {
  StickBox box;
  for (int i = 0; i < tile.labels; ++i) {
    if (tile.stride[i] != 0 && tile.count[i] > 1) box.add(tile.count[i], 0, tile.stride[i]);
  }
  return box;
}

// True when a nested `box` of points of `point_bytes` leaves no hole between low and high.
bool dense(const StickBox& box, int64_t point_bytes, int64_t low, int64_t high) {
  return box.points() * point_bytes == high - low;
}

}  // namespace

void LazyLoads::copy(const Entry& entry) {
  copy_sticks(lx_ + entry.low, entry.memory, entry.box, kStickBytes);
  copied_ += entry.box.points() * kStickBytes;
}

// Takes the marked entries out; the others keep their order.
void LazyLoads::keep(const bool* dropped) {
  int kept = 0;
  for (int i = 0; i < entries_; ++i) {
    if (dropped[i]) continue;
    if (kept != i) entry_[kept] = entry_[i];
    ++kept;
  }
  entries_ = kept;
  if (entries_ == 0) {
    low_ = INT64_MAX;
    high_ = 0;
  }
}

void LazyLoads::copy_overlapping(int64_t low, int64_t high) {
  // What is asked for, and what lies under it: an older load must not be copied over a newer one.
  bool taken[kEntries] = {};
  bool any = false;
  for (int i = entries_ - 1; i >= 0; --i) {
    taken[i] = entry_[i].high > low && entry_[i].low < high;
    for (int j = i + 1; !taken[i] && j < entries_; ++j) {
      taken[i] = taken[j] && entry_[i].high > entry_[j].low && entry_[i].low < entry_[j].high;
    }
    any = any || taken[i];
  }
  if (!any) return;
  for (int i = 0; i < entries_; ++i) {
    if (taken[i]) copy(entry_[i]);
  }
  keep(taken);
}

void LazyLoads::drop_covered(const Tile& tile) {
  StickBox box;
  int shape = 0;  // 1: nested, 2: not
  bool covered[kEntries] = {};
  bool any = false;
  for (int i = 0; i < entries_; ++i) {
    const Entry& entry = entry_[i];
    if (entry.high <= tile.low || entry.low >= tile.high) continue;
    if (shape == 0) {
      box = box_of(tile);
      shape = box.nest(tile.point_bytes) ? 1 : 2;
    }
    if (shape == 2) return;
    covered[i] = tile.low <= entry.low && entry.high <= tile.high &&
                 dense(box, tile.point_bytes, tile.low, tile.high);
    if (!covered[i] && tile.low == entry.low && tile.point_bytes == kStickBytes) {
      // The same grid of sticks, at least as far in every direction.
      covered[i] = true;
      int at = 0;
      for (int d = 0; covered[i] && d < entry.box.dims; ++d) {
        while (at < box.dims && box.to[at] > entry.box.to[d]) ++at;
        covered[i] =
            at < box.dims && box.to[at] == entry.box.to[d] && box.count[at] >= entry.box.count[d];
      }
    }
    any = any || covered[i];
  }
  if (any) keep(covered);
}

void LazyLoads::overwrite(const Tile& tile) {
  drop_covered(tile);
  copy_overlapping(tile.low, tile.high);
}

bool LazyLoads::defer(const Tile& target, const StickBox& given, const std::byte* memory) {
  drop_covered(target);
  StickBox box = given;
  if (!box.nest(kStickBytes)) {
    copy_overlapping(target.low, target.high);
    return false;
  }
  if (entries_ == kEntries) copy_all();
  Entry& entry = entry_[entries_++];
  entry.low = target.low;
  entry.high = target.high;
  entry.memory = memory;
  entry.box = box;
  low_ = std::min(low_, target.low);
  high_ = std::max(high_, target.high);
  return true;
}

bool LazyLoads::part_of(const Entry& entry, const Tile& tile, const std::byte** memory,
                        int64_t* stride) const {
  if (tile.point_bytes != kStickBytes || tile.low < entry.low || tile.high > entry.high) {
    return false;
  }
  const StickBox& box = entry.box;
  // The grid position of the tile's first stick: unique, since the strides nest.
  int64_t rest = tile.address - entry.low;
  const std::byte* address = entry.memory;
  int64_t room[kMaxLabels];
  for (int d = 0; d < box.dims; ++d) {
    const int64_t step = std::min(rest / box.to[d], box.count[d] - 1);
    rest -= step * box.to[d];
    address += step * box.from[d];
    room[d] = box.count[d] - 1 - step;
  }
  if (rest != 0) return false;
  for (int label = 0; label < tile.labels; ++label) {
    stride[label] = 0;
    if (tile.count[label] <= 1 || tile.stride[label] == 0) continue;
    int d = 0;
    while (d < box.dims && box.to[d] != tile.stride[label]) ++d;
    if (d == box.dims || tile.count[label] - 1 > room[d]) return false;
    room[d] -= tile.count[label] - 1;
    stride[label] = box.from[d];
  }
  *memory = address;
  return true;
}

bool LazyLoads::find_slow(const Tile& tile, const std::byte** memory, int64_t* stride) {
  for (int i = entries_ - 1; i >= 0; --i) {
    if (entry_[i].high <= tile.low || entry_[i].low >= tile.high) continue;
    if (part_of(entry_[i], tile, memory, stride)) return true;
    break;  // what an older load holds of the tile is, as far as one can see here, not all of it
  }
  copy_overlapping(tile.low, tile.high);
  return false;
}

}  // namespace openspyre::machine
