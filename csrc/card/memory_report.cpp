// What DeviceMemory says about itself: information, statistics, errors, history, snapshot, checks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <map>
#include <string>

#include "card/device_memory.h"

namespace openspyre::card {

using Action = TraceEntry::Action;

const char* verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::Exhausted:
      return "exhausted";
    case Verdict::Fragmented:
      return "fragmented";
    case Verdict::HandleLimited:
      return "handle-limited";
    case Verdict::TooLargeForRegion:
      return "too large for a region";
  }
  return "unknown";
}

const char* action_name(Action action) {
  switch (action) {
    case Action::Alloc:
      return "alloc";
    case Action::FreeRequested:
      return "free_requested";
    case Action::FreeCompleted:
      return "free_completed";
    case Action::SegmentAlloc:
      return "segment_alloc";
    case Action::SegmentFree:
      return "segment_free";
    case Action::Snapshot:
      return "snapshot";
    case Action::Oom:
      return "oom";
    case Action::SegmentMap:
      return "segment_map";
    case Action::SegmentUnmap:
      return "segment_unmap";
  }
  return "unknown";
}

const char* state_name(BlockInfo::State state) {
  switch (state) {
    case BlockInfo::State::ActiveAllocated:
      return "active_allocated";
    case BlockInfo::State::ActivePendingFree:
      return "active_pending_free";
    case BlockInfo::State::Inactive:
      return "inactive";
  }
  return "unknown";
}

namespace {

std::string in_bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 6) value /= 1024, ++unit;
  char text[64];
  if (unit == 0)
    std::snprintf(text, sizeof text, "%llu B", static_cast<unsigned long long>(bytes));
  else
    std::snprintf(text, sizeof text, "%llu B (%.2f %s)", static_cast<unsigned long long>(bytes),
                  value, kUnits[unit]);
  return text;
}

const char* type_text(MemoryType type) {
  switch (type) {
    case MemoryType::Tensor:
      return "tensor";
    case MemoryType::ProgramStatic:
      return "static program";
    case MemoryType::ProgramDynamic:
      return "dynamic program";
  }
  return "unknown";
}

}  // namespace

// --- how much there is

uint64_t DeviceMemory::Impl::usable(const Pool& pool) const {
  uint64_t bytes = pool.free_bytes + regions.growable(pool.type, pool.domain);
  for (const Region* region : regions.newest_first())  // idle regions of others are returned
    if ((region->type != pool.type || region->domain != pool.domain) && region->empty())
      bytes += region->size;
  return bytes;
}

uint64_t DeviceMemory::Impl::largest_in_regions(const Pool& pool) const {
  uint64_t most = pool.clean->largest();
  for (const auto& lane : pool.fenced) most = std::max(most, lane.index->largest());
  return most;
}

uint64_t DeviceMemory::Impl::largest_obtainable(const Pool& pool) const {
  uint64_t most = largest_in_regions(pool);
  for (const Region* region : regions.newest_first()) {
    if (region->type != pool.type || region->domain != pool.domain) continue;
    uint64_t tail = region->last->state == Place::State::Free ? region->last->size : 0;
    most = std::max(most, tail + regions.extend_limit(*region));
  }
  if (regions.handles_left()) most = std::max(most, regions.new_region_limit());
  return most / kBlockAlign * kBlockAlign;
}

MemoryInfo DeviceMemory::info() const {
  const Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  const Pool& pool = *m.pools[0];
  MemoryInfo info;
  info.free = m.usable(pool);
  uint64_t free_in_regions = 0, largest = 0;
  for (const auto& other : m.pools) {
    if (other->type != MemoryType::Tensor) continue;
    info.reserved += other->reserved;
    info.total += other->reserved - other->free_bytes;  // in use
    free_in_regions += other->free_bytes;
    largest = std::max(largest, m.largest_in_regions(*other));
  }
  info.total += info.free;
  info.largest_free_block = m.largest_obtainable(pool);
  info.handles_used = m.regions.handles_used();
  info.handles_max = m.regions.handles_max();
  if (free_in_regions)
    info.fragmentation = 1 - static_cast<double>(largest) / static_cast<double>(free_in_regions);
  return info;
}

MemoryStats DeviceMemory::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->counters.stats;
}

void DeviceMemory::reset_peak_stats() {
  std::lock_guard lock(impl_->mutex);
  impl_->counters.each([](Stat& stat) { stat.peak = stat.current; });
}

void DeviceMemory::reset_accumulated_stats() {
  std::lock_guard lock(impl_->mutex);
  impl_->counters.each([](Stat& stat) { stat.allocated = stat.freed = 0; });
  MemoryStats& stats = impl_->counters.stats;
  stats.num_alloc_retries = stats.num_ooms = stats.num_sync_all_streams = 0;
  stats.num_device_alloc = stats.num_device_free = 0;
}

// --- when there is not enough

void DeviceMemory::Impl::out_of_memory(Lock& lock, uint64_t bytes, uint64_t need, const Pool& pool,
                                       const Frames& frames) {
  bool vf = config.kind == FunctionKind::VF;
  uint64_t free = usable(pool), most = regions.largest_region();
  uint64_t rounded = bytes > most ? bytes : round_up_block(bytes);
  Verdict verdict = Verdict::Exhausted;
  if (need > most)
    verdict = Verdict::TooLargeForRegion;
  else if (!regions.handles_left() && regions.new_region_limit() >= need)
    verdict = Verdict::HandleLimited;
  else if (free >= need)
    verdict = Verdict::Fragmented;
  std::string hint;
  switch (verdict) {
    case Verdict::TooLargeForRegion:
      hint = "No region can be larger than " + in_bytes(most) +
             (config.max_region < config.capacity ? " (the segment limit)" : " (the capacity)") +
             ": split the tensor into parts below that.";
      break;
    case Verdict::HandleLimited:
      hint = in_bytes(config.capacity - regions.reserved()) +
             " of the capacity are in no region, but every entry of the region table is in use: "
             "use larger regions (max_region), more handles (max_handles, at most 16) or the "
             "Physical Function.";
      break;
    case Verdict::Fragmented:
      hint =
          "Enough bytes are free, but not in one piece: free tensors that lie between free "
          "blocks (the memory snapshot shows them), or allocate the largest tensors first.";
      break;
    case Verdict::Exhausted:
      hint =
          "Free tensors that are no longer needed, or use a smaller batch or a shorter "
          "sequence.";
      break;
  }
  std::string text =
      "spyre:" + std::to_string(device) + " (" + (vf ? "VF" : "PF") + ") is out of " +
      type_text(pool.type) + " memory, verdict " + verdict_text(verdict) + ": requested " +
      in_bytes(bytes) + ", rounded " + in_bytes(rounded) + ", free " + in_bytes(free) +
      ", capacity " + in_bytes(config.capacity) + ", largest free block " +
      in_bytes(largest_obtainable(pool)) + ", reserved in regions " + in_bytes(regions.reserved()) +
      ", handles used " + std::to_string(regions.handles_used()) + " of " +
      (vf ? std::to_string(config.max_handles) : "unlimited") + ". " + hint;
  ++counters.stats.num_ooms;
  note(Action::Oom, free, bytes, 0, frames);
  lock.unlock();
  throw OutOfMemory(text, verdict);
}

// --- history and snapshot

void DeviceMemory::Impl::note(Action action, uint64_t address, uint64_t size, int stream,
                              const Frames& frames) {
  if (!recording.load(std::memory_order_relaxed) || history_limit == 0) return;
  int64_t now = std::chrono::duration_cast<std::chrono::microseconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count();
  if (history.size() >= history_limit) history.pop_front();
  history.push_back({action, address, size, stream, now, frames});
}

void DeviceMemory::record_history(bool enabled, size_t max_entries) {
  std::deque<TraceEntry> dying;  // frames may call out when they die: not under the lock
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  if (enabled) {
    m.history_limit = max_entries;
    dying.swap(m.history);
  }
  m.recording.store(enabled, std::memory_order_relaxed);
}

MemorySnapshot DeviceMemory::snapshot() const {
  Frames frames = impl_->capture();
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  MemorySnapshot picture;
  for (const auto& region : m.regions.table()) {
    if (!region) continue;
    RegionInfo info{region->address(), region->size, 0, 0, 0, region->physical,
                    region->id,        region->type, {}};
    for (const Place* place = region->first; place; place = place->next) {
      BlockInfo block{region->address() + place->offset,
                      place->size,
                      place->requested,
                      BlockInfo::State::Inactive,
                      place->stream,
                      place->block ? place->block->frames : Frames{}};
      if (place->state == Place::State::Used) {
        block.state = BlockInfo::State::ActiveAllocated;
        info.allocated += place->size;
      }
      if (place->state == Place::State::Parked) block.state = BlockInfo::State::ActivePendingFree;
      if (place->state == Place::State::Free) {
        block.requested = 0;
        block.stream = std::max(place->fence_stream, 0);
      } else {
        info.active += place->size;
        info.requested += place->requested;
      }
      info.blocks.push_back(std::move(block));
    }
    picture.regions.push_back(std::move(info));
  }
  m.note(Action::Snapshot, 0, 0, 0, frames);
  picture.trace.assign(m.history.begin(), m.history.end());
  return picture;
}

// --- checks

void DeviceMemory::check_invariants() const {
  std::lock_guard lock(impl_->mutex);
  impl_->check();
}

void DeviceMemory::Impl::check() const {
  auto must = [](bool condition, const char* text) {
    if (!condition) throw std::logic_error(std::string("memory invariant broken: ") + text);
  };
  MemoryStats found;
  auto add = [&](auto& pair, uint64_t size, uint64_t amount) {
    pair[kAggregate].current += static_cast<int64_t>(amount);
    pair[size < config.small_limit ? kSmallPool : kLargePool].current +=
        static_cast<int64_t>(amount);
  };
  std::map<uint64_t, uint64_t> ranges;
  std::map<const Pool*, std::pair<uint64_t, uint64_t>> sums;
  uint64_t reserved = 0;
  int64_t blocks = 0;
  size_t parked_found = 0, chunks_found = 0;
  for (const auto& region : regions.table()) {
    if (!region) continue;
    must(region->size > 0 && region->size <= config.max_region, "size of a region");
    ranges.emplace(region->physical, region->size);
    reserved += region->size;
    const Pool* pool = nullptr;
    for (const auto& p : pools)
      if (p->type == region->type && p->domain == region->domain) pool = p.get();
    must(pool, "a region without a pool");
    bool tensor = region->type == MemoryType::Tensor;
    if (tensor)
      add(found.segment, region->size, 1), add(found.reserved_bytes, region->size, region->size);
    sums[pool].first += region->size;
    uint64_t end = 0;
    const Place* before = nullptr;
    for (const Place* place = region->first; place; before = place, place = place->next) {
      must(place->offset == end && place->size > 0, "gap or overlap between places");
      must(place->offset % kBlockAlign == 0, "alignment of a place");
      must(place->previous == before && place->region == region.get(), "links of a place");
      end += place->size;
      if (place->state == Place::State::Free) {
        must(place->index, "a free place in no index");
        must(!before || before->state != Place::State::Free ||
                 before->fence_stream != place->fence_stream,
             "two adjacent free places of one kind");
        sums[pool].second += place->size;
        if (tensor && (place->previous || place->next)) {
          add(found.inactive_split, place->size, 1);
          add(found.inactive_split_bytes, place->size, place->size);
        }
        continue;
      }
      must(place->size == place->block_size + guard_bytes() &&
               place->block_size == round_up_block(place->requested),
           "size of a used place");
      parked_found += place->state == Place::State::Parked;
      bool used = place->state == Place::State::Used;
      if (used && place->block) {
        ++blocks;
        must(place->block->place == place && place->block->size == place->block_size &&
                 place->block->offset == place->offset && place->block->region == region->id &&
                 TokenSpace::get().find(place->block->token) == place->block,
             "a block and its place or token disagree");
      }
      chunks_found += used && !place->block;
      if (!tensor) {
        found.program_allocation.current += used;
        found.program_bytes.current += used ? static_cast<int64_t>(place->block_size) : 0;
        continue;
      }
      if (used) add(found.allocation, place->block_size, 1);
      if (used) add(found.allocated_bytes, place->block_size, place->block_size);
      add(found.active, place->block_size, 1);
      add(found.active_bytes, place->block_size, place->block_size);
      add(found.requested_bytes, place->block_size, place->requested);
    }
    must(end == region->size && before == region->last, "sizes of the places of a region");
  }
  uint64_t free_from = 0;
  for (auto [start, size] : ranges) {
    must(start >= free_from, "overlap of two regions");
    free_from = start + size;
  }
  must(reserved == regions.reserved() && reserved <= config.capacity, "reserved bytes");
  must(!regions.handles_max() || regions.handles_used() <= regions.handles_max(), "handles");
  must(blocks == live && parked_found == parked.size() && chunks_found == chunks.size(),
       "number of blocks");
  for (const auto& pool : pools)
    must(sums[pool.get()] == std::pair(pool->reserved, pool->free_bytes), "sums of a pool");
  StatsRecorder expected(config.small_limit), present(config.small_limit);
  expected.stats = found;
  present.stats = counters.stats;
  std::vector<int64_t> left, right;
  expected.each([&](Stat& stat) { left.push_back(stat.current); });
  present.each([&](Stat& stat) {
    right.push_back(stat.current);
    must(stat.peak >= stat.current, "a peak below its present value");
  });
  must(left == right, "statistics and places disagree");
}

}  // namespace openspyre::card
