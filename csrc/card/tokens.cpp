// TokenSpace: the reserved no-access address range that data_ptr() lies in.
//
// The range is cut into chunks of 16 MiB. A chunk belongs to one size class (slots of a power of
// two) or to a run of chunks that is one large slot; a table with one entry a chunk makes `find`
// O(1) for interior addresses. A slot is at least one stick longer than its span, so that the
// one-past-the-end address of a storage is never the address of another one.
//
// Readers take no lock (find, contains and checked work in a fork child whatever the parent's
// threads held); assign and release share one mutex.
#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>
#include <string>

#include "card/memory.h"
#include "card/ranges.h"

namespace openspyre::card {

namespace {

constexpr int kChunkBits = 24;
constexpr uint64_t kChunk = 1ull << kChunkBits;
constexpr int kSmallestSlotBits = 8;              // one stick and its distance to the next
constexpr int kLargestSlotBits = kChunkBits - 1;  // anything longer is a run of chunks
constexpr int kRunShift = 63;                     // (offset >> 63) is slot 0

struct Slot {
  std::atomic<Block*> block{nullptr};
  std::atomic<uint64_t> span{0};
  std::atomic<uint32_t> generation{0};
  std::byte* address = nullptr;
  Slot* next = nullptr;  // chain of unused slots
};

struct ChunkEntry {
  std::atomic<Slot*> slots;    // of the class, or the one slot of the run; null: never used
  std::atomic<uint64_t> meta;  // first chunk of the run or class chunk << 8 | shift
};

struct SizeClass {
  Slot* unused = nullptr;
  Slot* fresh = nullptr;  // slots of the newest chunk that were never used
  uint64_t fresh_count = 0;
  std::byte* fresh_address = nullptr;
};

}  // namespace

struct TokenSpace::Impl {
  std::byte* base = nullptr;
  uint64_t span = 0;
  ChunkEntry* chunks = nullptr;
  std::mutex mutex;
  std::optional<RangeMap> ranges;  // of chunks
  SizeClass classes[kLargestSlotBits + 1];
  Slot* unused_runs = nullptr;
  uint32_t generation = 0;

  Impl() {
    // 32 TiB hold two times 16 cards of 1 TiB; sanitizers, small machines and `ulimit -v` allow
    // less, and then less does, until a token no longer fits.
    for (int bits = 45; bits >= 30 && !base; --bits) {
      uint64_t size = 1ull << bits;
      void* at = mmap(nullptr, size + kChunk, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (at == MAP_FAILED) continue;
      uint64_t address = reinterpret_cast<uint64_t>(at);
      base = static_cast<std::byte*>(at) + ((address + kChunk - 1) / kChunk * kChunk - address);
      span = size;
      madvise(at, size + kChunk, MADV_DONTDUMP);
    }
    if (!base) throw std::bad_alloc();
    void* table = mmap(nullptr, (span / kChunk) * sizeof(ChunkEntry), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
      munmap(base, span);
      throw std::bad_alloc();
    }
    chunks = static_cast<ChunkEntry*>(table);  // zero pages: null slots
    ranges.emplace(span / kChunk);
  }

  Slot* slot_of(const void* address) const {
    uint64_t offset = reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(base);
    if (offset >= span) return nullptr;
    const ChunkEntry& chunk = chunks[offset >> kChunkBits];
    Slot* slots = chunk.slots.load(std::memory_order_acquire);
    if (!slots) return nullptr;
    uint64_t meta = chunk.meta.load(std::memory_order_relaxed);
    uint64_t start = (meta >> 8) << kChunkBits;
    int shift = static_cast<int>(meta & 255);
    return shift == kRunShift ? slots : &slots[(offset - start) >> shift];
  }

  Slot* take_small(int bits) {
    SizeClass& size_class = classes[bits];
    if (Slot* slot = size_class.unused) {
      size_class.unused = slot->next;
      return slot;
    }
    if (!size_class.fresh_count) {
      uint64_t count = kChunk >> bits;
      // Zero pages are a valid array of unused slots, and only touched ones cost memory.
      void* table = mmap(nullptr, count * sizeof(Slot), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (table == MAP_FAILED) throw std::bad_alloc();
      std::optional<uint64_t> chunk = ranges->take(1);
      if (!chunk) {
        munmap(table, count * sizeof(Slot));
        return nullptr;
      }
      size_class.fresh = static_cast<Slot*>(table);
      size_class.fresh_count = count;
      size_class.fresh_address = base + (*chunk << kChunkBits);
      chunks[*chunk].meta.store(*chunk << 8 | static_cast<uint64_t>(bits),
                                std::memory_order_relaxed);
      chunks[*chunk].slots.store(size_class.fresh, std::memory_order_release);
    }
    Slot* slot = size_class.fresh++;
    --size_class.fresh_count;
    slot->address = size_class.fresh_address;
    size_class.fresh_address += 1ull << bits;
    return slot;
  }

  Slot* take_run(uint64_t count) {
    Slot* slot = unused_runs ? unused_runs : new Slot;
    if (slot == unused_runs) unused_runs = slot->next;
    std::optional<uint64_t> first = ranges->take(count);
    if (!first) {
      slot->next = unused_runs;
      unused_runs = slot;
      return nullptr;
    }
    slot->address = base + (*first << kChunkBits);
    for (uint64_t i = *first; i < *first + count; ++i) {
      chunks[i].meta.store(*first << 8 | kRunShift, std::memory_order_relaxed);
      chunks[i].slots.store(slot, std::memory_order_release);
    }
    return slot;
  }
};

TokenSpace& TokenSpace::get() {
  static TokenSpace* space = new TokenSpace;  // throws bad_alloc when nothing can be reserved
  return *space;
}

TokenSpace::TokenSpace() : impl_(new Impl) {}

bool TokenSpace::contains(const void* address) const {
  return reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(impl_->base) <
         impl_->span;
}

Block* TokenSpace::find(const void* address) const {
  Slot* slot = impl_->slot_of(address);
  if (!slot) return nullptr;
  Block* block = slot->block.load(std::memory_order_acquire);
  if (!block) return nullptr;
  uint64_t distance =
      reinterpret_cast<uint64_t>(address) - reinterpret_cast<uint64_t>(slot->address);
  return distance < slot->span.load(std::memory_order_relaxed) ? block : nullptr;
}

Block* TokenSpace::checked(const void* address, uint32_t generation) const {
  std::string name = "token " + std::to_string(reinterpret_cast<uint64_t>(address));
  Slot* slot = impl_->slot_of(address);
  if (!contains(address))
    throw BadToken(name + " is foreign: it lies outside of the device's address range");
  Block* block = find(address);
  uint32_t present = slot ? slot->generation.load(std::memory_order_relaxed) : 0;
  if (!block && slot && generation == present && slot->block.load(std::memory_order_relaxed))
    throw BadToken(name + " lies behind the end of its block");
  if (!block) throw BadToken(name + " belongs to no live block: it was freed or never handed out");
  if (present != generation)
    throw BadToken(name + " of generation " + std::to_string(generation) +
                   " was freed; its place now has generation " + std::to_string(present));
  return block;
}

void TokenSpace::assign(Block* block, uint64_t span) {
  if (span == 0) span = 1;  // a token must be an address of its own
  if (span >= impl_->span) throw std::bad_alloc();
  uint64_t need = span + kBlockAlign;
  std::lock_guard lock(impl_->mutex);
  int bits = std::bit_width(need - 1);
  if (bits < kSmallestSlotBits) bits = kSmallestSlotBits;
  Slot* slot = bits <= kLargestSlotBits ? impl_->take_small(bits)
                                        : impl_->take_run((need + kChunk - 1) >> kChunkBits);
  if (!slot) throw std::bad_alloc();
  // One counter for the whole space: a pair (address, generation) never comes twice, although
  // the chunks of a run may serve other runs later. 0 is kept for "no generation".
  if (++impl_->generation == 0) ++impl_->generation;
  block->token = slot->address;
  block->token_span = span;
  block->generation = impl_->generation;
  slot->generation.store(impl_->generation, std::memory_order_relaxed);
  slot->span.store(span, std::memory_order_relaxed);
  slot->block.store(block, std::memory_order_release);
}

void TokenSpace::release(Block* block) {
  std::lock_guard lock(impl_->mutex);
  Slot* slot = impl_->slot_of(block->token);
  slot->block.store(nullptr, std::memory_order_release);
  uint64_t offset = static_cast<uint64_t>(slot->address - impl_->base);
  uint64_t meta = impl_->chunks[offset >> kChunkBits].meta.load(std::memory_order_relaxed);
  int shift = static_cast<int>(meta & 255);
  if (shift == kRunShift) {
    uint64_t first = offset >> kChunkBits;
    uint64_t count = (block->token_span + kBlockAlign + kChunk - 1) >> kChunkBits;
    for (uint64_t i = first; i < first + count; ++i)
      impl_->chunks[i].slots.store(nullptr, std::memory_order_release);
    impl_->ranges->give_back(first, count);
    slot->next = impl_->unused_runs;
    impl_->unused_runs = slot;
  } else {
    slot->next = impl_->classes[shift].unused;
    impl_->classes[shift].unused = slot;
  }
  block->token = nullptr;
}

}  // namespace openspyre::card
