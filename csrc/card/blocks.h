// Places of a region (used, parked or free) and the interface of the indices of free places.
//
// Internal to csrc/card; guarded by the lock of the DeviceMemory that owns them. A region is a
// chain of places in address order without gaps. Free places also stand in exactly one FreeIndex:
// the pool's `clean` one, or that of the stream whose earlier work may still touch them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "card/memory.h"

namespace openspyre::card {

struct LiveBlock;
struct Region;
class FreeIndex;

struct Place {
  enum class State : uint8_t { Used, Parked, Free };
  uint64_t offset = 0, size = 0;
  Region* region = nullptr;
  Place *previous = nullptr, *next = nullptr;  // in address order; `next` chains unused nodes too
  State state = State::Free;

  // Free: its index, and the links and bin that the index keeps in it.
  FreeIndex* index = nullptr;
  Place *bin_previous = nullptr, *bin_next = nullptr;
  uint32_t bin = 0;
  // Free and fenced: only this stream may take it before `fence` is passed. -1 = anybody may.
  int fence_stream = -1;
  uint64_t fence = 0;
  Place *fence_previous = nullptr, *fence_next = nullptr;

  // Used or parked.
  LiveBlock* block = nullptr;  // null for chunks of a CompositeAddress and for parked places
  uint64_t block_size = 0, requested = 0;
  int stream = 0;
};

// One handle's worth of contiguous physical memory.
struct Region {
  uint32_t id = 0;
  MemoryType type = MemoryType::Tensor;
  int domain = 0;
  uint64_t physical = 0, size = 0;
  Place *first = nullptr, *last = nullptr;
  // How the region would be mapped as a segment (D1: segment 0 is never mapped).
  uint64_t address() const { return (1ull + id) << kSegmentBits; }
  bool empty() const {
    return first == last && first->state == Place::State::Free && first->fence_stream < 0;
  }
};

// Free places, found by size. insert/erase must bracket every change of a place's size.
class FreeIndex {
 public:
  virtual ~FreeIndex() = default;
  virtual void insert(Place& place) = 0;
  virtual void erase(Place& place) = 0;
  virtual Place* find(uint64_t size) const = 0;    // a place of at least `size` bytes, or null
  virtual Place* search(uint64_t size) const = 0;  // the same, but misses none, however slow
  virtual uint64_t largest() const = 0;            // bytes; 0 when empty
};
std::unique_ptr<FreeIndex> make_fast_index();
std::unique_ptr<FreeIndex> make_best_fit_index();

// Recycled nodes with stable addresses.
template <class T>
class NodePool {
 public:
  T* take() {
    if (unused_.empty()) {
      slabs_.push_back(std::make_unique<T[]>(kSlab));
      unused_.reserve(slabs_.size() * kSlab);  // so that give_back never allocates
      for (size_t i = kSlab; i-- > 0;) unused_.push_back(&slabs_.back()[i]);
    }
    T* node = unused_.back();
    unused_.pop_back();
    return node;
  }
  void give_back(T* node) noexcept { unused_.push_back(node); }

 private:
  static constexpr size_t kSlab = 256;
  std::vector<std::unique_ptr<T[]>> slabs_;
  std::vector<T*> unused_;
};

}  // namespace openspyre::card
