// The region provider: which contiguous physical ranges a device holds, and how they grow.
//
// Internal to csrc/card; guarded by the lock of its DeviceMemory. Knows no blocks. One provider,
// two policies: a Virtual Function has a table of max_handles entries, the Physical Function has
// any number of regions and only its capacity limits it.
#pragma once

#include <memory>
#include <vector>

#include "card/blocks.h"
#include "card/memory.h"

namespace openspyre::card {

class Regions {
 public:
  // Throws std::invalid_argument naming the setting that makes no sense.
  Regions(std::shared_ptr<PhysicalMemory> physical, const MemoryConfig& config);
  ~Regions();

  // Appends at least `need` bytes to the region's end; the bytes added, 0 when refused.
  uint64_t extend(Region& region, uint64_t need);
  // A new region of at least `need` bytes, or null. No place is in it yet.
  Region* open(MemoryType type, int domain, uint64_t need);
  void trim(Region& region, uint64_t size);  // gives back everything from `size` on
  void close(Region& region);                // gives back all; `region` is gone
  uint64_t granule(uint64_t bytes) const;    // rounded up to whole growth granules

  // Newest first: `generation` order of opening.
  const std::vector<Region*>& newest_first() const { return order_; }
  Region* by_id(uint32_t id) const { return id < table_.size() ? table_[id].get() : nullptr; }
  const std::vector<std::unique_ptr<Region>>& table() const { return table_; }  // may hold null
  uint64_t reserved() const { return reserved_; }
  int handles_used() const { return static_cast<int>(order_.size()); }
  int handles_max() const { return vf() ? config_.max_handles : 0; }
  bool handles_left() const { return !vf() || handles_used() < config_.max_handles; }

  // Bytes by which regions of this pool could still grow, all together and the new region alone.
  uint64_t growable(MemoryType type, int domain) const;
  uint64_t new_region_limit() const;  // regardless of handles
  uint64_t extend_limit(const Region& region) const;
  uint64_t largest_region() const;              // what one region can ever hold
  std::byte* host(const Region& region) const;  // null without backing

 private:
  bool vf() const { return config_.kind == FunctionKind::VF; }
  std::shared_ptr<PhysicalMemory> physical_;
  const MemoryConfig& config_;
  std::vector<std::unique_ptr<Region>> table_;
  std::vector<Region*> order_;
  uint64_t reserved_ = 0;
};

}  // namespace openspyre::card
