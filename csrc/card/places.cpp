// Moves of places between used, parked and free; growth and return of regions.
#include <algorithm>

#include "card/device_memory.h"

namespace openspyre::card {

using Action = TraceEntry::Action;

Pool& DeviceMemory::Impl::pool_of(MemoryType type, int domain) {
  if (domain == 0) return *pools[static_cast<size_t>(type)];
  for (auto& pool : pools)
    if (pool->type == type && pool->domain == domain) return *pool;
  auto pool = std::make_unique<Pool>();
  pool->type = type;
  pool->domain = domain;
  pool->clean = config.exact_best_fit ? make_best_fit_index() : make_fast_index();
  pools.push_back(std::move(pool));
  return *pools.back();
}

// A free place counts as an inactive split when it is only a part of its region.
void DeviceMemory::Impl::enlist(Place& place) {
  Pool& pool = pool_of(place.region->type, place.region->domain);
  place.state = Place::State::Free;
  pool.free_bytes += place.size;
  if (place.fence_stream < 0) {
    place.index = pool.clean.get();
  } else {
    auto lane = std::find_if(pool.fenced.begin(), pool.fenced.end(),
                             [&](auto& f) { return f.stream == place.fence_stream; });
    if (lane == pool.fenced.end()) {
      pool.fenced.push_back(
          {place.fence_stream, config.exact_best_fit ? make_best_fit_index() : make_fast_index()});
      lane = pool.fenced.end() - 1;
    }
    place.index = lane->index.get();
    place.fence_previous = nullptr;
    place.fence_next = lane->head;
    if (lane->head) lane->head->fence_previous = &place;
    lane->head = &place;
  }
  place.index->insert(place);
  if (pool.type == MemoryType::Tensor && (place.previous || place.next))
    counters.split_added(place.size);
}

void DeviceMemory::Impl::unlist(Place& place) {
  Pool& pool = pool_of(place.region->type, place.region->domain);
  pool.free_bytes -= place.size;
  place.index->erase(place);
  place.index = nullptr;
  if (place.fence_stream >= 0) {
    if (place.fence_next) place.fence_next->fence_previous = place.fence_previous;
    if (place.fence_previous) {
      place.fence_previous->fence_next = place.fence_next;
    } else {
      for (auto& lane : pool.fenced)
        if (lane.stream == place.fence_stream) lane.head = place.fence_next;
    }
  }
  if (pool.type == MemoryType::Tensor && (place.previous || place.next))
    counters.split_removed(place.size);
}

Place* DeviceMemory::Impl::settle(Place* place) {
  auto alike = [&](const Place* other) {
    return other && other->state == Place::State::Free &&
           other->fence_stream == place->fence_stream;
  };
  if (Place* before = place->previous; alike(before)) {
    unlist(*before);
    before->size += place->size;
    before->fence = std::max(before->fence, place->fence);
    before->next = place->next;
    (place->next ? place->next->previous : place->region->last) = before;
    place_nodes.give_back(place);
    place = before;
  }
  if (Place* after = place->next; alike(after)) {
    unlist(*after);
    place->size += after->size;
    place->fence = std::max(place->fence, after->fence);
    place->next = after->next;
    (after->next ? after->next->previous : place->region->last) = place;
    place_nodes.give_back(after);
  }
  enlist(*place);
  return place;
}

Place* DeviceMemory::Impl::carve(Place* place, uint64_t size) {
  Place* rest = place->size > size ? place_nodes.take() : nullptr;
  unlist(*place);
  if (rest) {
    *rest = Place{};
    rest->offset = place->offset + size;
    rest->size = place->size - size;
    rest->region = place->region;
    rest->previous = place;
    rest->next = place->next;
    rest->fence_stream = place->fence_stream;
    rest->fence = place->fence;
    (place->next ? place->next->previous : place->region->last) = rest;
    place->next = rest;
    place->size = size;
    enlist(*rest);
  }
  place->state = Place::State::Used;
  place->fence_stream = -1;
  place->fence = 0;
  return place;
}

Place* DeviceMemory::Impl::try_take(Pool& pool, uint64_t size, int stream) {
  Place* best = pool.clean->find(size);
  for (auto& lane : pool.fenced)
    if (lane.stream == stream)
      if (Place* own = lane.index->find(size); own && (!best || own->size <= best->size))
        best = own;  // on equal size its own memory: it may still be in the caches
  if (!best) best = grow(pool, size, stream);
  if (!best) best = pool.clean->search(size);
  if (!best)
    for (auto& lane : pool.fenced)
      if (lane.stream == stream) best = lane.index->search(size);
  return best ? carve(best, size) : nullptr;
}

Place* DeviceMemory::Impl::grow(Pool& pool, uint64_t size, int stream) {
  bool counted = pool.type == MemoryType::Tensor;
  for (Region* region : regions.newest_first()) {
    if (region->type != pool.type || region->domain != pool.domain) continue;
    Place* tail = region->last;
    bool is_free = tail->state == Place::State::Free;
    bool joins = is_free && (tail->fence_stream < 0 || tail->fence_stream == stream);
    if (joins && tail->size >= size) return tail;
    Place* fresh = joins ? nullptr : place_nodes.take();
    uint64_t before = region->size;
    uint64_t added = regions.extend(*region, joins ? size - tail->size : size);
    if (!added) {
      if (fresh) place_nodes.give_back(fresh);
      continue;
    }
    pool.reserved += added;
    if (counted) counters.region_resized(before, region->size);
    note(Action::SegmentMap, region->address() + before, added, stream, {});
    if (is_free) unlist(*tail);
    if (joins) {
      tail->size += added;
    } else {
      *fresh = Place{};
      fresh->offset = before;
      fresh->size = added;
      fresh->region = region;
      fresh->previous = tail;
      tail->next = fresh;
      region->last = fresh;
    }
    if (is_free) enlist(*tail);
    if (joins) return tail;
    enlist(*fresh);
    return fresh;
  }
  Place* whole = place_nodes.take();
  Region* region = regions.open(pool.type, pool.domain, size);
  if (!region) {
    place_nodes.give_back(whole);
    return nullptr;
  }
  *whole = Place{};
  whole->size = region->size;
  whole->region = region;
  region->first = region->last = whole;
  pool.reserved += region->size;
  if (counted) counters.region_resized(0, region->size);
  note(Action::SegmentAlloc, region->address(), region->size, stream, {});
  enlist(*whole);
  return whole;
}

void DeviceMemory::Impl::count_in(Place& place, uint64_t size, uint64_t requested, int stream,
                                  const Frames& frames) {
  place.block_size = size;
  place.requested = requested;
  place.stream = stream;
  if (place.region->type == MemoryType::Tensor) {
    counters.allocated(size, requested);
  } else {
    stat_up(counters.stats.program_allocation, 1);
    stat_up(counters.stats.program_bytes, static_cast<int64_t>(size));
  }
  note(Action::Alloc, place.region->address() + place.offset, size, stream, frames);
}

void DeviceMemory::Impl::retire(Place& place, const std::vector<int>& users, const Frames& frames,
                                std::vector<Fence>& to_record) {
  place.block = nullptr;
  if (place.region->type == MemoryType::Tensor) {
    counters.free_requested(place.block_size);
  } else {
    stat_down(counters.stats.program_allocation, 1);
    stat_down(counters.stats.program_bytes, static_cast<int64_t>(place.block_size));
  }
  note(Action::FreeRequested, place.region->address() + place.offset, place.block_size,
       place.stream, frames);
  if (!markers() || (users.empty() && !several_streams && !host_writes()))
    return complete(place, -1, 0, frames);
  int own = -1;
  uint64_t fence = 0;
  if (several_streams || host_writes()) {
    own = place.stream;
    fence = fences.reserve(own);
    to_record.push_back({own, fence});
  }
  if (!users.empty() || host_writes()) {
    Parked entry{&place, {}, own, fence, frames};
    for (int user : users) {
      entry.waits.push_back({user, fences.reserve(user)});
      to_record.push_back(entry.waits.back());
    }
    if (host_writes()) entry.waits.push_back({own, fence});
    place.state = Place::State::Parked;
    parked.push_back(std::move(entry));
  } else {
    complete(place, own, fence, frames);
  }
  count_fences();
}

void DeviceMemory::Impl::complete(Place& place, int fence_stream, uint64_t fence,
                                  const Frames& frames) {
  if (place.region->type == MemoryType::Tensor)
    counters.free_completed(place.block_size, place.requested);
  note(Action::FreeCompleted, place.region->address() + place.offset, place.block_size,
       place.stream, frames);
  bool clean = fence_stream < 0 || fences.passed(fence_stream, fence);
  place.state = Place::State::Free;
  place.fence_stream = clean ? -1 : fence_stream;
  place.fence = clean ? 0 : fence;
  settle(&place);
}

void DeviceMemory::Impl::sweep() {
  for (size_t i = 0; i < parked.size();) {
    Parked& entry = parked[i];
    if (!std::all_of(entry.waits.begin(), entry.waits.end(),
                     [&](const Fence& f) { return fences.passed(f.first, f.second); })) {
      ++i;
      continue;
    }
    complete(*entry.place, entry.fence_stream, entry.fence, entry.frames);
    if (i + 1 < parked.size()) parked[i] = std::move(parked.back());
    parked.pop_back();
  }
  for (auto& pool : pools)
    for (auto& lane : pool->fenced)
      for (Place* place = lane.head; place;) {
        Place* following = place->fence_next;
        if (fences.passed(lane.stream, place->fence)) {
          unlist(*place);
          place->fence_stream = -1;
          place->fence = 0;
          settle(place);  // merges with clean neighbours only: `following` stays listed
        }
        place = following;
      }
}

// True when `stream` is the second one and every clean place was fenced on the first.
bool DeviceMemory::Impl::note_stream(int stream, std::vector<Fence>& to_record) {
  if (several_streams || stream == first_stream) return false;
  if (first_stream < 0) {
    first_stream = stream;
    return false;
  }
  if (!markers()) return false;
  several_streams = true;
  uint64_t fence = fences.reserve(first_stream);
  to_record.push_back({first_stream, fence});
  for (Region* region : regions.newest_first())
    for (Place* place = region->first; place; place = place->next)
      if (place->state == Place::State::Free && place->fence_stream < 0) {
        unlist(*place);
        place->fence_stream = first_stream;
        place->fence = fence;
        place = settle(place);
      }
  // What is parked for other streams has had no fence of its own stream so far.
  for (Parked& entry : parked)
    if (entry.fence_stream < 0) {
      entry.fence_stream = first_stream;
      entry.fence = fence;
    }
  count_fences();
  return true;
}

bool DeviceMemory::Impl::close_if_empty(Region& region) {
  if (!region.empty()) return false;
  Pool& pool = pool_of(region.type, region.domain);
  Place* whole = region.first;
  unlist(*whole);
  pool.reserved -= region.size;
  if (region.type == MemoryType::Tensor) counters.region_resized(region.size, 0);
  note(Action::SegmentFree, region.address(), region.size, 0, {});
  place_nodes.give_back(whole);
  regions.close(region);
  return true;
}

// Gives the free end of a region back, down to a whole granule: otherwise a region that grew once
// would keep what other types and other tenants need for as long as one block lives in it.
bool DeviceMemory::Impl::trim_tail(Region& region) {
  Place* tail = region.last;
  if (tail == region.first || tail->state != Place::State::Free || tail->fence_stream >= 0)
    return false;
  uint64_t size = std::min(regions.granule(tail->offset), region.size), before = region.size;
  if (size == before) return false;
  unlist(*tail);
  if (size == tail->offset) {
    // The place before the tail may become the region's only one, and then is no split any more.
    Place* last = tail->previous;
    bool is_free = last->state == Place::State::Free;
    if (is_free) unlist(*last);
    last->next = nullptr;
    region.last = last;
    place_nodes.give_back(tail);
    if (is_free) enlist(*last);
  } else {
    tail->size = size - tail->offset;
    enlist(*tail);
  }
  pool_of(region.type, region.domain).reserved -= before - size;
  if (region.type == MemoryType::Tensor) counters.region_resized(before, size);
  note(Action::SegmentUnmap, region.address() + size, before - size, 0, {});
  regions.trim(region, size);
  return true;
}

// Under pressure only as much is returned as the request needs (the caller retries after each), so
// that a workload at the edge does not return and reopen everything all the time: first the
// largest empty region of another pool, then of its own, then the longest free tail.
bool DeviceMemory::Impl::release_one(const Pool* wanted) {
  Region* best = nullptr;
  auto foreign = [&](const Region& r) {
    return r.type != wanted->type || r.domain != wanted->domain;
  };
  for (Region* region : regions.newest_first()) {
    if (!region->empty()) continue;
    if (!best || std::pair(foreign(*region), region->size) > std::pair(foreign(*best), best->size))
      best = region;
  }
  if (best) return close_if_empty(*best);
  std::vector<Region*> by_tail = regions.newest_first();
  std::sort(by_tail.begin(), by_tail.end(),
            [](Region* a, Region* b) { return a->last->size > b->last->size; });
  return std::any_of(by_tail.begin(), by_tail.end(), [&](Region* r) { return trim_tail(*r); });
}

}  // namespace openspyre::card
