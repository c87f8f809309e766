#include "card/regions.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace openspyre::card {

Regions::Regions(std::shared_ptr<PhysicalMemory> physical, const MemoryConfig& config)
    : physical_(std::move(physical)), config_(config) {
  auto refuse = [](const std::string& text) { throw std::invalid_argument("memory: " + text); };
  if (!physical_) refuse("a device needs a card");
  if (vf() && (config.max_handles < 1 || config.max_handles > 16))
    refuse("max_handles is " + std::to_string(config.max_handles) +
           ", but the region table of a Virtual Function has 1 to 16 entries");
  if (config.min_region == 0 || config.min_region % kBlockAlign)
    refuse("min_region is " + std::to_string(config.min_region) +
           ", but must be a positive multiple of 128 bytes");
  if (config.max_region < config.min_region || config.max_region > kSegmentSize ||
      config.max_region % kBlockAlign)
    refuse("max_region is " + std::to_string(config.max_region) +
           ", but must be a multiple of 128 bytes from min_region to one segment (16 GiB)");
  if (config.capacity == 0 || config.capacity > physical_->capacity())
    refuse("capacity is " + std::to_string(config.capacity) + ", but the card has " +
           std::to_string(physical_->capacity()) + " bytes");
}

Regions::~Regions() {
  for (const auto& region : table_)
    if (region) physical_->give_back(region->physical, region->size);
}

uint64_t Regions::granule(uint64_t bytes) const {
  return (bytes + config_.min_region - 1) / config_.min_region * config_.min_region;
}

// Growth goes in granules (2 MiB by default) and in place, so that a region ends at most one
// granule behind its live blocks: on the recorded transformer trace that gave the lowest ratio of
// reserved to live bytes, and a VF spends one handle where doubling or fixed region sizes spend
// several. Whatever limits the last step (segment, capacity, neighbour) is used up to the byte.
uint64_t Regions::extend(Region& region, uint64_t need) {
  uint64_t limit = extend_limit(region);
  if (need == 0 || limit < need) return 0;
  uint64_t added = std::min(granule(need), limit);
  if (!physical_->extend(region.physical, region.size, region.size + added)) return 0;
  region.size += added;
  reserved_ += added;
  return added;
}

// A new region starts as small as an extended one would end, as it can grow in place as well;
// where it starts decides whether it can. Tensor regions of a device that is alone on its card are
// stacked from the bottom and program regions near the top; a device with company (other functions
// hold memory) starts in the middle of the largest free range.
//
// A VF that opens another region although an older one of the pool is shorter than a segment has
// been blocked by a neighbour and will be again: it then asks for its share of what is left,
// free / handles left, and halves that on refusal, so that its handles last for its capacity.
Region* Regions::open(MemoryType type, int domain, uint64_t need) {
  uint64_t limit = std::min(config_.capacity - reserved_, config_.max_region);
  if (!handles_left() || need == 0 || limit < need) return nullptr;
  uint64_t floor = std::min(granule(need), limit), want = floor;
  if (vf())
    for (const Region* other : order_)
      if (other->type == type && other->domain == domain && other->size < config_.max_region) {
        uint64_t share = std::min(config_.capacity - reserved_, physical_->largest_free()) /
                         static_cast<uint64_t>(config_.max_handles - handles_used());
        want = std::min(std::max(floor, granule(share)), limit);
      }
  bool alone = physical_->used() == reserved_;
  auto room = type != MemoryType::Tensor ? PhysicalMemory::Room::High
              : alone                    ? PhysicalMemory::Room::Low
                                         : PhysicalMemory::Room::Apart;
  std::optional<uint64_t> start;
  while (!(start = physical_->take_with_room(want, room, config_.min_region)) && want > floor)
    want = std::max(floor, granule(want / 2));
  // Less than a granule may be left between neighbours: exactly what is needed is the last try.
  if (!start && need < want) start = physical_->take(want = need);
  if (!start) return nullptr;
  auto region = std::make_unique<Region>();
  region->type = type;
  region->domain = domain;
  region->physical = *start;
  region->size = want;
  uint32_t id = 0;
  while (id < table_.size() && table_[id]) ++id;
  if (id == table_.size()) table_.emplace_back();
  region->id = id;
  order_.insert(order_.begin(), region.get());
  reserved_ += want;
  table_[id] = std::move(region);
  return table_[id].get();
}

void Regions::trim(Region& region, uint64_t size) {
  physical_->give_back(region.physical + size, region.size - size);
  reserved_ -= region.size - size;
  region.size = size;
}

void Regions::close(Region& region) {
  physical_->give_back(region.physical, region.size);
  reserved_ -= region.size;
  order_.erase(std::find(order_.begin(), order_.end(), &region));
  table_[region.id].reset();
}

uint64_t Regions::extend_limit(const Region& region) const {
  return std::min({config_.max_region - region.size, config_.capacity - reserved_,
                   physical_->free_after(region.physical + region.size)});
}

uint64_t Regions::new_region_limit() const {
  return std::min({config_.max_region, config_.capacity - reserved_, physical_->largest_free()});
}

uint64_t Regions::largest_region() const { return std::min(config_.max_region, config_.capacity); }

uint64_t Regions::growable(MemoryType type, int domain) const {
  uint64_t bytes =
      std::min(config_.capacity - reserved_, physical_->capacity() - physical_->used());
  if (!vf()) return bytes;
  // A Virtual Function reaches only what its regions and its remaining handles can map.
  uint64_t reach = static_cast<uint64_t>(config_.max_handles - handles_used()) * config_.max_region;
  for (const Region* region : order_)
    if (region->type == type && region->domain == domain)
      reach += config_.max_region - region->size;
  return std::min(bytes, reach);
}

std::byte* Regions::host(const Region& region) const {
  return physical_->base() ? physical_->base() + region.physical : nullptr;
}

}  // namespace openspyre::card
