// The runtime: start, lookup, shared cards, memory hooks, numerics, fork, end.
//
// The runtime is one per process and starts once, so every test here runs in a process of its own:
// the test program runs itself again with the name of the test.

#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "card/runtime.h"
#include "machine/pool.h"
#include "stream_helpers.h"

extern char** environ;

using namespace stream_test;
namespace machine = openspyre::machine;

namespace {

// True in the process of its own; else runs that process and checks that it passed.
bool isolated(const char* test) {
  if (std::getenv("OPENSPYRE_TEST_ISOLATED")) return true;
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  CHECK(n > 0);
  path[n] = 0;
  std::string name = test;
  char* argv[] = {path, name.data(), nullptr};
  std::vector<char*> env;
  for (char** e = environ; *e; ++e) env.push_back(*e);
  char mark[] = "OPENSPYRE_TEST_ISOLATED=1";
  env.push_back(mark);
  env.push_back(nullptr);
  pid_t child;
  CHECK_EQ(posix_spawn(&child, path, nullptr, nullptr, argv, env.data()), 0);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  return false;
}

constexpr uint64_t kMiB = 1ull << 20;

DeviceConfig small_device(int card, int vf = -1) {
  DeviceConfig d;
  d.card = card;
  d.vf = vf;
  d.card_capacity = 64 * kMiB;
  d.memory.kind = vf < 0 ? FunctionKind::PF : FunctionKind::VF;
  d.memory.capacity = 16 * kMiB;
  d.memory.max_region = 16 * kMiB;
  d.streams = plain_config();
  return d;
}

RuntimeConfig small_runtime(int cards = 1) {
  RuntimeConfig config;
  for (int i = 0; i < cards; ++i) config.devices.push_back(small_device(i));
  return config;
}

Runtime& runtime() { return Runtime::get(); }

// Runs `body` in a forked child; true when it returned true there.
template <class Body>
bool in_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (...) {
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace

#define ISOLATED_TEST(name)                 \
  static void isolated_##name();            \
  TEST(name) {                              \
    if (isolated(#name)) isolated_##name(); \
  }                                         \
  static void isolated_##name()

ISOLATED_TEST(rt73_nothing_starts_before_the_first_use_of_a_device) {
  CHECK(!runtime().started());
  CHECK_EQ(runtime().device_count(), 0);
  runtime().configure(small_runtime(2));
  CHECK_EQ(runtime().device_count(), 2);
  CHECK(!runtime().started());
  CHECK(runtime().state(0) == DeviceState::NotInitialized);  // RT47
  CHECK(!runtime().started());
  CHECK_EQ(machine::Pool::get().running(), 0);
  Device& device = runtime().device(1);
  CHECK(runtime().started());
  CHECK(&device == &runtime().device(1));
  CHECK_EQ(device.index, 1);
  CHECK_EQ(device.config.card, 1);
  CHECK_EQ(device.memory->device(), 1);
  CHECK_EQ(device.streams->device(), 1);
  CHECK(runtime().state(0) == DeviceState::Ok);
  CHECK_EQ(machine::Pool::get().running(), 0);  // no thread before there is asynchronous work
  CHECK_THROWS(runtime().configure(small_runtime()), std::logic_error);
  CHECK_EQ(runtime().device_count(), 2);
  for (int index : {-1, 2, 1000}) {
    const auto error = expect<std::out_of_range>([&] { runtime().device(index); });
    CHECK(contains(error.what(), std::to_string(index)));
    CHECK(contains(error.what(), "2 spyre devices"));
  }
}

ISOLATED_TEST(rt74_rt75_a_configuration_error_is_raised_at_first_use_only) {
  RuntimeConfig config = small_runtime();
  config.error = "LOCAL_RANK is 'abc'";
  runtime().configure(config);
  CHECK_EQ(runtime().device_count(), 0);
  for (int i = 0; i < 2; ++i) {
    const auto error = expect<ConfigError>([] { runtime().device(0); });
    CHECK(contains(error.what(), "LOCAL_RANK is 'abc'"));
  }
  CHECK(!runtime().started());
  // Not even the wrong values of the native side start half a runtime.
  CHECK((runtime().configure(RuntimeConfig{}), true));
  CHECK_THROWS(runtime().ensure_started(), ConfigError);
  config = small_runtime();
  config.devices.push_back(small_device(0));
  runtime().configure(config);
  CHECK_THROWS(runtime().ensure_started(), ConfigError);  // the same function twice
  config.devices[1].vf = 3;
  config.devices[1].card_capacity = 32 * kMiB;
  runtime().configure(config);
  CHECK_THROWS(runtime().ensure_started(), ConfigError);  // two sizes of one card
  config.devices[1].card_capacity = config.devices[0].card_capacity;
  config.devices[1].streams.host_compute_streams = 0;
  runtime().configure(config);
  CHECK_THROWS(runtime().ensure_started(), std::invalid_argument);
  CHECK(!runtime().started());
  runtime().configure(small_runtime());
  runtime().device(0).memory->check_invariants();
}

ISOLATED_TEST(rt19_two_tenants_of_one_card_share_memory_and_engines_but_no_blocks) {
  RuntimeConfig config;
  config.devices = {small_device(0, 0), small_device(0, 1), small_device(1, 0)};
  runtime().configure(config);
  Device &a = runtime().device(0), &b = runtime().device(1), &far = runtime().device(2);
  Block* of_a = a.memory->allocate(kMiB, kMiB, 0);
  Block* of_b = b.memory->allocate(kMiB, kMiB, 0);
  Block* of_far = far.memory->allocate(kMiB, kMiB, 0);
  CHECK(of_a->physical + of_a->size <= of_b->physical ||
        of_b->physical + of_b->size <= of_a->physical);
  CHECK_THROWS(b.memory->free(of_a), BadToken);
  CHECK_EQ(a.memory->live_blocks(), int64_t{1});
  // Engines and the modelled host belong to the card.
  a.streams->submit(1, step(Engine::Compute, "a", 100));
  b.streams->submit(1, step(Engine::Compute, "b", 100));
  far.streams->submit(1, step(Engine::Compute, "far", 100));
  CHECK_EQ(a.streams->stream_time_ns(1), int64_t{100});
  CHECK_EQ(b.streams->stream_time_ns(1), int64_t{200});
  CHECK_EQ(far.streams->stream_time_ns(1), int64_t{100});
  b.streams->synchronize(1);
  CHECK_EQ(a.streams->host_time_ns(), int64_t{200});
  CHECK_EQ(far.streams->host_time_ns(), int64_t{0});
  // A failure stays with its tenant.
  a.streams->submit(1, step(Engine::Compute, "bad", 1, [] { throw std::runtime_error("x"); }));
  CHECK_THROWS(a.streams->synchronize(1), StreamFailure);
  CHECK(runtime().state(0) == DeviceState::StreamError);
  CHECK(runtime().state(1) == DeviceState::Ok);
  a.memory->free(of_a);
  b.memory->free(of_b);
  far.memory->free(of_far);
}

ISOLATED_TEST(numerics_change_only_while_no_device_holds_a_tensor) {
  machine::Numerics ieee;
  ieee.mode = machine::Mode::IEEE;
  ieee.tie = machine::TieRule::ToEven;
  ieee.merged_is_nan = true;
  RuntimeConfig config = small_runtime(2);
  config.numerics = ieee;
  config.execute = false;
  runtime().configure(config);
  CHECK(runtime().numerics() == ieee);
  CHECK(!runtime().execute());
  runtime().set_numerics({});
  CHECK(!runtime().started());
  Device& device = runtime().device(1);
  CHECK(runtime().numerics() == machine::Numerics{});
  runtime().set_numerics(ieee);
  Block* program = device.memory->allocate(128, 128, 0, MemoryType::ProgramStatic);
  runtime().set_numerics({});  // program memory holds no numbers
  Block* block = device.memory->allocate(128, 128, 0);
  CHECK(block->host == nullptr);  // execute=off
  runtime().set_numerics({});     // no change, no error
  const auto error = expect<std::logic_error>([&] { runtime().set_numerics(ieee); });
  CHECK(contains(error.what(), "device 1 holds 1 tensor block"));
  CHECK(runtime().numerics() == machine::Numerics{});
  device.memory->free(block);
  runtime().set_numerics(ieee);
  CHECK(runtime().numerics() == ieee);
  device.memory->free(program);
}

ISOLATED_TEST(a_forked_child_gets_a_clear_error_and_the_parent_goes_on) {
  runtime().configure(small_runtime());
  // Before the start a fork is harmless.
  CHECK(in_child([] { return !runtime().in_forked_child() && runtime().device_count() == 1; }));
  Device& device = runtime().device(0);
  Gate gate;
  std::atomic<int> ran{0};
  device.streams->submit(1, step(Engine::Compute, "s", 1, [&, wait = gate.waiter()] {
                           wait();
                           ++ran;
                         }));
  CHECK(in_child([] {
    const auto throws = [](const auto& body) {
      try {
        body();
      } catch (const ForkedChild& error) {
        return contains(error.what(), "fork");
      }
      return false;
    };
    runtime().shutdown();
    return runtime().in_forked_child() && runtime().device_count() == 1 &&
           throws([] { runtime().device(0); }) && throws([] { runtime().set_numerics({}); }) &&
           throws([] { runtime().configure({}); }) && throws([] { runtime().state(0); }) &&
           throws([] { runtime().ensure_started(); }) && !runtime().started() &&
           runtime().stats_page() == nullptr;
  }));
  CHECK(!runtime().in_forked_child());
  gate.open();
  device.streams->synchronize_all();
  CHECK_EQ(ran.load(), 1);
}

ISOLATED_TEST(a_block_used_by_another_stream_waits_for_that_stream) {
  runtime().configure(small_runtime());
  Device& device = runtime().device(0);
  Gate gate;
  Block* block = device.memory->allocate(12 * kMiB, 12 * kMiB, 0);
  device.streams->submit(3, step(Engine::Compute, "reads it", 1, gate.waiter()));
  device.memory->record_use(block, 3);
  device.memory->free(block);
  CHECK_EQ(device.memory->stats().active_bytes[kAggregate].current,
           static_cast<int64_t>(12 * kMiB));
  // Exhaustion climbs to the synchronize hook, which waits for stream 3.
  gate.wait_entered();
  std::thread opener([&gate] { gate.open(); });
  Block* next = device.memory->allocate(14 * kMiB, 14 * kMiB, 0);
  opener.join();
  CHECK(device.streams->query(3));
  device.memory->free(next);
  // On a failed stream everything before the marker has ended too.
  block = device.memory->allocate(kMiB, kMiB, 0);
  device.streams->submit(4, step(Engine::Compute, "bad", 1, [] { throw std::runtime_error("x"); }));
  device.memory->record_use(block, 4);
  device.memory->free(block);
  next = device.memory->allocate(16 * kMiB, 16 * kMiB, 0);
  device.memory->free(next);
  CHECK_THROWS(device.streams->synchronize(4), StreamFailure);  // still to be seen by its owner
  // From inside a step the allocator cannot wait; it reports exhaustion instead of hanging.
  block = device.memory->allocate(16 * kMiB, 16 * kMiB, 0);
  std::atomic<bool> refused{false};
  device.streams->submit(5, step(Engine::H2D, "allocates", 1, [&] {
                           try {
                             device.memory->allocate(kMiB, kMiB, 5);
                           } catch (const OutOfMemory&) {
                             refused = true;
                           }
                         }));
  device.streams->synchronize(5);
  CHECK(refused);
  device.memory->free(block);
}

ISOLATED_TEST(the_pressure_and_frame_hooks_reach_the_memory) {
  RuntimeConfig config = small_runtime();
  std::atomic<int> pressed{0}, framed{0};
  config.pressure = [&] { return ++pressed, false; };
  config.frames = [&]() -> std::shared_ptr<void> { return ++framed, nullptr; };
  runtime().configure(config);
  DeviceMemory& memory = *runtime().device(0).memory;
  Block* all = memory.allocate(16 * kMiB, 16 * kMiB, 0);
  CHECK_THROWS(memory.allocate(kMiB, kMiB, 0), OutOfMemory);
  CHECK(pressed > 0);
  memory.free(all);
  memory.record_history(true, 10);
  memory.free(memory.allocate(128, 128, 0));
  CHECK(framed > 0);
  memory.record_history(false, 0);
}

ISOLATED_TEST(the_statistics_page_follows_memory_and_engines) {
  char directory[] = "/tmp/openspyre-test-XXXXXX";
  CHECK(mkdtemp(directory) != nullptr);
  const std::string file =
      std::string(directory) + "/openspyre-" + std::to_string(getpid()) + ".stats";
  RuntimeConfig config = small_runtime();
  config.stats_directory = directory;
  runtime().configure(config);
  CHECK(runtime().stats_page() == nullptr);
  Device& device = runtime().device(0);
  StatsPage* page = runtime().stats_page();
  CHECK(page != nullptr);
  struct stat info;
  CHECK_EQ(stat(file.c_str(), &info), 0);
  CHECK_EQ(page->device_count, uint64_t{1});
  StatsDevice& words = page->devices[0];
  CHECK_EQ(words.capacity, 16 * kMiB);
  Block* block = device.memory->allocate(1000, 1024, 0);
  Step s = step(Engine::H2D, "copy", 70);
  s.bytes = 1000;
  device.streams->submit(2, std::move(s));
  device.streams->submit(3, step(Engine::H2D, "bad", 1, [] { throw std::runtime_error("x"); }));
  CHECK_THROWS(device.streams->synchronize(3), StreamFailure);
  runtime().refresh_stats();
  CHECK_EQ(words.allocated, uint64_t{1024});
  CHECK_EQ(words.allocations, uint64_t{1});
  CHECK_EQ(words.streams, uint64_t{2});
  CHECK_EQ(words.engine_steps[0], uint64_t{1});
  CHECK_EQ(words.engine_bytes[0], uint64_t{1000});
  CHECK_EQ(words.engine_busy_ns[0], uint64_t{70});
  CHECK_EQ(words.virtual_now_ns, uint64_t{71});
  CHECK_EQ(words.errors, uint64_t{1});
  device.memory->free(block);
  // The child of a fork leaves the parent's page alone.
  CHECK(in_child([] { return runtime().in_forked_child(); }));
  CHECK_EQ(stat(file.c_str(), &info), 0);
  runtime().shutdown();
  CHECK(runtime().stats_page() == nullptr);
  CHECK(stat(file.c_str(), &info) != 0);
  rmdir(directory);
}

ISOLATED_TEST(shutdown_drains_stops_the_threads_and_late_work_still_runs) {
  RuntimeConfig config = small_runtime(2);
  config.threads = 2;
  runtime().configure(config);
  std::atomic<int> ran{0};
  DeviceStreams& streams = *runtime().device(0).streams;
  CHECK_EQ(machine::Pool::get().threads(), 2);
  const EventPtr never = streams.make_event();
  for (int i = 0; i < 100; ++i) streams.submit(i % 3, step(Engine::H2D, "s", 1, [&] { ++ran; }));
  streams.wait(7, never);  // can never end; must not hold up the exit
  streams.submit(7, step(Engine::H2D, "s", 1, [&] { ran += 1000; }));
  runtime().shutdown();
  runtime().shutdown();
  CHECK_EQ(ran.load(), 100);
  CHECK_EQ(machine::Pool::get().running(), 0);
  // Destructors that run later may still submit and free.
  const EventPtr event = streams.make_event();
  streams.wait(1, event);
  for (int i = 0; i < 20000; ++i) streams.submit(1, step(Engine::H2D, "late", 1, [&] { ++ran; }));
  streams.signal(2, event);  // releases a long queue with no worker left
  streams.synchronize(1);
  CHECK_EQ(ran.load(), 20100);
  Block* block = runtime().device(0).memory->allocate(128, 128, 0);
  runtime().device(0).memory->free(block);
}

ISOLATED_TEST(many_threads_start_the_runtime_once) {
  runtime().configure(small_runtime());
  std::vector<std::thread> threads;
  std::vector<Device*> seen(8);
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&seen, t] { seen[static_cast<size_t>(t)] = &runtime().device(0); });
  for (auto& thread : threads) thread.join();
  for (Device* device : seen) CHECK(device == seen[0]);
}
