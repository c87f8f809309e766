// PhysicalMemory: the card's LPDDR5 as one sparse mapping, handed out in ranges. Also DMVA
// arithmetic.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>

#include "card/memory.h"
#include "card/ranges.h"

namespace openspyre::card {

namespace {

constexpr uint64_t kHugePage = 2ull << 20;

uint64_t page_size() {
  static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

}  // namespace

uint64_t dmva(uint64_t segment, uint64_t offset) {
  if (segment >= kDmvaLimit / kSegmentSize || offset >= kSegmentSize)
    throw std::out_of_range("no device address has segment " + std::to_string(segment) +
                            " and offset " + std::to_string(offset) +
                            ": there are 8 segments of 16 GiB");
  return segment << kSegmentBits | offset;
}

SegmentOffset split_dmva(uint64_t address) {
  if (address >= kDmvaLimit)
    throw std::out_of_range("device address " + std::to_string(address) +
                            " is at or above the limit " + std::to_string(kDmvaLimit));
  return {address >> kSegmentBits, address & (kSegmentSize - 1)};
}

struct PhysicalMemory::Impl {
  Impl(uint64_t capacity) : capacity(capacity), ranges(capacity) {}
  const uint64_t capacity;
  std::byte* base = nullptr;
  std::byte* mapping = nullptr;
  uint64_t mapped = 0;
  mutable std::mutex mutex;
  RangeMap ranges;
};

PhysicalMemory::PhysicalMemory(uint64_t capacity, bool backing)
    : impl_(std::make_unique<Impl>(capacity)) {
  if (!backing || capacity == 0) return;
  // A huge page more than needed, so that the base can be aligned to one.
  impl_->mapped = capacity + kHugePage;
  void* at = mmap(nullptr, impl_->mapped, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  impl_->mapping = static_cast<std::byte*>(at);
  uint64_t address = reinterpret_cast<uint64_t>(at);
  impl_->base = impl_->mapping + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
  // Regions grow in granules of a huge page and blocks are packed from the bottom, so huge pages
  // cost at most one granule a region and save 511 of 512 page faults on first touch. Only advice:
  // a refusal changes nothing.
  if (capacity >= 16 * kHugePage) madvise(impl_->base, capacity, MADV_HUGEPAGE);
  madvise(impl_->mapping, impl_->mapped, MADV_DONTDUMP);
}

PhysicalMemory::~PhysicalMemory() {
  if (impl_->mapping) munmap(impl_->mapping, impl_->mapped);
}

std::byte* PhysicalMemory::base() const { return impl_->base; }
uint64_t PhysicalMemory::capacity() const { return impl_->capacity; }

uint64_t PhysicalMemory::used() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ranges.used();
}

std::optional<uint64_t> PhysicalMemory::take(uint64_t size) {
  std::lock_guard lock(impl_->mutex);
  return impl_->ranges.take(size);
}

std::optional<uint64_t> PhysicalMemory::take_with_room(uint64_t size, Room room, uint64_t align) {
  std::lock_guard lock(impl_->mutex);
  auto [start, length] = impl_->ranges.largest();
  if (size == 0 || length < size) return std::nullopt;
  uint64_t at = start;
  // Halving a range that is hardly larger than the request would only make two useless ends.
  if (room == Room::Apart && length / 4 >= size) at = start + (length - size) / 2;
  if (room == Room::High) at = start + length - std::max(size, std::min(length, length / 8));
  at = at / align * align;
  if (at < start) at = start;
  if (!impl_->ranges.take_at(at, size)) return std::nullopt;
  return at;
}

bool PhysicalMemory::extend(uint64_t start, uint64_t old_size, uint64_t size) {
  std::lock_guard lock(impl_->mutex);
  return size > old_size && impl_->ranges.take_at(start + old_size, size - old_size);
}

void PhysicalMemory::give_back(uint64_t start, uint64_t size) {
  if (impl_->base) {
    // Whole pages only: a page may be shared with a neighbour when sizes are odd. Dropped before
    // the range is free, so that the next owner's writes cannot be lost.
    uint64_t page = page_size();
    uint64_t first = (start + page - 1) / page * page, last = (start + size) / page * page;
    if (last > first) madvise(impl_->base + first, last - first, MADV_DONTNEED);
  }
  std::lock_guard lock(impl_->mutex);
  impl_->ranges.give_back(start, size);
}

uint64_t PhysicalMemory::largest_free() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ranges.largest().size;
}

uint64_t PhysicalMemory::free_after(uint64_t address) const {
  std::lock_guard lock(impl_->mutex);
  return impl_->ranges.free_after(address);
}

}  // namespace openspyre::card
