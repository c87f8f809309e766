// What a step touches, told to the hazard tracker. Empty where hazards are not tracked.
#pragma once

#include <vector>

#include "machine/footprint.h"
#include "torch/allocation.h"

namespace openspyre::device {

using Accesses = std::vector<card::Access>;

inline card::Access access_of(const Allocation& allocation,
                              const std::vector<machine::Extent>& extents, bool write) {
  card::Access access{allocation.block->token, write, {}};
  access.ranges.reserve(extents.size());
  for (const machine::Extent& e : extents)
    access.ranges.push_back({static_cast<uint64_t>(e.begin), static_cast<uint64_t>(e.end)});
  return access;
}

// One view of a storage.
inline Accesses touches(const Allocation& allocation, const machine::Layout& layout, int64_t offset,
                        c10::IntArrayRef sizes, c10::IntArrayRef strides, bool write) {
  if (!allocation.device->streams->tracks_hazards()) return {};
  const machine::View view{offset, {strides.data(), strides.size()}};
  return {
      access_of(allocation, machine::footprint(layout, view, {sizes.data(), sizes.size()}), write)};
}

// The whole block.
inline Accesses touches_all(const Allocation& allocation, bool write) {
  if (!allocation.device->streams->tracks_hazards()) return {};
  return {access_of(allocation, {{0, static_cast<int64_t>(allocation.block->size)}}, write)};
}

inline Accesses both(Accesses a, const Accesses& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace openspyre::device
