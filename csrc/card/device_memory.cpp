// DeviceMemory: the public calls, the out-of-memory ladder, and what asks the streams.
#include "card/device_memory.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string>

namespace openspyre::card {

using Action = TraceEntry::Action;

namespace {

constexpr std::byte kPoison{0xA5}, kGuard{0xFD};
constexpr size_t kPollFew = 16, kPollAll = std::numeric_limits<size_t>::max();
// A freed Block stays unused for this many frees, so that a late double free finds it dead.
constexpr size_t kBlockQuarantine = 64;
// The pressure hook may allocate itself; it must not climb into itself.
thread_local bool in_pressure = false;

struct PressureScope {
  PressureScope() { in_pressure = true; }
  ~PressureScope() { in_pressure = false; }
};

}  // namespace

DeviceMemory::Impl::Impl(int device, std::shared_ptr<PhysicalMemory> physical,
                         const MemoryConfig& config)
    : device(device),
      config(config),
      backing(physical && physical->base()),
      regions(std::move(physical), this->config),
      counters(config.small_limit) {
  for (MemoryType type :
       {MemoryType::Tensor, MemoryType::ProgramStatic, MemoryType::ProgramDynamic}) {
    pools.push_back(std::make_unique<Pool>());
    pools.back()->type = type;
    pools.back()->domain = 0;
    pools.back()->clean = config.exact_best_fit ? make_best_fit_index() : make_fast_index();
  }
}

DeviceMemory::Impl::~Impl() {
  for (LiveBlock& block : block_nodes)
    if (block.owner && block.token) TokenSpace::get().release(&block);
}

DeviceMemory::DeviceMemory(int device, std::shared_ptr<PhysicalMemory> physical,
                           MemoryConfig config)
    : impl_(std::make_unique<Impl>(device, std::move(physical), config)) {}

DeviceMemory::~DeviceMemory() = default;

void DeviceMemory::set_hooks(MemoryHooks hooks) {
  auto fresh = std::make_shared<const MemoryHooks>(std::move(hooks));
  std::lock_guard lock(impl_->mutex);
  impl_->hooks.swap(fresh);  // the old ones die with no lock held
}

int DeviceMemory::device() const { return impl_->device; }
const MemoryConfig& DeviceMemory::config() const { return impl_->config; }

int64_t DeviceMemory::live_blocks() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->live;
}

// --- asking the outside, with no lock held

Frames DeviceMemory::Impl::capture() const {
  if (!recording.load(std::memory_order_relaxed)) return {};
  std::shared_ptr<const MemoryHooks> asked;
  {
    std::lock_guard lock(mutex);
    asked = hooks;
  }
  return asked && asked->frames ? asked->frames() : Frames{};
}

void DeviceMemory::Impl::record(const std::vector<Fence>& list) {
  if (list.empty()) return;
  std::shared_ptr<const MemoryHooks> asked;
  {
    std::lock_guard lock(mutex);
    asked = hooks;
  }
  if (!asked || !asked->record_marker) return;
  for (auto [stream, sequence] : list) {
    uint64_t marker;
    try {
      marker = asked->record_marker(stream);
    } catch (...) {
      continue;  // stays unrecorded, thus closed; poll(kPollAll) tries again
    }
    std::lock_guard lock(mutex);
    fences.set_marker(stream, sequence, marker);
  }
}

void DeviceMemory::Impl::poll(size_t limit) {
  std::vector<Fences::Question> open;
  std::shared_ptr<const MemoryHooks> asked;
  {
    std::lock_guard lock(mutex);
    open = fences.questions(limit);
    asked = hooks;
  }
  if (open.empty()) return;
  bool can_ask = asked && asked->record_marker && asked->marker_passed;
  auto passed = [&](Fences::Question& q) {
    if (!can_ask) return true;  // the streams are gone, and their work with them
    if (!q.recorded) {
      if (limit != kPollAll) return false;
      q.marker = asked->record_marker(q.stream);
      std::lock_guard lock(mutex);
      fences.set_marker(q.stream, q.sequence, q.marker);
    }
    return asked->marker_passed(q.stream, q.marker);
  };
  std::erase_if(open, [&](Fences::Question& q) { return !passed(q); });
  if (open.empty()) return;
  std::lock_guard lock(mutex);
  for (const auto& q : open) fences.set_passed(q.stream, q.sequence);
  sweep();
  count_fences();
}

// --- allocation

Place* DeviceMemory::Impl::acquire(Lock& lock, uint64_t bytes, int stream, Pool& pool,
                                   const Frames& frames) {
  if (bytes == 0) throw std::invalid_argument("an allocation of 0 bytes has no block");
  if (outstanding.load(std::memory_order_relaxed) > 0) poll(kPollFew);
  lock.lock();
  std::vector<Fence> to_record;
  if (note_stream(stream, to_record)) {
    lock.unlock();
    record(to_record);
    poll(kPollFew);
    lock.lock();
  }
  // Compared before rounding: rounding a size near 2^64 would wrap.
  uint64_t most = regions.largest_region();
  uint64_t need = bytes > most ? bytes : round_up_block(bytes) + guard_bytes();
  Place* place = need > most ? nullptr : try_take(pool, need, stream);
  if (!place) place = climb(lock, bytes, need, stream, pool, frames);
  count_in(*place, round_up_block(bytes), bytes, stream, frames);
  return place;
}

// The ladder. Each rung is tried once and followed by another attempt. Exceptions of the hooks
// pass through (a sticky stream error, Ctrl-C): nothing was allocated.
Place* DeviceMemory::Impl::climb(Lock& lock, uint64_t bytes, uint64_t need, int stream, Pool& pool,
                                 const Frames& frames) {
  if (need > regions.largest_region()) out_of_memory(lock, bytes, need, pool, frames);
  ++counters.stats.num_alloc_retries;
  std::shared_ptr<const MemoryHooks> asked = hooks;
  auto retry = [&](auto&& rung) {
    lock.unlock();
    rung();
    poll(kPollAll);
    lock.lock();
    return try_take(pool, need, stream);
  };
  if (fences.outstanding())
    if (Place* place = retry([] {})) return place;
  if (asked && asked->pressure && !in_pressure)
    if (Place* place = retry([&] {
          PressureScope scope;
          asked->pressure();
        }))
      return place;
  if (asked && asked->synchronize) {
    ++counters.stats.num_sync_all_streams;
    if (Place* place = retry([&] { asked->synchronize(); })) return place;
  }
  while (release_one(&pool))
    if (Place* place = try_take(pool, need, stream)) return place;
  if (asked && asked->evict) {
    if (Place* place = retry([&] { asked->evict(); })) return place;
    while (release_one(&pool))
      if (Place* place = try_take(pool, need, stream)) return place;
  }
  out_of_memory(lock, bytes, need, pool, frames);
}

LiveBlock* DeviceMemory::Impl::take_block() {
  if (unused_blocks.size() > kBlockQuarantine) {
    LiveBlock* block = unused_blocks.front();
    unused_blocks.pop_front();
    return block;
  }
  return &block_nodes.emplace_back();
}

void DeviceMemory::Impl::drop_block(LiveBlock* block) {
  block->owner = nullptr;
  block->place = nullptr;
  block->token = nullptr;
  block->users.clear();
  block->frames.reset();
  unused_blocks.push_back(block);
}

void DeviceMemory::Impl::move_in(LiveBlock& block, Place& place) const {
  const Region& region = *place.region;
  place.block = &block;
  block.place = &place;
  block.region = region.id;
  block.offset = place.offset;
  block.size = place.block_size;
  block.requested = place.requested;
  block.physical = region.physical + place.offset;
  std::byte* base = regions.host(region);
  block.host = base ? base + place.offset : nullptr;
}

Block* DeviceMemory::allocate(uint64_t bytes, uint64_t token_span, int stream, MemoryType type) {
  Impl& m = *impl_;
  Frames frames = m.capture();
  Impl::Lock lock(m.mutex, std::defer_lock);
  Pool& pool = *m.pools[static_cast<size_t>(type)];
  Place* place = m.acquire(lock, bytes, stream, pool, frames);
  LiveBlock* block = m.take_block();
  block->device = m.device;
  block->type = type;
  block->stream = stream;
  block->owner = &m;
  m.move_in(*block, *place);
  try {
    TokenSpace::get().assign(block, std::max(token_span, block->size));
  } catch (const std::bad_alloc&) {
    m.drop_block(block);
    std::vector<Impl::Fence> to_record;
    m.retire(*place, {}, frames, to_record);
    ++m.counters.stats.num_ooms;
    lock.unlock();
    m.record(to_record);
    throw OutOfMemory("spyre:" + std::to_string(m.device) + " has no token for " +
                          std::to_string(token_span) +
                          " bytes: the process's reserved address range is used up",
                      Verdict::Exhausted);
  }
  block->frames = std::move(frames);
  ++m.live;
  lock.unlock();
  // Nobody else knows the block yet, so it is filled without the lock.
  if (block->host && m.config.poison)
    std::memset(block->host, static_cast<int>(kPoison), block->size);
  if (block->host && m.config.guard)
    std::memset(block->host + block->size, static_cast<int>(kGuard), kBlockAlign);
  return block;
}

// --- free

LiveBlock* DeviceMemory::Impl::validate(Block* block) const {
  if (!block) throw BadToken("a null block was freed");
  if (!block->token)
    throw BadToken("double free: the block of spyre:" + std::to_string(block->device) +
                   " at region " + std::to_string(block->region) + " offset " +
                   std::to_string(block->offset) + " is no longer live");
  if (TokenSpace::get().find(block->token) != block)
    throw BadToken("foreign block: its token names no live block of this process");
  LiveBlock* live_block = static_cast<LiveBlock*>(block);
  if (live_block->owner != this)
    throw BadToken(
        "foreign block: it belongs to another device (spyre:" + std::to_string(block->device) +
        "), not to this spyre:" + std::to_string(device));
  return live_block;
}

void DeviceMemory::Impl::check_guard(LiveBlock& block) {
  if (!config.guard || !block.host) return;
  std::byte* stick = block.host + block.size;
  for (uint64_t i = 0; i < kBlockAlign; ++i) {
    if (stick[i] == kGuard) continue;
    std::memset(stick, static_cast<int>(kGuard), kBlockAlign);
    throw GuardViolation(
        "the guard stick behind the block of spyre:" + std::to_string(device) + " at region " +
        std::to_string(block.region) + " offset " + std::to_string(block.offset) + " (" +
        std::to_string(block.requested) + " bytes requested, " + std::to_string(block.size) +
        " rounded) was overwritten at byte " + std::to_string(block.size + i) + " of the block");
  }
}

void DeviceMemory::free(Block* block) {
  Impl& m = *impl_;
  Frames frames = m.capture(), dying;
  std::vector<Impl::Fence> to_record;
  {
    std::lock_guard lock(m.mutex);
    LiveBlock* live_block = m.validate(block);
    m.check_guard(*live_block);
    TokenSpace::get().release(live_block);
    m.retire(*live_block->place, live_block->users, frames, to_record);
    dying.swap(live_block->frames);  // its destructor may call out: not under the lock
    m.drop_block(live_block);
    --m.live;
  }
  m.record(to_record);
}

void DeviceMemory::record_use(Block* block, int stream) {
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  LiveBlock* live_block = m.validate(block);
  auto& users = live_block->users;
  if (stream != live_block->stream && std::find(users.begin(), users.end(), stream) == users.end())
    users.push_back(stream);
}

void DeviceMemory::rehome(Block* block, uint64_t bytes) {
  Impl& m = *impl_;
  Frames frames = m.capture();
  std::vector<Impl::Fence> to_record;
  MemoryType type;
  int stream;
  {
    std::lock_guard lock(m.mutex);
    LiveBlock* live_block = m.validate(block);
    if (bytes > live_block->token_span)
      throw std::invalid_argument("a block whose token spans " +
                                  std::to_string(live_block->token_span) +
                                  " bytes cannot get a home of " + std::to_string(bytes));
    m.check_guard(*live_block);
    type = live_block->type;
    stream = live_block->stream;
  }
  Impl::Lock lock(m.mutex, std::defer_lock);
  Place* place = m.acquire(lock, bytes, stream, *m.pools[static_cast<size_t>(type)], frames);
  LiveBlock* live_block = static_cast<LiveBlock*>(block);
  m.retire(*live_block->place, live_block->users, frames, to_record);
  live_block->users.clear();
  live_block->frames.swap(frames);
  m.move_in(*live_block, *place);
  lock.unlock();
  if (block->host && m.config.poison)
    std::memset(block->host, static_cast<int>(kPoison), block->size);
  if (block->host && m.config.guard)
    std::memset(block->host + block->size, static_cast<int>(kGuard), kBlockAlign);
  m.record(to_record);
}

// --- several chunks

uint64_t CompositeAddress::total_size() const {
  uint64_t total = 0;
  for (const Chunk& chunk : chunks) total += chunk.size;
  return total;
}

CompositeAddress DeviceMemory::allocate_interleaved(uint64_t bytes, const std::vector<int>& domains,
                                                    MemoryType type) {
  if (bytes == 0 || domains.empty())
    throw std::invalid_argument("an interleaved allocation needs bytes and domains");
  for (size_t i = 0; i < domains.size(); ++i)
    if (domains[i] < 0 ||
        std::find(domains.begin(), domains.begin() + i, domains[i]) != domains.begin() + i)
      throw std::invalid_argument(
          "the domains of an interleaved allocation must differ and be "
          "at least 0");
  Impl& m = *impl_;
  Frames frames = m.capture();
  uint64_t count = domains.size();
  uint64_t share = bytes / count + (bytes % count != 0);
  CompositeAddress address;
  address.device = m.device;
  try {
    uint64_t left = bytes;
    for (size_t i = 0; i < count && left; ++i) {
      Pool* pool;
      {
        std::lock_guard lock(m.mutex);
        pool = &m.pool_of(type, domains[i]);
      }
      Impl::Lock lock(m.mutex, std::defer_lock);
      // A share whose rounding would wrap is too large anyway: acquire says so.
      uint64_t chunk = share > m.config.capacity ? share : round_up_block(share);
      uint64_t part = std::min(left, chunk);
      Place* place = m.acquire(lock, part, 0, *pool, frames);
      m.chunks.emplace(place->region->address() + place->offset, place);
      address.chunks.push_back({place->region->id, place->offset, place->block_size, domains[i]});
      left -= part;
    }
  } catch (...) {
    if (!address.chunks.empty()) free_composite(address);
    throw;
  }
  return address;
}

void DeviceMemory::free_composite(const CompositeAddress& address) {
  Impl& m = *impl_;
  Frames frames = m.capture();
  std::vector<Impl::Fence> to_record;
  {
    std::lock_guard lock(m.mutex);
    auto key = [](const Chunk& c) { return ((1ull + c.region) << kSegmentBits) + c.offset; };
    if (address.device != m.device)
      throw BadToken("foreign descriptor: it belongs to spyre:" + std::to_string(address.device) +
                     ", not to spyre:" + std::to_string(m.device));
    for (const Chunk& chunk : address.chunks) {
      auto found = m.chunks.find(key(chunk));
      if (found == m.chunks.end() || found->second->block_size != chunk.size)
        throw BadToken("no live chunk of " + std::to_string(chunk.size) + " bytes lies at region " +
                       std::to_string(chunk.region) + " offset " + std::to_string(chunk.offset) +
                       ": double free or foreign descriptor");
    }
    for (const Chunk& chunk : address.chunks) {
      auto found = m.chunks.find(key(chunk));
      if (found == m.chunks.end()) continue;  // the same chunk twice in one descriptor
      m.retire(*found->second, {}, frames, to_record);
      m.chunks.erase(found);
    }
  }
  m.record(to_record);
}

// --- returning memory

void DeviceMemory::poll_pending_frees() {
  if (impl_->outstanding.load(std::memory_order_relaxed) > 0) impl_->poll(kPollAll);
}

void DeviceMemory::empty_cache() {
  poll_pending_frees();
  Impl& m = *impl_;
  std::lock_guard lock(m.mutex);
  std::vector<Region*> all = m.regions.newest_first();
  for (Region* region : all)
    if (!m.close_if_empty(*region)) m.trim_tail(*region);
}

}  // namespace openspyre::card
