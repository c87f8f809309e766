// The virtual clock: gap filling against a slow reference, costs, host time, determinism.

#include <algorithm>
#include <random>
#include <vector>

#include "card/virtual_clock.h"
#include "stream_helpers.h"

using namespace stream_test;

namespace {

// Says for every nanosecond whether it is busy.
struct SlowBusyList {
  std::vector<bool> busy = std::vector<bool>(4000, false);
  int64_t reserve(int64_t earliest, int64_t length) {
    for (int64_t start = earliest;; ++start) {
      bool free = true;
      for (int64_t t = start; t < start + length; ++t) free = free && !busy[static_cast<size_t>(t)];
      // No length: not strictly inside a busy stretch (its first moment is before it).
      if (length == 0 && start > 0)
        free = !(busy[static_cast<size_t>(start)] && busy[static_cast<size_t>(start - 1)]);
      if (!free) continue;
      for (int64_t t = start; t < start + length; ++t) busy[static_cast<size_t>(t)] = true;
      return start;
    }
  }
};

}  // namespace

TEST(the_busy_list_fills_the_gaps_that_a_slow_reference_fills) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    BusyList fast;
    SlowBusyList slow;
    int64_t horizon = 0;
    for (int i = 0; i < 60; ++i) {
      const int64_t earliest = horizon + static_cast<int64_t>(random() % 300);
      const int64_t length = static_cast<int64_t>(random() % 20);
      CHECK_EQ(fast.reserve(earliest, length), slow.reserve(earliest, length));
      if (random() % 10 == 0) {
        horizon += static_cast<int64_t>(random() % 60);
        fast.forget_before(horizon);
      }
    }
  }
}

TEST(the_busy_list_stays_bounded_and_forgets_the_past) {
  BusyList list;
  for (int64_t i = 0; i < 20000; ++i) CHECK_EQ(list.reserve(10 * i, 5), 10 * i);
  CHECK(list.size() <= BusyList::kMaxIntervals);
  CHECK_EQ(list.reserve(199'986, 5), int64_t{199'995});  // the youngest gaps are still there
  list.forget_before(150'000);
  CHECK(list.size() < 5001);
  list.forget_before(10'000'000);
  CHECK_EQ(list.size(), size_t{0});
  // A long backlog without gaps is one interval.
  for (int i = 0; i < 1000; ++i) list.reserve(0, 7);
  CHECK_EQ(list.size(), size_t{1});
}

TEST(transfer_costs_are_latency_plus_bytes_over_rate) {
  CostModel cost;
  cost.h2d_bytes_per_ns = 50;
  cost.d2h_bytes_per_ns = 25;
  cost.d2d_bytes_per_ns = 100;
  cost.transfer_latency_ns = 1000;
  CHECK_EQ(cost.transfer_ns(Engine::H2D, 0), int64_t{1000});
  CHECK_EQ(cost.transfer_ns(Engine::H2D, 5000), int64_t{1100});
  CHECK_EQ(cost.transfer_ns(Engine::D2H, 5001), int64_t{1201});
  CHECK_EQ(cost.d2d_ns(5000), int64_t{1050});
  CHECK_THROWS(cost.transfer_ns(Engine::Compute, 1), std::invalid_argument);
  CHECK_THROWS(cost.transfer_ns(Engine::H2D, -1), std::invalid_argument);
  StreamConfig config;
  config.cost.h2d_bytes_per_ns = 0;
  CHECK_THROWS(TestDevice(config), std::invalid_argument);
  CHECK_EQ(std::string(engine_name(Engine::Host)), std::string("HostCompute"));
}

TEST(host_time_moves_by_submissions_waits_and_named_host_work_only) {
  StreamConfig config;
  config.cost.host_submit_ns = 100;
  TestDevice device(config);
  device.submit(1, step(Engine::Compute, "a", 1000));
  CHECK_EQ(device.host_time_ns(), int64_t{100});
  device.submit(2, step(Engine::H2D, "b", 10));
  CHECK_EQ(device.host_time_ns(), int64_t{200});
  const EventPtr event = device.make_event();
  device.signal(2, event);
  (void)device.query(2);
  CHECK_EQ(device.host_time_ns(), int64_t{200});
  device.advance_host(300);
  device.submit(2, step(Engine::H2D, "c", 10));
  const auto rows = device.timeline();
  CHECK_EQ(rows[0].start_ns, int64_t{100});
  CHECK_EQ(rows[1].start_ns, int64_t{200});
  CHECK_EQ(rows[2].start_ns, int64_t{600});  // an idle engine waits for the host
  CHECK_EQ(rows[2].submit_ns, int64_t{600});
  device.synchronize(2);
  CHECK_EQ(device.host_time_ns(), int64_t{610});
  device.synchronize(1);
  CHECK_EQ(device.host_time_ns(), int64_t{1100});
  device.synchronize_event(event);
  CHECK_EQ(device.host_time_ns(), int64_t{1100});
  CHECK_EQ(device.device_time_ns(), int64_t{1100});
}

TEST(a_signal_on_an_idle_stream_fires_at_the_host_time) {
  TestDevice device;
  device.submit(1, step(Engine::Compute, "a", 10));
  device.synchronize(1);
  device.advance_host(90);
  const EventPtr event = device.make_event();
  device.signal(1, event);
  CHECK_EQ(*DeviceStreams::event_time_ns(event), int64_t{100});
}

namespace {

// Runs a random program of steps, signals and waits. Only lower streams are waited for, so there
// is no cycle; waits often come before their signals. The work takes random wall time.
std::vector<TimelineEntry> random_program(unsigned seed, unsigned timing_seed) {
  StreamConfig config;
  config.cost.host_submit_ns = 50;
  TestDevice device(config);
  std::mt19937 random(seed), timing(timing_seed);
  struct Pending {
    StreamId from;
    EventPtr event;
    bool signalled;
  };
  std::vector<Pending> events;
  constexpr int kStreams = 6;
  for (int i = 0; i < 300; ++i) {
    const StreamId id = static_cast<StreamId>(random() % kStreams);
    const unsigned kind = random() % 10;
    if (kind < 6) {
      const int spin = static_cast<int>(timing() % 40);
      Step s = step(static_cast<Engine>(random() % kEngines), std::to_string(i),
                    static_cast<int64_t>(random() % 500), [spin] {
                      for (int k = 0; k < spin; ++k) std::this_thread::yield();
                    });
      s.may_run_inline = timing() % 2 == 0;  // where a step runs must not change its times
      device.submit(id, std::move(s));
    } else if (kind < 8) {
      events.push_back({id, device.make_event(), random() % 2 == 0});
      if (events.back().signalled) device.signal(id, events.back().event);
    } else if (!events.empty()) {
      const Pending& p = events[random() % events.size()];
      if (p.from < id) device.wait(id, p.event);
    }
    if (random() % 8 == 0 && !events.empty()) {
      Pending& p = events[random() % events.size()];
      if (!p.signalled) {
        p.signalled = true;
        device.signal(p.from, p.event);
      }
    }
  }
  for (Pending& p : events)
    if (!p.signalled) device.signal(p.from, p.event);
  device.synchronize_all();
  return device.timeline();
}

}  // namespace

TEST(virtual_times_depend_on_the_submission_order_alone) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto first = random_program(seed, 1);
    for (unsigned timing = 2; timing < 5; ++timing) {
      const auto again = random_program(seed, timing);
      CHECK_EQ(first.size(), again.size());
      for (size_t i = 0; i < first.size(); ++i) {
        CHECK_EQ(first[i].name, again[i].name);
        CHECK_EQ(first[i].start_ns, again[i].start_ns);
        CHECK_EQ(first[i].end_ns, again[i].end_ns);
        CHECK_EQ(first[i].submit_ns, again[i].submit_ns);
      }
    }
    // What holds for any schedule: submission first, FIFO in a stream, one step per engine.
    std::vector<std::vector<std::pair<int64_t, int64_t>>> engines(kEngines);
    std::vector<int64_t> stream_end(8, 0);
    for (const TimelineEntry& e : first) {
      CHECK(e.status == TimelineEntry::Status::Done);
      CHECK(e.start_ns >= e.submit_ns);
      CHECK(e.start_ns >= stream_end[static_cast<size_t>(e.stream)]);
      stream_end[static_cast<size_t>(e.stream)] = e.end_ns;
      if (e.end_ns > e.start_ns)
        engines[static_cast<size_t>(e.engine)].emplace_back(e.start_ns, e.end_ns);
    }
    for (auto& engine : engines) {
      std::sort(engine.begin(), engine.end());
      for (size_t i = 1; i < engine.size(); ++i) CHECK(engine[i].first >= engine[i - 1].second);
    }
  }
}
