// Streams: pools, FIFO order, concurrency, waits, markers, inline execution, engines, totals.

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "stream_helpers.h"

using namespace stream_test;

TEST(rt34_pools_give_ids_and_priorities_and_wrap_after_32) {
  TestDevice device;
  CHECK_EQ(DeviceStreams::priority_of(kDefaultStream), 0);
  for (int priority : {0, -1, 1}) {
    TestDevice fresh;
    const int first = fresh.stream_from_pool(priority);
    CHECK_EQ(first, priority == 0 ? 1 : 33);
    for (int i = 1; i < 32; ++i) CHECK_EQ(fresh.stream_from_pool(priority), first + i);
    CHECK_EQ(fresh.stream_from_pool(priority), first);
    CHECK_EQ(DeviceStreams::priority_of(first), priority == 0 ? 0 : -1);
    CHECK_EQ(DeviceStreams::priority_of(first + 31), priority == 0 ? 0 : -1);
  }
  CHECK_EQ(DeviceStreams::priority_of(kFirstHostCompute), -1);
  CHECK(device.used_streams().empty());
}

TEST(rt35_host_compute_streams_are_distinct_capped_and_checked) {
  for (int wanted : {1, 4, 8, 20}) {
    StreamConfig config = plain_config();
    config.host_compute_streams = wanted;
    TestDevice device(config);
    const int n = std::min(wanted, 8);
    for (int round = 0; round < 2; ++round)
      for (int i = 0; i < n; ++i) CHECK_EQ(device.host_compute_stream(), 65 + i);
    CHECK(device.valid(65 + n - 1));
    CHECK(!device.valid(65 + n));
    CHECK(!device.valid(-1));
  }
  StreamConfig config = plain_config();
  config.host_compute_streams = 0;
  CHECK_THROWS(TestDevice(config), std::invalid_argument);
}

TEST(bad_stream_ids_and_bad_steps_are_refused_by_name) {
  TestDevice device;
  const auto error =
      expect<std::out_of_range>([&] { device.submit(69, step(Engine::Compute, "a", 1)); });
  CHECK(contains(error.what(), "69"));
  CHECK_THROWS(device.submit(-1, step(Engine::Compute, "a", 1)), std::out_of_range);
  CHECK_THROWS(device.submit(0, step(Engine::Compute, "a", -1)), std::invalid_argument);
  CHECK_THROWS(device.submit(0, step(static_cast<Engine>(9), "a", 1)), std::invalid_argument);
  CHECK_THROWS(device.wait(0, nullptr), std::invalid_argument);
  CHECK_THROWS(device.advance_host(-1), std::invalid_argument);
  CHECK_EQ(device.device_time_ns(), 0);
  CHECK(device.timeline().empty());
}

TEST(rt37_after_synchronize_query_is_true_and_device_sync_covers_every_stream) {
  TestDevice device;
  Gate gate;
  std::atomic<int> ran{0};
  const std::vector<StreamId> ids = {0, 5, 40, 65};
  for (StreamId id : ids) {
    device.submit(id, step(Engine::Compute, "hold", 10, gate.waiter()));
    device.submit(id, step(Engine::Compute, "count", 10, [&] { ++ran; }));
  }
  CHECK(!device.query(5));
  CHECK(!device.idle(5));
  gate.open();
  device.synchronize(5);
  CHECK(device.query(5));
  device.synchronize_all();
  CHECK_EQ(ran.load(), 4);
  for (StreamId id : ids) CHECK(device.query(id));
  CHECK(device.used_streams() == ids);
}

TEST(rt38_thousand_steps_of_one_stream_end_in_submission_order) {
  TestDevice device;
  std::vector<int> order;  // FIFO alone serialises the writers: TSan would see it fail
  for (int i = 0; i < 1000; ++i) {
    Step s = step(static_cast<Engine>(i % kEngines), "s", 7, [&order, i] { order.push_back(i); });
    s.may_run_inline = i % 3 == 0;
    device.submit(2, std::move(s));
    if (i % 100 == 50) device.signal(2, device.make_event());
  }
  device.synchronize(2);
  CHECK_EQ(order.size(), size_t{1000});
  CHECK(std::is_sorted(order.begin(), order.end()));
  CHECK_EQ(device.stream_time_ns(2), int64_t{7000});
}

TEST(rt39_four_threads_submit_to_one_stream) {
  TestDevice device;
  std::vector<std::pair<int, int>> order;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        Step s = step(Engine::Compute, "s", 3, [&order, t, i] { order.emplace_back(t, i); });
        s.may_run_inline = (i + t) % 2 == 0;
        device.submit(1, std::move(s));
      }
    });
  for (auto& thread : threads) thread.join();
  device.synchronize(1);
  CHECK_EQ(order.size(), size_t{2000});
  int next[4] = {};
  for (auto [t, i] : order) CHECK_EQ(i, next[t]++);
  CHECK_EQ(device.stream_time_ns(1), int64_t{6000});
  CHECK_EQ(device.totals(Engine::Compute).steps, int64_t{2000});
}

TEST(b121_eight_threads_share_streams_events_queries_and_markers) {
  TestDevice device;
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const StreamId mine = device.stream_from_pool(0);
      for (int i = 0; i < 125; ++i) {
        Step s = step(static_cast<Engine>((i + t) % kEngines), "s", 3, [&ran] { ++ran; });
        s.may_run_inline = i % 2 == 0;
        device.submit(33, std::move(s));
        const uint64_t marker = device.record_marker(33);
        (void)device.query(33);
        if (i % 10 == 0) {
          const EventPtr event = device.make_event();
          device.signal(33, event);
          device.wait(mine, event);
          device.submit(mine, step(Engine::D2H, "tail", 1, [&ran] { ++ran; }));
          device.synchronize_event(event);
          CHECK(device.marker_passed(33, marker));
        }
        (void)device.timeline();
      }
      device.synchronize(mine);
    });
  for (auto& thread : threads) thread.join();
  device.synchronize_all();
  CHECK_EQ(ran.load(), 8 * 125 + 8 * 13);
}

TEST(an_idle_stream_runs_small_work_on_the_callers_thread) {
  TestDevice device;
  std::thread::id ran_on;
  const auto note = [&ran_on] { ran_on = std::this_thread::get_id(); };
  device.submit(0, inline_step(Engine::Compute, "small", 5, note));
  CHECK(ran_on == std::this_thread::get_id());
  CHECK(device.query(0));
  device.submit(0, step(Engine::Compute, "large", 5, note));
  device.synchronize(0);
  CHECK(ran_on != std::this_thread::get_id());
  // Behind queued work small work keeps its place.
  Gate gate;
  std::vector<int> order;
  device.submit(0, step(Engine::Compute, "hold", 5, gate.waiter()));
  device.submit(0, inline_step(Engine::Compute, "small", 5, [&] { order.push_back(1); }));
  // The engine is taken: small work of an idle stream must not run beside it.
  device.submit(1, inline_step(Engine::Compute, "small", 5, [&] { order.push_back(2); }));
  CHECK(order.empty());
  gate.open();
  device.synchronize_all();
  CHECK_EQ(order.size(), size_t{2});
}

TEST(an_engine_runs_one_step_at_a_time) {
  auto engines = make_engine_set();
  TestDevice first(plain_config(), 0, engines), second(plain_config(), 1, engines);
  std::atomic<int> inside{0}, worst{0};
  const auto work = [&] {
    const int now = ++inside;
    if (now > worst) worst = now;
    std::this_thread::yield();
    --inside;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      TestDevice& device = t % 2 ? first : second;
      for (int i = 0; i < 200; ++i) {
        Step s = step(Engine::H2D, "s", 2, work);
        s.may_run_inline = i % 2 == 0;
        device.submit(1 + t, std::move(s));
      }
    });
  for (auto& thread : threads) thread.join();
  first.synchronize_all();
  second.synchronize_all();
  CHECK_EQ(worst.load(), 1);
  // Both functions of the card share the engine on the virtual clock too.
  CHECK_EQ(std::max(first.device_time_ns(), second.device_time_ns()), int64_t{1600});
}

TEST(high_streams_are_served_first_but_the_quirk_of_priority_one_is_kept) {
  TestDevice device;
  const StreamId low = device.stream_from_pool(0);
  const StreamId high = device.stream_from_pool(-1);
  const StreamId quirk = device.stream_from_pool(1);  // id 34, served as NORMAL
  CHECK_EQ(quirk, 34);
  Gate gate;
  std::vector<int> order;
  device.submit(0, step(Engine::Compute, "hold", 1, gate.waiter()));
  device.submit(low, step(Engine::Compute, "low", 1, [&] { order.push_back(low); }));
  device.submit(quirk, step(Engine::Compute, "quirk", 1, [&] { order.push_back(quirk); }));
  device.submit(high, step(Engine::Compute, "high", 1, [&] { order.push_back(high); }));
  gate.open();
  device.synchronize_all();
  CHECK((order == std::vector<int>{high, low, quirk}));
}

TEST(markers_pass_when_all_earlier_work_ended) {
  TestDevice device;
  Gate gate;
  CHECK(device.marker_passed(3, device.record_marker(3)));
  device.submit(3, step(Engine::Compute, "hold", 1, gate.waiter()));
  const uint64_t first = device.record_marker(3);
  device.submit(3, step(Engine::Compute, "next", 1));
  const uint64_t second = device.record_marker(3);
  CHECK(!device.marker_passed(3, first));
  gate.wait_entered();
  // Cancelling the queue must not let a marker overtake the running step.
  std::thread resetter([&] { device.reset(3); });
  while (device.timeline().back().status != TimelineEntry::Status::Cancelled)
    std::this_thread::yield();
  CHECK(!device.marker_passed(3, first));
  CHECK(!device.marker_passed(3, second));
  gate.open();
  resetter.join();
  CHECK(device.marker_passed(3, first));
  CHECK(device.marker_passed(3, second));
}

TEST(work_is_run_and_destroyed_with_no_lock_held) {
  TestDevice device;
  std::atomic<int> destroyed{0};
  struct Probe {
    TestDevice* device;
    std::atomic<int>* destroyed;
    ~Probe() {
      (void)device->record_marker(1);  // what a freed tensor does
      (void)device->idle(1);
      ++*destroyed;
    }
  };
  for (bool on_caller : {false, true}) {
    auto probe = std::make_shared<Probe>(&device, &destroyed);
    Step s = step(Engine::Compute, "s", 1, [probe, &device] { (void)device.query(7); });
    s.may_run_inline = on_caller;
    probe.reset();
    device.submit(1, std::move(s));
    device.synchronize(1);
  }
  CHECK_EQ(destroyed.load(), 2);  // gone before the step counts as done
  // Cancelled work too.
  Gate gate;
  device.submit(1, step(Engine::Compute, "bad", 1, [wait = gate.waiter()] {
                  wait();
                  throw std::runtime_error("bad");
                }));
  auto probe = std::make_shared<Probe>(&device, &destroyed);
  device.submit(1, step(Engine::Compute, "never", 1, [probe] {}));
  probe.reset();
  gate.wait_entered();
  gate.open();
  CHECK_THROWS(device.synchronize(1), StreamFailure);
  CHECK_EQ(destroyed.load(), 3);
}

TEST(work_may_submit_work_but_may_not_wait) {
  TestDevice device;
  std::vector<std::string> order;
  device.submit(1, step(Engine::Compute, "outer", 10, [&] {
                  order.push_back("outer");
                  device.submit(1, inline_step(Engine::Compute, "same stream", 5,
                                               [&] { order.push_back("same stream"); }));
                  device.submit(2, inline_step(Engine::H2D, "other engine", 5,
                                               [&] { order.push_back("other engine"); }));
                  CHECK(DeviceStreams::inside_step());
                }));
  device.synchronize_all();  // covers what was submitted before it: the outer step ...
  device.synchronize_all();  // ... and now what the outer step submitted
  CHECK((order == std::vector<std::string>{"outer", "other engine", "same stream"}));
  CHECK(!DeviceStreams::inside_step());
  device.submit(1, inline_step(Engine::Compute, "waits", 1, [&] { device.synchronize(1); }));
  const auto error = expect<StreamFailure>([&] { device.synchronize(1); });
  CHECK(contains(error.what(), "must not wait"));
}

TEST(waits_answer_the_interrupt_check) {
  TestDevice device;
  Gate gate;
  device.submit(0, step(Engine::Compute, "hold", 1, gate.waiter()));
  const EventPtr event = device.make_event();
  device.signal(0, event);
  std::atomic<int> polls{0};
  const auto interrupt = [&polls] { return ++polls >= 2; };
  CHECK_THROWS(device.synchronize(0, interrupt), Interrupted);
  CHECK_EQ(polls.load(), 2);
  polls = 0;
  CHECK_THROWS(device.synchronize_event(event, interrupt), Interrupted);
  polls = 0;
  CHECK_THROWS(device.synchronize_all(interrupt), Interrupted);
  gate.open();
  device.synchronize(0, [] { return false; });  // nothing was lost
  CHECK(DeviceStreams::query(event));
}

TEST(totals_and_timeline_say_what_ran) {
  StreamConfig config = plain_config();
  config.timeline_capacity = 3;
  TestDevice device(config);
  for (int i = 0; i < 5; ++i) {
    Step s = step(Engine::D2H, "copy " + std::to_string(i), 10);
    s.bytes = 100;
    if (i == 4) s.correlation = 4242;
    const uint64_t id = device.submit(1, std::move(s));
    CHECK(id != 0);
    if (i == 4) CHECK_EQ(id, uint64_t{4242});
  }
  device.synchronize(1);
  const auto totals = device.totals(Engine::D2H);
  CHECK_EQ(totals.steps, int64_t{5});
  CHECK_EQ(totals.bytes, int64_t{500});
  CHECK_EQ(totals.busy_ns, int64_t{50});
  CHECK_EQ(device.totals(Engine::H2D).steps, int64_t{0});
  const auto rows = device.timeline();
  CHECK_EQ(rows.size(), size_t{3});
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(rows[i].name, "copy " + std::to_string(i + 2));
    CHECK_EQ(rows[i].start_ns, int64_t{10 * (i + 2)});
    CHECK_EQ(rows[i].end_ns, int64_t{10 * (i + 3)});
    CHECK(rows[i].status == TimelineEntry::Status::Done);
  }
  CHECK_EQ(rows[2].correlation, uint64_t{4242});
  device.clear_timeline();
  CHECK(device.timeline().empty());
  device.submit(1, step(Engine::D2H, "after", 1));
  CHECK_EQ(device.timeline().size(), size_t{1});
  CHECK_EQ(device.timeline()[0].name, std::string("after"));
}

TEST(a_device_that_goes_away_finishes_its_work_and_cancels_what_can_never_run) {
  std::atomic<int> ran{0};
  EventPtr never, behind;
  {
    TestDevice device;
    never = device.make_event();
    behind = device.make_event();
    for (int i = 0; i < 50; ++i) device.submit(1, step(Engine::H2D, "s", 1, [&] { ++ran; }));
    device.wait(2, never);
    device.submit(2, step(Engine::H2D, "never", 1, [&] { ran += 1000; }));
    device.signal(2, behind);
  }
  CHECK_EQ(ran.load(), 50);
  CHECK(!DeviceStreams::query(never));
  CHECK(DeviceStreams::query(behind));  // poisoned, so nobody waits for it for ever
  TestDevice other;
  const auto error = expect<StreamFailure>([&] { other.synchronize_event(behind); });
  CHECK(error.code == StreamError::Shutdown);
}
