// Memory of the card: physical backing, regions, blocks, tokens, statistics, history.
//
// Torch-free; never takes the GIL and never calls Python, except through the one registered
// pressure callback, called on exhaustion with no lock held.
//
//   PhysicalMemory  one per card: a sparse, no-reserve mapping, ranges handed to regions
//   DeviceMemory    one per device (the Physical Function of a card or one Virtual Function of
//                   it): regions, blocks inside them, statistics, history. Thread-safe.
//   TokenSpace      one per process: the reserved no-access range that data_ptr() lies in
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace openspyre::card {

inline constexpr uint64_t kBlockAlign = 128;  // MIN_ALLOC_BYTES
inline constexpr int kSegmentBits = 34;       // runtime.md 1.5
inline constexpr uint64_t kSegmentSize = 1ull << kSegmentBits;
inline constexpr uint64_t kProgramSegment = 7;            // base 0x1C00000000
inline constexpr uint64_t kDmvaLimit = 8 * kSegmentSize;  // 0x2000000000

// Device memory virtual address: segment << 34 | offset. Throws std::out_of_range.
uint64_t dmva(uint64_t segment, uint64_t offset);
struct SegmentOffset {
  uint64_t segment, offset;
};
SegmentOffset split_dmva(uint64_t address);

inline constexpr uint64_t round_up_block(uint64_t bytes) {
  return (bytes + kBlockAlign - 1) & ~(kBlockAlign - 1);
}

enum class FunctionKind : uint8_t { PF, VF };
enum class MemoryType : uint8_t { Tensor, ProgramStatic, ProgramDynamic };

class PhysicalMemory {
 public:
  // backing=false (execute=off): addresses only, base() is null. Throws std::bad_alloc when the
  // reservation is refused.
  PhysicalMemory(uint64_t capacity, bool backing);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;
  std::byte* base() const;
  uint64_t capacity() const;
  uint64_t used() const;
  // First range of exactly `size` bytes (best fit, low address on ties), or nullopt. Thread-safe.
  std::optional<uint64_t> take(uint64_t size);
  // Grows [start, start+old) in place to `size` when what follows it is free.
  bool extend(uint64_t start, uint64_t old_size, uint64_t size);
  void give_back(uint64_t start, uint64_t size);  // also drops the pages (MADV_DONTNEED)
  uint64_t largest_free() const;
  uint64_t free_after(uint64_t address) const;  // free bytes that start exactly at `address`

  // Where a region that is going to grow in place starts inside the largest free range.
  enum class Room : uint8_t {
    Low,    // at its start: follows what is there
    Apart,  // in its middle: leaves both neighbours room (several tenants of one card)
    High,   // near its end, with an eighth of it left to grow: program memory
  };
  // Like take, but keeps room for growth; starts at a multiple of `align` where that fits.
  std::optional<uint64_t> take_with_room(uint64_t size, Room room, uint64_t align);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct MemoryConfig {
  FunctionKind kind = FunctionKind::PF;
  uint64_t capacity = 112ull << 30;    // bytes this device may hold in regions
  int max_handles = 8;                 // VF only (1..16): entries of the firmware region table
  uint64_t max_region = kSegmentSize;  // no region grows past a segment
  uint64_t min_region = 2ull << 20;    // granule of region growth; floor of halving
  uint64_t small_limit = 1ull << 20;   // requests below it count as the small pool
  bool poison = false;                 // fill fresh blocks with 0xA5.. before they are handed out
  bool guard = false;           // one poisoned guard stick after every block, checked on free
  bool exact_best_fit = false;  // the reference block allocator instead of the fast one
};

// What a tensor's storage owns. Lives until `free`; address-stable. Fields are read-only outside.
struct Block {
  int device = -1;
  MemoryType type = MemoryType::Tensor;
  uint32_t region = 0;  // VF: index into the region table. PF: ordinal of the region
  uint64_t offset = 0;  // in the region; multiple of 128
  uint64_t size = 0;    // rounded bytes
  uint64_t requested = 0;
  uint64_t physical = 0;      // address on the card: region base + offset
  std::byte* host = nullptr;  // backing bytes, null when execute=off
  void* token = nullptr;      // opaque: in the no-access range; unique while the block lives
  uint64_t token_span = 0;    // bytes of token range, >= what the caller asked for
  uint32_t generation = 0;    // of the token slot
  int stream = 0;             // stream it was allocated on
  void* owner = nullptr;      // kept for the layer above; the card never reads it
};

enum class Verdict : uint8_t { Exhausted, Fragmented, HandleLimited, TooLargeForRegion };
const char* verdict_text(
    Verdict verdict);  // "exhausted", "fragmented", "handle-limited", "too large for a region"

// Text carries requested, rounded, free, capacity, largest block, handles used, verdict, hint.
class OutOfMemory : public std::runtime_error {
 public:
  OutOfMemory(const std::string& text, Verdict verdict)
      : std::runtime_error(text), verdict(verdict) {}
  Verdict verdict;
};
// Double free, foreign token, token of a freed block. Text names which.
class BadToken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The guard stick behind a block was overwritten. Thrown by `free`, which leaves the block live and
// its guard renewed, so that a second `free` succeeds. Text names block and offset.
class GuardViolation : public BadToken {
 public:
  using BadToken::BadToken;
};

struct Stat {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};
enum StatPool : int { kAggregate, kSmallPool, kLargePool, kStatPools };
struct MemoryStats {  // the fields of c10::CachingDeviceAllocator::DeviceStats; Tensor memory only
  std::array<Stat, kStatPools> allocation, segment, active, inactive_split;
  std::array<Stat, kStatPools> allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes,
      requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_sync_all_streams = 0;
  int64_t num_device_alloc = 0, num_device_free = 0;
  // Program memory is counted apart.
  Stat program_bytes, program_allocation;
};

struct MemoryInfo {  // one locked snapshot, Tensor-usable bytes
  uint64_t free = 0, total = 0, largest_free_block = 0, reserved = 0;
  int handles_used = 0, handles_max = 0;  // handles_max 0 = unlimited (PF)
  double fragmentation = 0;  // 1 - largest_free/total_free inside regions; 0 when none free
};

// One row of the history; `frames` is an opaque handle given by the frame callback (0 = none).
struct TraceEntry {
  enum class Action : uint8_t {
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    Snapshot,
    Oom,
    SegmentMap,
    SegmentUnmap  // a region grew or was trimmed at its end
  } action;
  uint64_t address, size;  // DMVA-like address (see snapshot); for Oom the free bytes
  int stream;
  int64_t time_us;  // wall clock, microseconds since the epoch
  std::shared_ptr<void> frames;
};
const char* action_name(TraceEntry::Action action);  // "alloc", "free_requested", ...

struct BlockInfo {
  uint64_t address, size, requested;
  enum class State : uint8_t { ActiveAllocated, ActivePendingFree, Inactive } state;
  int stream;
  std::shared_ptr<void> frames;
};
const char* state_name(BlockInfo::State state);  // "active_allocated", ...
struct RegionInfo {
  uint64_t address;  // (1 + ordinal) << 34: how the region would be mapped as a segment
  uint64_t size, allocated, active, requested, physical;
  uint32_t region;
  MemoryType type;
  std::vector<BlockInfo> blocks;  // ascending; sizes add up to `size`
};
struct MemorySnapshot {
  std::vector<RegionInfo> regions;
  std::vector<TraceEntry> trace;
};

// How the memory of one device asks the outside. All called with no lock held; all optional.
struct MemoryHooks {
  // Garbage collection hook: returns true when it may have freed something.
  std::function<bool()> pressure;
  // Waits for all outstanding work of this device.
  std::function<void()> synchronize;
  // Evict something reloadable (program images); true when it freed something.
  std::function<bool()> evict;
  // A marker at the present end of `stream`'s queue, and whether it has been passed.
  std::function<uint64_t(int stream)> record_marker;
  std::function<bool(int stream, uint64_t marker)> marker_passed;
  // Captures a stack for the history (called only while recording).
  std::function<std::shared_ptr<void>()> frames;
};

struct Chunk {
  uint32_t region;
  uint64_t offset, size;
  int domain;
};
struct CompositeAddress {  // runtime.md 1.1
  std::vector<Chunk> chunks;
  int device = -1;
  uint64_t total_size() const;
  size_t num_chunks() const { return chunks.size(); }
  bool is_contiguous() const { return chunks.size() == 1; }
};

class DeviceMemory {
 public:
  DeviceMemory(int device, std::shared_ptr<PhysicalMemory> physical, MemoryConfig config);
  ~DeviceMemory();

  void set_hooks(MemoryHooks hooks);

  // bytes > 0. The block is usable on `stream` at once. token_span: bytes of address range that
  // view arithmetic on the token must stay inside (at least max(host bytes, card bytes)).
  // On exhaustion climbs the ladder: pending frees, pressure hook, synchronize, empty regions,
  // evict; then throws OutOfMemory with state unchanged.
  Block* allocate(uint64_t bytes, uint64_t token_span, int stream,
                  MemoryType type = MemoryType::Tensor);
  // Throws BadToken (foreign device, double free) with state unchanged. A block used by other
  // streams (record_use) is parked until their markers are passed.
  void free(Block* block);
  void record_use(Block* block, int stream);  // no effect for the block's own stream
  // Gives the same token a new home of `bytes` bytes; contents are not kept; the old home is
  // freed. Throws OutOfMemory (block unchanged), std::invalid_argument if bytes > token_span.
  void rehome(Block* block, uint64_t bytes);

  // Interleave: ceil(bytes/domains) rounded to 128 per chunk, one region (domain) each; a failure
  // releases what was taken. Only the card's own callers use it.
  CompositeAddress allocate_interleaved(uint64_t bytes, const std::vector<int>& domains,
                                        MemoryType type = MemoryType::Tensor);
  void free_composite(const CompositeAddress& address);

  void poll_pending_frees();
  void empty_cache();  // returns empty regions and free tails of others (after polling)
  MemoryInfo info() const;
  MemoryStats stats() const;
  void reset_peak_stats();
  void reset_accumulated_stats();
  MemorySnapshot snapshot() const;  // also records a Snapshot row when history is on
  void record_history(bool enabled, size_t max_entries);
  void check_invariants() const;  // throws std::logic_error: overlap, coalescing, sums. For tests
  int device() const;
  const MemoryConfig& config() const;
  int64_t live_blocks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class TokenSpace {
 public:
  static TokenSpace& get();  // reserves the range at first use; leaked on purpose
  // The live block whose token range holds `address`; null for anything else.
  Block* find(const void* address) const;
  bool contains(const void* address) const;  // inside the reserved range at all
  // Like find, but checks the generation and throws BadToken with the reason.
  Block* checked(const void* address, uint32_t generation) const;

 private:
  friend class DeviceMemory;
  TokenSpace();
  void assign(Block* block, uint64_t span);  // sets token, token_span, generation
  void release(Block* block);
  struct Impl;
  Impl* impl_;
};

}  // namespace openspyre::card
