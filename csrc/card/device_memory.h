// The inside of DeviceMemory: pools of places, live blocks, fences, history.
//
// Internal to csrc/card. One mutex guards everything in Impl; hooks and other callbacks run with
// it released. device_memory.cpp has the public calls and the ladder, places.cpp the moves of
// places between states, memory_report.cpp everything that only looks.
//
// Streams. A place freed by stream A may be taken by A at once, since A works in order. Another
// stream may take it only after A has passed a marker recorded at the free. While one stream
// allocates, no marker is needed and none is recorded: all free places are *clean* and there is
// one index to search. When a second stream first allocates, every clean place is fenced with a
// marker on the first stream, and from then on each free records one. So a program with one
// stream pays nothing, and with several the only memory that stands aside is what was freed since
// a stream's last passed marker, and it stands aside only for the other streams.
// With poison or guard sticks the host writes into a place when it is handed out; then even the
// same stream waits for its marker, because work in flight may still read the old contents.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "card/blocks.h"
#include "card/fences.h"
#include "card/memory.h"
#include "card/regions.h"
#include "card/stats_recorder.h"

namespace openspyre::card {

using Frames = std::shared_ptr<void>;

struct LiveBlock : Block {
  const void* owner = nullptr;  // the Impl; null while the node is unused
  Place* place = nullptr;
  std::vector<int> users;  // other streams that used it
  Frames frames;           // of the allocation
};

// Free places of one memory type in one domain. Pools never share a region.
struct Pool {
  struct Fenced {
    int stream;
    std::unique_ptr<FreeIndex> index;
    Place* head = nullptr;
  };
  MemoryType type;
  int domain;
  std::unique_ptr<FreeIndex> clean;
  std::vector<Fenced> fenced;
  uint64_t free_bytes = 0, reserved = 0;
};

struct DeviceMemory::Impl {
  Impl(int device, std::shared_ptr<PhysicalMemory> physical, const MemoryConfig& config);
  ~Impl();

  using Lock = std::unique_lock<std::mutex>;
  using Fence = std::pair<int, uint64_t>;  // stream, sequence

  // --- device_memory.cpp
  // Returns with `lock` held and the place Used; throws with it released.
  Place* acquire(Lock& lock, uint64_t bytes, int stream, Pool& pool, const Frames& frames);
  Place* climb(Lock& lock, uint64_t bytes, uint64_t need, int stream, Pool& pool,
               const Frames& frames);
  LiveBlock* validate(Block* block) const;
  void check_guard(LiveBlock& block);
  void move_in(LiveBlock& block, Place& place) const;
  LiveBlock* take_block();
  void drop_block(LiveBlock* block);
  void poll(size_t limit);                        // no lock held
  void record(const std::vector<Fence>& fences);  // no lock held
  Frames capture() const;                         // no lock held

  // --- places.cpp, lock held
  Pool& pool_of(MemoryType type, int domain);
  void enlist(Place& place);
  void unlist(Place& place);
  Place* settle(Place* place);  // merges a free place with its like neighbours and lists it
  Place* carve(Place* place, uint64_t size);
  Place* try_take(Pool& pool, uint64_t size, int stream);
  Place* grow(Pool& pool, uint64_t size, int stream);
  void count_in(Place& place, uint64_t size, uint64_t requested, int stream, const Frames& frames);
  void retire(Place& place, const std::vector<int>& users, const Frames& frames,
              std::vector<Fence>& to_record);
  void complete(Place& place, int fence_stream, uint64_t fence, const Frames& frames);
  void sweep();  // after fences passed
  bool note_stream(int stream, std::vector<Fence>& to_record);
  bool release_one(const Pool* wanted);  // one idle region, else one idle tail
  bool close_if_empty(Region& region);
  bool trim_tail(Region& region);
  bool markers() const { return hooks && hooks->record_marker && hooks->marker_passed; }
  bool host_writes() const { return (config.poison || config.guard) && backing; }
  uint64_t guard_bytes() const { return config.guard ? kBlockAlign : 0; }
  void count_fences() { outstanding.store(fences.outstanding(), std::memory_order_relaxed); }

  // --- memory_report.cpp, lock held
  uint64_t usable(const Pool& pool) const;  // bytes free or obtainable for this pool
  uint64_t largest_in_regions(const Pool& pool) const;
  uint64_t largest_obtainable(const Pool& pool) const;
  [[noreturn]] void out_of_memory(Lock& lock, uint64_t bytes, uint64_t need, const Pool& pool,
                                  const Frames& frames);
  void note(TraceEntry::Action action, uint64_t address, uint64_t size, int stream,
            const Frames& frames);
  void check() const;

  const int device;
  const MemoryConfig config;
  const bool backing;
  mutable std::mutex mutex;
  Regions regions;
  StatsRecorder counters;
  NodePool<Place> place_nodes;
  std::deque<LiveBlock> block_nodes;
  std::deque<LiveBlock*> unused_blocks;
  std::vector<std::unique_ptr<Pool>> pools;  // the first three: domain 0 by type
  int64_t live = 0;

  std::shared_ptr<const MemoryHooks> hooks;
  Fences fences;
  std::atomic<int64_t> outstanding{0};  // fences.outstanding(), readable without the lock
  int first_stream = -1;
  bool several_streams = false;
  struct Parked {
    Place* place;
    std::vector<Fence> waits;  // other streams; all must pass
    int fence_stream;          // then the place is fenced so
    uint64_t fence;
    Frames frames;
  };
  std::vector<Parked> parked;
  std::unordered_map<uint64_t, Place*> chunks;  // of composite addresses, by segment address

  std::atomic<bool> recording{false};
  size_t history_limit = 0;
  std::deque<TraceEntry> history;
};

}  // namespace openspyre::card
