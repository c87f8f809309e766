// The card's allocator on raw blocks: acceptance tests RT and trap rows B that need no torch.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "card/memory.h"
#include "check.h"

using namespace openspyre::card;

namespace {

constexpr uint64_t kMiB = 1ull << 20;

MemoryConfig config_of(uint64_t capacity, uint64_t granule = 64 << 10) {
  MemoryConfig config;
  config.capacity = capacity;
  config.min_region = granule;
  return config;
}

// A device alone on its card.
struct Rig {
  explicit Rig(MemoryConfig config, bool backing = true)
      : card(std::make_shared<PhysicalMemory>(config.capacity, backing)), memory(0, card, config) {}
  Block* get(uint64_t bytes, int stream = 0, MemoryType type = MemoryType::Tensor) {
    return memory.allocate(bytes, bytes, stream, type);
  }
  int64_t allocated() const { return memory.stats().allocated_bytes[kAggregate].current; }
  std::shared_ptr<PhysicalMemory> card;
  DeviceMemory memory;
};

// Streams that never run by themselves: markers count up, `pass` says how far a stream is.
struct FakeStreams {
  std::map<int, uint64_t> recorded, passed;
  int markers = 0;
  MemoryHooks hooks() {
    MemoryHooks h;
    h.record_marker = [this](int stream) { return ++markers, ++recorded[stream]; };
    h.marker_passed = [this](int stream, uint64_t marker) { return marker <= passed[stream]; };
    return h;
  }
  void finish(int stream) { passed[stream] = recorded[stream]; }
};

Verdict verdict_of(Rig& rig, uint64_t bytes, std::string* text = nullptr) {
  try {
    rig.get(bytes);
  } catch (const OutOfMemory& e) {
    if (text) *text = e.what();
    return e.verdict;
  }
  throw check::Failure("the allocation did not run out of memory");
}

bool same_currents(const MemoryStats& a, const MemoryStats& b) {
  auto pairs = [](const MemoryStats& s) {
    return std::vector<std::array<Stat, kStatPools>>{s.allocation, s.active, s.allocated_bytes,
                                                     s.active_bytes, s.requested_bytes};
  };
  auto x = pairs(a), y = pairs(b);
  for (size_t i = 0; i < x.size(); ++i)
    for (int p = 0; p < kStatPools; ++p)
      if (x[i][p].current != y[i][p].current) return false;
  return true;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(rt1_sizes_are_rounded_to_128_bytes) {
  for (auto [bytes, rounded] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0}, {1, 128}, {127, 128}, {128, 128}, {129, 256}, {256, 256}})
    CHECK_EQ(round_up_block(bytes), rounded);
  Rig rig(config_of(kMiB));
  for (auto [bytes, rounded] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 128}, {127, 128}, {128, 128}, {129, 256}, {256, 256}}) {
    Block* block = rig.get(bytes);
    CHECK_EQ(block->size, rounded);
    CHECK_EQ(block->requested, bytes);
    CHECK_EQ(rig.allocated(), static_cast<int64_t>(rounded));
    rig.memory.free(block);
  }
  CHECK_THROWS(rig.get(0), std::invalid_argument);
}

TEST(rt6_batches_freed_in_tens_leave_the_statistics_as_they_were) {
  Rig rig(config_of(4 * kMiB));
  MemoryStats start = rig.memory.stats();
  std::vector<Block*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(rig.get(512 * 4));
  for (int batch = 0; batch < 10; ++batch) {
    for (int i = 0; i < 10; ++i) rig.memory.free(blocks[batch * 10 + i]);
    rig.memory.free(rig.get(5120 * 4));
    rig.memory.check_invariants();
  }
  CHECK(same_currents(start, rig.memory.stats()));
  CHECK_EQ(rig.memory.live_blocks(), 0);
}

TEST(rt7_freed_neighbours_coalesce_in_a_full_region) {
  for (bool exact : {false, true})
    for (auto order : {std::array{1, 0, 2}, std::array{0, 1, 2}, std::array{2, 1, 0}}) {
      MemoryConfig config = config_of(3 * kMiB, kMiB);
      config.exact_best_fit = exact;
      Rig rig(config);
      std::array<Block*, 3> blocks{rig.get(kMiB), rig.get(kMiB), rig.get(kMiB)};
      CHECK(verdict_of(rig, 128) == Verdict::Exhausted);
      for (int i : order) rig.memory.free(blocks[i]);
      rig.memory.check_invariants();
      rig.memory.free(rig.get(3 * kMiB));
    }
}

TEST(rt8_random_order_of_freeing_restores_the_statistics) {
  Rig rig(config_of(16 * kMiB));
  MemoryStats start = rig.memory.stats();
  std::vector<Block*> blocks;
  for (uint64_t elements : {128, 4096, 262144, 128, 8192, 524288})
    blocks.push_back(rig.get(elements * 4));
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(42));
  for (Block* block : blocks) {
    rig.memory.free(block);
    rig.memory.check_invariants();
  }
  CHECK(same_currents(start, rig.memory.stats()));
}

TEST(rt10_eight_threads_allocate_and_free) {
  Rig rig(config_of(64 * kMiB));
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&rig, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 200; ++i) {
        Block* block = rig.get(1 + random() % 100000);
        block->host[0] = block->host[block->size - 1] = std::byte(t);
        rig.memory.free(block);
      }
    });
  for (auto& thread : threads) thread.join();
  rig.memory.check_invariants();
  CHECK_EQ(rig.allocated(), 0);
  CHECK_EQ(rig.memory.stats().allocation[kAggregate].allocated, 1600);
  CHECK_EQ(rig.memory.stats().allocation[kAggregate].freed, 1600);
}

TEST(rt13_rt14_a_full_device_refuses_with_all_figures_and_recovers) {
  Rig rig(config_of(4 * kMiB, kMiB));
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(rig.get(kMiB));
  std::string text;
  CHECK(verdict_of(rig, kMiB - 100, &text) == Verdict::Exhausted);
  for (const char* part :
       {"spyre:0", "PF", "requested 1048476 B", "rounded 1048576 B", "free 0 B",
        "capacity 4194304 B", "largest free block 0 B", "handles used 1", "exhausted"})
    if (!has(text, part)) throw check::Failure(std::string("missing '") + part + "' in: " + text);
  CHECK_EQ(rig.memory.stats().num_ooms, 1);
  CHECK_EQ(rig.memory.stats().num_alloc_retries, 1);
  rig.memory.check_invariants();
  rig.memory.free(blocks[2]);
  blocks[2] = rig.get(kMiB - 100);
  CHECK_EQ(rig.memory.stats().num_ooms, 1);
  for (Block* block : blocks) rig.memory.free(block);
}

TEST(rt15_a_pattern_of_holes_is_fragmented_and_not_exhausted) {
  Rig rig(config_of(4 * kMiB, kMiB));
  std::vector<Block*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(rig.get(64 << 10));
  CHECK(verdict_of(rig, 128 << 10) == Verdict::Exhausted);
  for (int i = 0; i < 64; i += 2) rig.memory.free(blocks[i]);
  std::string text;
  CHECK(verdict_of(rig, 128 << 10, &text) == Verdict::Fragmented);
  CHECK(has(text, "fragmented") && has(text, "free 2097152 B") &&
        has(text, "largest free block 65536 B"));
  MemoryInfo info = rig.memory.info();
  CHECK_EQ(info.free, 2 * kMiB);
  CHECK_EQ(info.largest_free_block, 64u << 10);
  CHECK_EQ(info.fragmentation, 1 - 1.0 / 32);
}

TEST(rt16_a_request_above_the_largest_region_changes_nothing) {
  MemoryConfig config = config_of(16 * kMiB);
  config.max_region = 4 * kMiB;
  Rig rig(config);
  int asked = 0;
  MemoryHooks hooks;
  hooks.pressure = [&] { return ++asked, false; };
  rig.memory.set_hooks(hooks);
  std::string text;
  for (uint64_t bytes : std::vector<uint64_t>{4 * kMiB + 1, 17 * kMiB, ~0ull, ~0ull - 200}) {
    CHECK(verdict_of(rig, bytes, &text) == Verdict::TooLargeForRegion);
    CHECK(has(text, "too large for a region"));
  }
  CHECK_EQ(asked, 0);
  CHECK_EQ(rig.memory.info().reserved, 0u);
  CHECK_EQ(rig.memory.stats().num_alloc_retries, 0);
  rig.memory.check_invariants();
  rig.memory.free(rig.get(4 * kMiB));
}

TEST(rt17_the_ninth_region_of_a_virtual_function_is_handle_limited) {
  MemoryConfig config = config_of(64 * kMiB);
  config.max_region = 4 * kMiB;
  config.kind = FunctionKind::VF;
  Rig vf(config);
  for (int i = 0; i < 8; ++i) CHECK_EQ(vf.get(4 * kMiB)->region, static_cast<uint32_t>(i));
  std::string text;
  CHECK(verdict_of(vf, 4 * kMiB, &text) == Verdict::HandleLimited);
  CHECK(has(text, "handle-limited") && has(text, "handles used 8 of 8") && has(text, "VF"));
  CHECK_EQ(vf.card->used(), 32 * kMiB);
  config.kind = FunctionKind::PF;
  Rig pf(config);
  for (int i = 0; i < 16; ++i) pf.get(4 * kMiB);
  CHECK_EQ(pf.memory.info().handles_used, 16);
  CHECK_EQ(pf.memory.info().handles_max, 0);
}

TEST(b112_a_virtual_function_names_its_segment_limit) {
  MemoryConfig config = config_of(32 * kMiB);
  config.kind = FunctionKind::VF;
  config.max_region = 4 * kMiB;
  Rig vf(config);
  std::string text;
  CHECK(verdict_of(vf, 6 * kMiB, &text) == Verdict::TooLargeForRegion);
  CHECK(has(text, "segment limit") && has(text, "4194304 B"));
  Rig pf(config_of(32 * kMiB));
  pf.memory.free(pf.get(6 * kMiB));
}

TEST(b113_adversarial_patterns_keep_score_and_table_in_bounds) {
  for (bool exact : {false, true}) {
    MemoryConfig config = config_of(32 * kMiB);
    config.kind = FunctionKind::VF;
    config.max_handles = 3;
    config.max_region = 8 * kMiB;
    config.exact_best_fit = exact;
    Rig rig(config);
    std::mt19937 random(7);
    std::vector<Block*> live;
    int refused = 0;
    for (int i = 0; i < 4000; ++i) {
      // Grow with small and large in turn, then free every other one: the classic worst case.
      try {
        live.push_back(rig.get(i % 2 ? 128 + random() % 512 : 1 + random() % (512 << 10)));
      } catch (const OutOfMemory&) {
        ++refused;
        for (size_t k = 0; k < live.size(); k += 2) rig.memory.free(live[k]);
        std::vector<Block*> kept;
        for (size_t k = 1; k < live.size(); k += 2) kept.push_back(live[k]);
        live.swap(kept);
      }
      MemoryInfo info = rig.memory.info();
      CHECK(info.fragmentation >= 0 && info.fragmentation <= 1);
      CHECK(info.handles_used <= 3 && info.largest_free_block <= info.free);
    }
    CHECK(refused > 0);
    rig.memory.check_invariants();
    for (Block* block : live) rig.memory.free(block);
    CHECK_EQ(rig.memory.info().fragmentation >= 0, true);
    rig.memory.empty_cache();
    CHECK_EQ(rig.card->used(), 0u);
  }
}

TEST(rt18_no_region_before_the_first_block_and_none_after_empty_cache) {
  Rig rig(config_of(8 * kMiB));
  CHECK_EQ(rig.memory.info().reserved, 0u);
  CHECK_EQ(rig.card->used(), 0u);
  Block* block = rig.get(100);
  CHECK_EQ(rig.memory.stats().reserved_bytes[kAggregate].current, 64 << 10);
  rig.memory.empty_cache();
  CHECK(rig.memory.info().reserved > 0);
  rig.memory.free(block);
  CHECK(rig.memory.info().reserved > 0);  // hysteresis: freeing alone returns nothing
  rig.memory.empty_cache();
  CHECK_EQ(rig.memory.stats().reserved_bytes[kAggregate].current, 0);
  CHECK_EQ(rig.memory.stats().segment[kAggregate].current, 0);
  CHECK_EQ(rig.card->used(), 0u);
}

TEST(rt19_tenants_of_one_card_are_isolated) {
  auto card = std::make_shared<PhysicalMemory>(16 * kMiB, true);
  MemoryConfig config = config_of(8 * kMiB);
  config.kind = FunctionKind::VF;
  DeviceMemory a(0, card, config), b(1, card, config);
  std::vector<Block*> of_a, of_b;
  for (int i = 0; i < 8; ++i) {
    of_a.push_back(a.allocate(kMiB, 0, 0));
    of_b.push_back(b.allocate(kMiB, 0, 0));
  }
  std::set<uint64_t> places;
  for (auto* list : {&of_a, &of_b})
    for (Block* block : *list) CHECK(places.insert(block->physical).second);
  // Growing in turn, each still fills its quota with one handle.
  CHECK_EQ(a.info().handles_used, 1);
  CHECK_EQ(b.info().handles_used, 1);
  CHECK_THROWS(b.free(of_a[0]), BadToken);
  CHECK_THROWS(b.record_use(of_a[0], 3), BadToken);
  CHECK_THROWS(b.rehome(of_a[0], 128), BadToken);
  a.free(of_a[0]);
  CompositeAddress chunks = a.allocate_interleaved(1000, {0});
  CHECK_THROWS(b.free_composite(chunks), BadToken);
  a.check_invariants();
  b.check_invariants();
}

TEST(tenants_halve_their_wish_when_the_card_is_nearly_full) {
  auto card = std::make_shared<PhysicalMemory>(8 * kMiB, true);
  MemoryConfig config = config_of(8 * kMiB);
  config.kind = FunctionKind::VF;
  DeviceMemory a(0, card, config), b(1, card, config);
  Block* first = a.allocate(6 * kMiB, 0, 0);
  b.allocate(kMiB, 0, 0);
  b.allocate(kMiB, 0, 0);
  CHECK_EQ(card->used(), 8 * kMiB);
  CHECK_THROWS(b.allocate(128, 0, 0), OutOfMemory);
  a.free(first);
  a.empty_cache();
  b.allocate(5 * kMiB, 0, 0);
  b.check_invariants();
}

TEST(rt20_rt21_interleaved_chunks_and_their_rollback) {
  MemoryConfig config = config_of(4 * kMiB);
  config.kind = FunctionKind::VF;
  config.max_handles = 2;
  Rig two(config);
  MemoryStats start = two.memory.stats();
  CHECK_THROWS(two.memory.allocate_interleaved(1000, {0, 1, 2}), OutOfMemory);
  CHECK(same_currents(start, two.memory.stats()));
  two.memory.check_invariants();
  config.max_handles = 3;
  Rig rig(config);
  CompositeAddress address = rig.memory.allocate_interleaved(1000, {0, 1, 2});
  CHECK_EQ(address.num_chunks(), 3u);
  CHECK_EQ(address.chunks[0].size, 384u);
  CHECK_EQ(address.chunks[1].size, 384u);
  CHECK_EQ(address.chunks[2].size, 256u);
  CHECK_EQ(address.total_size(), 1024u);
  CHECK(!address.is_contiguous());
  std::set<uint32_t> regions;
  for (const Chunk& chunk : address.chunks) {
    CHECK_EQ(chunk.offset % 128, 0u);
    regions.insert(chunk.region);
  }
  CHECK_EQ(regions.size(), 3u);
  rig.memory.check_invariants();
  rig.memory.free_composite(address);
  CHECK_THROWS(rig.memory.free_composite(address), BadToken);
  CHECK_EQ(rig.allocated(), 0);
  CHECK(rig.memory.allocate_interleaved(1000, {0}).is_contiguous());
}

TEST(rt22_programs_and_tensors_never_share_a_region) {
  Rig rig(config_of(8 * kMiB));
  std::map<uint32_t, std::set<MemoryType>> types;
  std::mt19937 random(3);
  std::vector<Block*> blocks;
  for (int i = 0; i < 60; ++i) {
    Block* block = rig.get(1 + random() % 50000, 0, static_cast<MemoryType>(random() % 3));
    types[block->region].insert(block->type);
    blocks.push_back(block);
  }
  for (const auto& [region, found] : types) CHECK_EQ(found.size(), 1u);
  MemorySnapshot snapshot = rig.memory.snapshot();
  for (const RegionInfo& region : snapshot.regions)
    CHECK(types[region.region].count(region.type) == 1);
  rig.memory.check_invariants();
  for (Block* block : blocks) rig.memory.free(block);
}

TEST(an_idle_region_of_another_type_is_returned_under_pressure) {
  Rig rig(config_of(4 * kMiB));
  rig.memory.free(rig.get(3 * kMiB));
  Block* program = rig.get(3 * kMiB, 0, MemoryType::ProgramStatic);
  CHECK_EQ(rig.memory.stats().segment[kAggregate].current, 0);
  rig.memory.free(program);
  // A free tail is returned as well, down to the block that lives below it.
  Block* small = rig.get(128);
  rig.memory.free(rig.get(3 * kMiB));
  program = rig.get(3 * kMiB, 0, MemoryType::ProgramStatic);
  rig.memory.check_invariants();
  rig.memory.free(program);
  rig.memory.free(small);
}

TEST(rt23_a_recorded_use_parks_the_block_until_that_stream_has_passed) {
  FakeStreams streams;
  Rig rig(config_of(kMiB, kMiB));
  rig.memory.set_hooks(streams.hooks());
  Block* block = rig.get(kMiB / 2);
  uint64_t place = block->physical;
  rig.memory.record_use(block, 7);
  void* token = block->token;
  rig.memory.free(block);
  CHECK(TokenSpace::get().find(token) == nullptr);
  auto snapshot = rig.memory.snapshot();
  CHECK(snapshot.regions[0].blocks[0].state == BlockInfo::State::ActivePendingFree);
  CHECK_EQ(std::string(state_name(snapshot.regions[0].blocks[0].state)), "active_pending_free");
  MemoryStats stats = rig.memory.stats();
  CHECK_EQ(stats.allocation[kAggregate].current, 0);
  CHECK_EQ(stats.active_bytes[kAggregate].current, static_cast<int64_t>(kMiB / 2));
  Block* other = rig.get(kMiB / 2);
  CHECK(other->physical != place);
  CHECK(verdict_of(rig, kMiB / 2) == Verdict::Exhausted);
  rig.memory.check_invariants();
  streams.finish(7);
  CHECK_EQ(rig.get(kMiB / 2)->physical, place);
  rig.memory.check_invariants();
}

TEST(rt23_own_stream_is_no_other_user) {
  FakeStreams streams;
  Rig rig(config_of(kMiB, kMiB));
  rig.memory.set_hooks(streams.hooks());
  Block* block = rig.get(kMiB, 5);
  rig.memory.record_use(block, 5);
  rig.memory.free(block);
  CHECK_EQ(streams.markers, 0);
  rig.memory.free(rig.get(kMiB, 5));
}

TEST(rt24_same_stream_reuses_a_freed_block_at_once) {
  FakeStreams streams;
  Rig rig(config_of(4 * kMiB));
  rig.memory.set_hooks(streams.hooks());
  for (int stream : {0, 0, 4, 0, 4}) {  // also after several streams have allocated
    Block* block = rig.get(4096, stream);
    uint64_t place = block->physical;
    rig.memory.free(block);
    block = rig.get(4096, stream);
    CHECK_EQ(block->physical, place);
    rig.memory.free(block);
  }
}

TEST(another_stream_gets_a_freed_place_only_behind_the_marker) {
  FakeStreams streams;
  Rig rig(config_of(kMiB, kMiB));
  rig.memory.set_hooks(streams.hooks());
  Block* low = rig.get(kMiB / 2, 1);
  uint64_t place = low->physical;
  rig.memory.free(low);  // one stream so far: no marker was recorded
  CHECK_EQ(streams.markers, 0);
  CHECK(verdict_of(rig, 2 * kMiB) == Verdict::TooLargeForRegion);
  CHECK_THROWS(rig.get(kMiB / 2, 2), OutOfMemory);  // the second stream: stream 1 may still run
  CHECK(streams.markers >= 1);
  CHECK_EQ(rig.get(kMiB / 2, 1)->physical, place);
  streams.finish(1);
  Block* second = rig.get(kMiB / 2, 2);
  CHECK(second->physical != place);
  rig.memory.free(second);
  CHECK_THROWS(rig.get(kMiB / 2, 1), OutOfMemory);  // and the other way round
  streams.finish(2);
  rig.get(kMiB / 2, 1);
  rig.memory.check_invariants();
}

TEST(the_ladder_is_climbed_in_order_and_each_rung_once) {
  Rig rig(config_of(2 * kMiB, kMiB));
  std::string order;
  FakeStreams streams;
  MemoryHooks hooks = streams.hooks();
  hooks.pressure = [&] {
    order += "p";
    rig.memory.info();  // no lock is held
    try {
      rig.get(2 * kMiB);  // nor does the hook climb into itself
    } catch (const OutOfMemory&) {
      order += "(";
    }
    return true;
  };
  hooks.synchronize = [&] { order += "s"; };
  hooks.evict = [&] { return order += "e", false; };
  rig.memory.set_hooks(hooks);
  Block* all = rig.get(2 * kMiB);
  CHECK(verdict_of(rig, 128) == Verdict::Exhausted);
  CHECK_EQ(order, "pse(se");  // the inner request skips the hook it runs in
  CHECK_EQ(rig.memory.stats().num_sync_all_streams, 2);
  CHECK_EQ(rig.memory.stats().num_alloc_retries, 2);
  CHECK_EQ(rig.memory.stats().num_ooms, 2);
  // The hook that frees ends the climb.
  order.clear();
  hooks.pressure = [&] { return order += "p", rig.memory.free(all), true; };
  rig.memory.set_hooks(hooks);
  rig.memory.free(rig.get(kMiB));
  CHECK_EQ(order, "p");
  CHECK_EQ(rig.memory.stats().num_ooms, 2);
  // Synchronize lets parked blocks go.
  hooks.pressure = nullptr;
  hooks.synchronize = [&] { streams.finish(3); };
  rig.memory.set_hooks(hooks);
  Block* used = rig.get(2 * kMiB);
  rig.memory.record_use(used, 3);
  rig.memory.free(used);
  Block* fresh = rig.get(2 * kMiB);
  rig.memory.free(fresh);
  // A hook that throws leaves everything as it was.
  hooks.pressure = []() -> bool { throw std::runtime_error("interrupted"); };
  rig.memory.set_hooks(hooks);
  fresh = rig.get(2 * kMiB);
  CHECK_THROWS(rig.get(128), std::runtime_error);
  rig.memory.check_invariants();
  rig.memory.free(fresh);
}

TEST(evicted_program_memory_makes_room_for_tensors) {
  Rig rig(config_of(2 * kMiB));
  Block* program = rig.get(kMiB + kMiB / 2, 0, MemoryType::ProgramStatic);
  MemoryHooks hooks;
  hooks.evict = [&] { return rig.memory.free(program), true; };
  rig.memory.set_hooks(hooks);
  rig.get(2 * kMiB);
  CHECK_EQ(rig.memory.stats().program_bytes.current, 0);
}

TEST(rt27_free_and_total_follow_tensors_only) {
  Rig rig(config_of(8 * kMiB));
  CHECK_EQ(rig.memory.info().total, 8 * kMiB);
  Block* tensor = rig.get(100000);
  auto used = [&] { return rig.memory.info().total - rig.memory.info().free; };
  CHECK_EQ(used(), round_up_block(100000));
  Block* program = rig.get(kMiB, 0, MemoryType::ProgramStatic);
  CHECK_EQ(used(), round_up_block(100000));
  CHECK_EQ(rig.allocated(), static_cast<int64_t>(round_up_block(100000)));
  CHECK_EQ(rig.memory.stats().program_bytes.current, static_cast<int64_t>(kMiB));
  CHECK_EQ(rig.memory.stats().program_allocation.current, 1);
  rig.memory.free(program);
  rig.memory.free(tensor);
  CHECK_EQ(rig.memory.info().free, 8 * kMiB);
}

TEST(rt29_device_addresses) {
  CHECK_EQ(dmva(7, 0), 120259084288u);
  CHECK_EQ(dmva(1, 128), 17179869312u);
  CHECK_EQ(kDmvaLimit, 137438953472u);
  for (uint64_t segment = 0; segment < 8; ++segment)
    for (uint64_t offset : {0ull, 128ull, 0x123456780ull, (1ull << 34) - 1}) {
      SegmentOffset back = split_dmva(dmva(segment, offset));
      CHECK_EQ(back.segment, segment);
      CHECK_EQ(back.offset, offset);
    }
  CHECK_THROWS(dmva(8, 0), std::out_of_range);
  CHECK_THROWS(dmva(0, 1ull << 34), std::out_of_range);
  CHECK_THROWS(split_dmva(kDmvaLimit), std::out_of_range);
}

TEST(rt33_no_region_is_at_segment_zero) {
  Rig rig(config_of(4 * kMiB));
  rig.get(128);
  rig.get(128, 0, MemoryType::ProgramDynamic);
  for (const RegionInfo& region : rig.memory.snapshot().regions)
    CHECK(region.address >= kSegmentSize);
}

TEST(bad_frees_are_named_and_change_nothing) {
  Rig rig(config_of(kMiB));
  Block* block = rig.get(100);
  Block stranger;
  stranger.token = &stranger;
  CHECK_THROWS(rig.memory.free(nullptr), BadToken);
  CHECK_THROWS(rig.memory.free(&stranger), BadToken);
  rig.memory.free(block);
  CHECK_THROWS(rig.memory.free(block), BadToken);
  CHECK_THROWS(rig.memory.record_use(block, 1), BadToken);
  rig.get(100);
  CHECK_THROWS(rig.memory.free(block), BadToken);  // its node is in quarantine
  rig.memory.check_invariants();
  CHECK_EQ(rig.memory.live_blocks(), 1);
}

TEST(rehome_keeps_the_token_and_frees_the_old_place) {
  Rig rig(config_of(kMiB, kMiB));
  Block* block = rig.memory.allocate(1000, 2000, 0);
  void* token = block->token;
  uint32_t generation = block->generation;
  rig.memory.rehome(block, 2000);
  CHECK(block->token == token && TokenSpace::get().checked(token, generation) == block);
  CHECK_EQ(block->size, 2048u);
  CHECK_EQ(rig.allocated(), 2048);
  CHECK_THROWS(rig.memory.rehome(block, 2001), std::invalid_argument);
  CHECK_THROWS(rig.memory.rehome(block, 0), std::invalid_argument);
  Block* rest = rig.get(kMiB - 4096);
  Block before = *block;
  CHECK_THROWS(rig.memory.rehome(block, 2000), OutOfMemory);
  CHECK(block->offset == before.offset && block->size == before.size && block->token == token);
  rig.memory.free(rest);
  rig.memory.free(block);
  rig.memory.check_invariants();
  CHECK_EQ(rig.memory.live_blocks(), 0);
}

TEST(poison_fills_fresh_blocks_and_guard_catches_overruns) {
  MemoryConfig config = config_of(kMiB);
  config.poison = config.guard = true;
  Rig rig(config);
  Block* block = rig.get(200);
  for (uint64_t i = 0; i < block->size; ++i) CHECK(block->host[i] == std::byte{0xA5});
  block->host[block->size + 5] = std::byte{1};
  std::string text;
  try {
    rig.memory.free(block);
  } catch (const GuardViolation& e) {
    text = e.what();
  }
  CHECK(has(text, "offset " + std::to_string(block->offset)) && has(text, "byte 261"));
  CHECK_EQ(rig.memory.live_blocks(), 1);
  rig.memory.free(block);
  CHECK_EQ(rig.memory.live_blocks(), 0);
  rig.memory.check_invariants();
  // The host writes into a fresh block, so even the same stream must have passed the old one.
  FakeStreams streams;
  rig.memory.set_hooks(streams.hooks());
  Block* first = rig.get(200);
  uint64_t place = first->physical;
  rig.memory.free(first);
  Block* second = rig.get(200);
  CHECK(second->physical != place);
  streams.finish(0);
  rig.memory.poll_pending_frees();
  CHECK_EQ(rig.get(200)->physical, place);
}

TEST(history_and_snapshot_account_for_every_byte) {
  Rig rig(config_of(4 * kMiB));
  MemoryHooks hooks;
  int captured = 0;
  hooks.frames = [&] { return std::make_shared<int>(++captured); };
  rig.memory.set_hooks(hooks);
  rig.get(128);
  CHECK_EQ(captured, 0);
  rig.memory.record_history(true, 1000);
  std::vector<Block*> blocks;
  for (int i = 1; i < 40; ++i) blocks.push_back(rig.get(1000 * i));
  for (int i = 0; i < 39; i += 3) rig.memory.free(blocks[i]);
  CHECK_THROWS(rig.get(4 * kMiB), OutOfMemory);
  MemorySnapshot picture = rig.memory.snapshot();
  int64_t balance = 1, live = 0;  // one block was there before the recording
  std::map<TraceEntry::Action, int> rows;
  for (const TraceEntry& row : picture.trace) {
    ++rows[row.action];
    if (row.action == TraceEntry::Action::Alloc) {
      CHECK(row.frames && row.time_us > 0);
      ++balance;
    }
    if (row.action == TraceEntry::Action::FreeCompleted) --balance;
  }
  for (const RegionInfo& region : picture.regions) {
    uint64_t end = region.address, allocated = 0;
    for (const BlockInfo& block : region.blocks) {
      CHECK_EQ(block.address, end);
      end += block.size;
      bool is_live = block.state == BlockInfo::State::ActiveAllocated;
      live += is_live;
      allocated += is_live ? block.size : 0;
    }
    CHECK_EQ(end, region.address + region.size);
    CHECK_EQ(allocated, region.allocated);
  }
  CHECK_EQ(balance, live);
  CHECK_EQ(live, rig.memory.live_blocks());
  CHECK_EQ(rows[TraceEntry::Action::FreeRequested], 13);
  CHECK_EQ(rows[TraceEntry::Action::Oom], 1);
  CHECK_EQ(rows[TraceEntry::Action::Snapshot], 1);
  CHECK(rows[TraceEntry::Action::SegmentMap] > 0);
  rig.memory.record_history(true, 5);
  for (int i = 0; i < 10; ++i) rig.memory.free(rig.get(128));
  CHECK_EQ(rig.memory.snapshot().trace.size(), 5u);
}

TEST(peaks_and_accumulated_statistics_can_be_reset) {
  Rig rig(config_of(4 * kMiB));
  rig.memory.free(rig.get(2 * kMiB));
  Block* block = rig.get(1000);
  MemoryStats stats = rig.memory.stats();
  CHECK_EQ(stats.allocated_bytes[kAggregate].peak, static_cast<int64_t>(2 * kMiB));
  CHECK_EQ(stats.allocated_bytes[kLargePool].allocated, static_cast<int64_t>(2 * kMiB));
  CHECK_EQ(stats.allocated_bytes[kSmallPool].current, 1024);
  CHECK_EQ(stats.requested_bytes[kSmallPool].current, 1000);
  CHECK_EQ(stats.inactive_split[kAggregate].current, 1);
  CHECK_EQ(stats.inactive_split_bytes[kLargePool].current, static_cast<int64_t>(2 * kMiB - 1024));
  rig.memory.reset_peak_stats();
  rig.memory.reset_accumulated_stats();
  stats = rig.memory.stats();
  CHECK_EQ(stats.allocated_bytes[kAggregate].peak, 1024);
  CHECK_EQ(stats.allocation[kAggregate].allocated, 0);
  CHECK_EQ(stats.allocation[kAggregate].current, 1);
  rig.memory.free(block);
}

TEST(without_backing_there_are_addresses_but_no_bytes) {
  MemoryConfig config = config_of(112ull << 30, 2 * kMiB);
  config.poison = config.guard = true;
  Rig rig(config, false);
  Block* block = rig.get(15ull << 30);
  CHECK(block->host == nullptr && block->token != nullptr);
  rig.memory.free(block);
}

TEST(returned_pages_read_as_zero_again) {
  Rig rig(config_of(8 * kMiB));
  Block* block = rig.get(kMiB);
  block->host[5000] = std::byte{9};
  rig.memory.free(block);
  rig.memory.empty_cache();
  CHECK(rig.get(kMiB)->host[5000] == std::byte{0});
}

TEST(settings_without_sense_are_refused_by_name) {
  auto card = std::make_shared<PhysicalMemory>(kMiB, false);
  auto refused = [&](auto change) {
    MemoryConfig config = config_of(kMiB);
    change(config);
    CHECK_THROWS(DeviceMemory(0, card, config), std::invalid_argument);
  };
  refused([](MemoryConfig& c) { c.kind = FunctionKind::VF, c.max_handles = 0; });
  refused([](MemoryConfig& c) { c.kind = FunctionKind::VF, c.max_handles = 17; });
  refused([](MemoryConfig& c) { c.min_region = 100; });
  refused([](MemoryConfig& c) { c.max_region = c.min_region - 128; });
  refused([](MemoryConfig& c) { c.max_region = kSegmentSize + 128; });
  refused([](MemoryConfig& c) { c.capacity = 2 * kMiB; });
}
