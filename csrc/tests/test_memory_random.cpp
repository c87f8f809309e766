// Random load against independent models of what is live, what is allowed and what is counted.
//
// Both block allocators (the fast one and the exact best-fit reference) run the same sequences.
// The models know nothing of the allocator's insides: live intervals by physical address, the
// streams' real progress at the time of each hand-out, and plain sums for the statistics.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "card/memory.h"
#include "check.h"

using namespace openspyre::card;

namespace {

constexpr uint64_t kMiB = 1ull << 20;
constexpr int kStreams = 3;

// Streams whose progress the test decides; safe to call from any thread.
struct Streams {
  std::array<std::atomic<uint64_t>, kStreams> end{}, done{};
  void submit(int stream) { ++end[stream]; }
  void advance(int stream, uint64_t steps) {
    uint64_t now = done[stream].load(), next;
    do next = std::min(now + steps, end[stream].load());
    while (!done[stream].compare_exchange_weak(now, next));
  }
  void finish() {
    for (int s = 0; s < kStreams; ++s) advance(s, ~0ull >> 1);
  }
  MemoryHooks hooks() {
    MemoryHooks h;
    h.record_marker = [this](int stream) { return end[stream].load(); };
    h.marker_passed = [this](int stream, uint64_t marker) { return done[stream] >= marker; };
    h.synchronize = [this] { finish(); };
    return h;
  }
};

// Half-open intervals of card memory that must not overlap.
class Intervals {
 public:
  void add(uint64_t start, uint64_t size) {
    auto after = live_.lower_bound(start);
    CHECK(after == live_.end() || after->first >= start + size);
    CHECK(after == live_.begin() || std::prev(after)->second <= start);
    live_.emplace(start, start + size);
  }
  void remove(uint64_t start) { CHECK_EQ(live_.erase(start), 1u); }
  size_t count() const { return live_.size(); }

 private:
  std::map<uint64_t, uint64_t> live_;
};

// What the statistics must say, by the definition of each field.
struct Model {
  uint64_t small_limit;
  std::array<Stat, kStatPools> allocation{}, bytes{};
  std::array<int64_t, kStatPools> requested_allocated{};
  void move(std::array<Stat, kStatPools>& pair, uint64_t size, int64_t amount, bool up) {
    for (int pool : {static_cast<int>(kAggregate),
                     static_cast<int>(size < small_limit ? kSmallPool : kLargePool)}) {
      Stat& s = pair[pool];
      s.current += up ? amount : -amount;
      (up ? s.allocated : s.freed) += amount;
      s.peak = std::max(s.peak, s.current);
    }
  }
  void allocated(uint64_t size, uint64_t requested) {
    move(allocation, size, 1, true);
    move(bytes, size, static_cast<int64_t>(size), true);
    requested_allocated[kAggregate] += static_cast<int64_t>(requested);
    requested_allocated[size < small_limit ? kSmallPool : kLargePool] +=
        static_cast<int64_t>(requested);
  }
  void freed(uint64_t size) {
    move(allocation, size, 1, false);
    move(bytes, size, static_cast<int64_t>(size), false);
  }
  void compare(const MemoryStats& stats, bool peaks) const {
    for (int pool = 0; pool < kStatPools; ++pool)
      for (auto [mine, theirs] : {std::pair{&allocation[pool], &stats.allocation[pool]},
                                  std::pair{&bytes[pool], &stats.allocated_bytes[pool]}}) {
        CHECK_EQ(mine->current, theirs->current);
        CHECK_EQ(mine->allocated, theirs->allocated);
        CHECK_EQ(mine->freed, theirs->freed);
        if (peaks) CHECK_EQ(mine->peak, theirs->peak);
      }
    for (int pool = 0; pool < kStatPools; ++pool)
      CHECK_EQ(requested_allocated[pool], stats.requested_bytes[pool].allocated);
  }
};

MemoryConfig small_card(FunctionKind kind, bool exact) {
  MemoryConfig config;
  config.kind = kind;
  config.capacity = 16 * kMiB;
  config.min_region = 128 << 10;
  config.max_region = 4 * kMiB;
  config.small_limit = 16 << 10;
  config.exact_best_fit = exact;
  return config;
}

uint64_t random_size(std::mt19937& random) {
  return 1 + (random() & ((1u << (4 + random() % 15)) - 1));
}

struct Held {
  Block* block;
  uint64_t physical, size;
};

// 4 threads, 3 streams, `operations` allocations and frees all together.
void many_threads(FunctionKind kind, bool exact, int operations) {
  constexpr int kThreads = 4;
  MemoryConfig config = small_card(kind, exact);
  DeviceMemory memory(0, std::make_shared<PhysicalMemory>(config.capacity, true), config);
  Streams streams;
  memory.set_hooks(streams.hooks());
  std::mutex mutex;  // of the models and of `failure`
  Intervals live;
  Model model{config.small_limit};
  std::string failure;
  std::atomic<int> refused{0};
  auto work = [&](int thread) {
    std::mt19937 random(100 + thread);
    std::vector<Held> held;
    auto drop = [&](size_t i) {
      Held h = held[i];
      held[i] = held.back();
      held.pop_back();
      // The mark of this thread must still stand at both ends: nobody else wrote there.
      std::byte mark = std::byte(thread + 1);
      CHECK(h.block->host[0] == mark && h.block->host[h.size - 1] == mark);
      CHECK(TokenSpace::get().find(static_cast<char*>(h.block->token) + h.size - 1) == h.block);
      {
        std::lock_guard lock(mutex);
        live.remove(h.physical);
        model.freed(h.size);
      }
      memory.free(h.block);
    };
    try {
      for (int i = 0; i < operations / kThreads; ++i) {
        if (held.size() > 150 || (!held.empty() && random() % 2)) {
          drop(random() % held.size());
          continue;
        }
        int stream = static_cast<int>(random() % kStreams);
        uint64_t bytes = random_size(random);
        Block* block;
        try {
          block = memory.allocate(bytes, bytes, stream);
        } catch (const OutOfMemory&) {
          ++refused;
          while (held.size() > 20) drop(held.size() - 1);
          continue;
        }
        {
          std::lock_guard lock(mutex);
          live.add(block->physical, block->size);
          model.allocated(block->size, bytes);
        }
        block->host[0] = block->host[block->size - 1] = std::byte(thread + 1);
        held.push_back({block, block->physical, block->size});
        streams.submit(stream);
        if (random() % 4 == 0) {
          int user = static_cast<int>(random() % kStreams);
          memory.record_use(block, user);
          streams.submit(user);
        }
        if (random() % 8 == 0)
          streams.advance(static_cast<int>(random() % kStreams), random() % 50);
        if (random() % 512 == 0) memory.empty_cache();
        if (random() % 512 == 0) memory.check_invariants();
      }
      while (!held.empty()) drop(held.size() - 1);
    } catch (const std::exception& e) {
      std::lock_guard lock(mutex);
      failure = e.what();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (auto& thread : threads) thread.join();
  if (!failure.empty()) throw check::Failure(failure);
  memory.check_invariants();
  CHECK_EQ(live.count(), 0u);
  CHECK_EQ(memory.live_blocks(), 0);
  model.compare(memory.stats(), false);
  streams.finish();
  memory.empty_cache();
  MemoryStats stats = memory.stats();
  for (const auto* pair : {&stats.active, &stats.active_bytes, &stats.requested_bytes,
                           &stats.inactive_split, &stats.reserved_bytes, &stats.segment})
    for (const Stat& stat : *pair) {
      CHECK_EQ(stat.current, 0);
      CHECK_EQ(stat.allocated, stat.freed);
    }
  CHECK_EQ(stats.num_ooms, refused.load());
}

// One thread, everything exact: after each hand-out, every earlier owner of those bytes must have
// passed on all streams that used them, except on the new owner's own stream.
void exact_streams(FunctionKind kind, bool exact, bool poison, unsigned seed, int operations) {
  MemoryConfig config = small_card(kind, exact);
  config.poison = poison;
  config.guard = poison;
  DeviceMemory memory(0, std::make_shared<PhysicalMemory>(config.capacity, true), config);
  Streams streams;
  memory.set_hooks(streams.hooks());
  Model model{config.small_limit};
  Intervals live;
  struct Past {
    uint64_t start, end;
    int owner;
    std::vector<std::pair<int, uint64_t>> uses;
  };
  std::vector<Past> past;
  std::map<Block*, std::vector<int>> held;
  std::mt19937 random(seed);
  int refused = 0, shared = 0;
  auto drop = [&](Block* block) {
    Past entry{block->physical, block->physical + block->size, block->stream, {}};
    std::vector<int> users = held[block];
    users.push_back(block->stream);
    for (int user : users) entry.uses.push_back({user, streams.end[user].load()});
    past.push_back(entry);
    live.remove(block->physical);
    model.freed(block->size);
    held.erase(block);
    memory.free(block);
  };
  for (int i = 0; i < operations; ++i) {
    if (held.size() > 300 || (!held.empty() && random() % 2)) {
      auto chosen = held.begin();
      std::advance(chosen, random() % held.size());
      drop(chosen->first);
    } else {
      int stream = i < operations / 10 ? 0 : static_cast<int>(random() % kStreams);
      uint64_t bytes = random_size(random);
      Block* block;
      try {
        block = memory.allocate(bytes, bytes, stream);
      } catch (const OutOfMemory&) {
        ++refused;
        while (held.size() > 100) drop(held.begin()->first);
        continue;
      }
      uint64_t start = block->physical, end = start + block->size;
      live.add(start, block->size);
      model.allocated(block->size, bytes);
      for (const Past& p : past) {
        if (p.end <= start || p.start >= end) continue;
        for (auto [user, mark] : p.uses) {
          bool ordered = !poison && user == stream && user == p.owner;
          // A foreign use must have ended even when its stream is the new owner's: what matters
          // is the parking rule, that such a block waits for every other stream's marker.
          if (!ordered) CHECK(streams.done[user] >= mark);
          shared += !ordered;
        }
      }
      std::erase_if(past, [&](const Past& p) {
        return std::all_of(p.uses.begin(), p.uses.end(),
                           [&](auto u) { return streams.done[u.first] >= u.second; });
      });
      held[block];
      streams.submit(stream);
      if (random() % 4 == 0) {
        int user = static_cast<int>(random() % kStreams);
        memory.record_use(block, user);
        streams.submit(user);
        if (user != stream) held[block].push_back(user);
      }
    }
    if (random() % 6 == 0) streams.advance(static_cast<int>(random() % kStreams), random() % 20);
    if (random() % 997 == 0) memory.empty_cache();
    if (i % 97 == 0) {
      memory.check_invariants();
      model.compare(memory.stats(), true);
    }
  }
  CHECK(shared > 0);
  CHECK_EQ(memory.stats().num_ooms, refused);
  while (!held.empty()) drop(held.begin()->first);
  memory.check_invariants();
  model.compare(memory.stats(), true);
  memory.empty_cache();
  streams.finish();
  memory.empty_cache();
  CHECK_EQ(memory.info().reserved, 0u);
}

}  // namespace

TEST(random_100000_over_4_threads_and_3_streams_fast) {
  many_threads(FunctionKind::PF, false, 100000);
}
TEST(random_100000_over_4_threads_and_3_streams_reference) {
  many_threads(FunctionKind::PF, true, 100000);
}
TEST(random_100000_over_4_threads_and_3_streams_virtual_function) {
  many_threads(FunctionKind::VF, false, 100000);
}
TEST(random_no_place_is_reused_before_its_streams_have_passed) {
  for (bool exact : {false, true})
    for (FunctionKind kind : {FunctionKind::PF, FunctionKind::VF})
      exact_streams(kind, exact, false, 11, 20000);
}
TEST(random_poisoned_places_are_reused_only_behind_markers) {
  exact_streams(FunctionKind::PF, false, true, 12, 10000);
}

// Everything at once: two tenants of one card, all memory types, chunks, new homes, returned
// regions, history, hooks that fail now and then. After every few steps all invariants must hold.
static void soup(FunctionKind kind, bool exact, unsigned seed) {
  MemoryConfig config = small_card(kind, exact);
  config.max_handles = 6;
  auto card = std::make_shared<PhysicalMemory>(24 * kMiB, true);
  std::array<std::unique_ptr<DeviceMemory>, 2> tenants;
  std::array<Streams, 2> streams;
  std::mt19937 random(seed);
  for (int t = 0; t < 2; ++t) {
    config.guard = t == 1;
    tenants[t] = std::make_unique<DeviceMemory>(t, card, config);
    MemoryHooks hooks = streams[t].hooks();
    hooks.record_marker = [&, t](int stream) -> uint64_t {
      if (random() % 16 == 0) throw std::runtime_error("the stream is in error");
      return streams[t].end[stream].load();
    };
    hooks.synchronize = [&, t] {
      if (random() % 16 == 0) throw std::runtime_error("interrupted");
      streams[t].finish();
    };
    hooks.frames = [] { return std::make_shared<int>(1); };
    tenants[t]->set_hooks(hooks);
    tenants[t]->record_history(true, 100);
  }
  std::array<std::vector<Block*>, 2> held;
  std::array<std::vector<CompositeAddress>, 2> chunks;
  int refused = 0, interrupted = 0;
  auto pick = [&](auto& list) {
    std::swap(list[random() % list.size()], list.back());
    return list.back();
  };
  for (int i = 0; i < 20000; ++i) {
    int t = static_cast<int>(random() % 2);
    DeviceMemory& memory = *tenants[t];
    auto& mine = held[t];
    try {
      switch (random() % 12) {
        case 0:
          chunks[t].push_back(memory.allocate_interleaved(random_size(random), {0, 1, 2}));
          break;
        case 1:
          if (chunks[t].empty()) break;
          memory.free_composite(pick(chunks[t]));
          chunks[t].pop_back();
          break;
        case 2:
          if (mine.empty()) break;
          pick(mine);
          memory.rehome(mine.back(), 1 + random() % mine.back()->token_span);
          break;
        case 3:
          if (random() % 40 == 0) memory.empty_cache();
          streams[t].advance(static_cast<int>(random() % kStreams), random() % 40);
          break;
        case 4:
          if (!mine.empty()) memory.record_use(pick(mine), static_cast<int>(random() % kStreams));
          break;
        case 5:
        case 6:
        case 7:
          if (mine.empty()) break;
          memory.free(pick(mine));
          mine.pop_back();
          break;
        default: {
          int stream = static_cast<int>(random() % kStreams);
          auto type = static_cast<MemoryType>(std::max(0, static_cast<int>(random() % 6) - 3));
          uint64_t bytes = random_size(random) << (random() % 3);
          mine.push_back(memory.allocate(bytes, 2 * bytes, stream, type));
          streams[t].submit(stream);
        }
      }
    } catch (const OutOfMemory&) {
      ++refused;
      for (int k = 0; k < 20 && !mine.empty(); ++k) {
        memory.free(pick(mine));
        mine.pop_back();
      }
    } catch (const BadToken&) {
      throw;
    } catch (const std::runtime_error&) {
      ++interrupted;
    }
    if (i % 61 == 0) {
      uint64_t reserved = 0;
      for (auto& tenant : tenants) {
        tenant->check_invariants();
        for (const RegionInfo& region : tenant->snapshot().regions) reserved += region.size;
      }
      CHECK_EQ(reserved, card->used());
    }
  }
  CHECK(refused > 0 && interrupted > 0);
  for (int t = 0; t < 2; ++t) {
    streams[t].finish();
    for (Block* block : held[t]) tenants[t]->free(block);
    for (const CompositeAddress& address : chunks[t]) tenants[t]->free_composite(address);
    tenants[t]->set_hooks({});  // no streams any more: nothing is waited for
    tenants[t]->empty_cache();
    tenants[t]->check_invariants();
    CHECK_EQ(tenants[t]->stats().program_bytes.current, 0);
    CHECK_EQ(tenants[t]->info().reserved, 0u);
  }
  CHECK_EQ(card->used(), 0u);
}
TEST(random_soup_of_tenants_types_chunks_and_failing_hooks) {
  for (bool exact : {false, true})
    for (FunctionKind kind : {FunctionKind::PF, FunctionKind::VF}) soup(kind, exact, 21 + exact);
}

// The fast index must not waste: over one random sequence it may not need more than a tenth more
// reserved memory than exact best fit does.
TEST(random_fast_fit_stays_close_to_best_fit) {
  int64_t peak[2];
  for (bool exact : {false, true}) {
    MemoryConfig config = small_card(FunctionKind::PF, exact);
    config.capacity = 64 * kMiB;
    DeviceMemory memory(0, std::make_shared<PhysicalMemory>(config.capacity, false), config);
    std::mt19937 random(5);
    std::vector<Block*> held;
    for (int i = 0; i < 30000; ++i) {
      if (held.size() > 600 || (!held.empty() && random() % 5 < 2)) {
        size_t k = random() % held.size();
        memory.free(held[k]);
        held[k] = held.back();
        held.pop_back();
      } else {
        uint64_t bytes = random_size(random);
        held.push_back(memory.allocate(bytes, bytes, 0));
      }
    }
    memory.check_invariants();
    peak[exact] = memory.stats().reserved_bytes[kAggregate].peak;
  }
  CHECK(peak[0] * 10 <= peak[1] * 11);
}
