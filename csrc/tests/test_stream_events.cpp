// Events between streams: order, virtual times, poison, deadlocks, overlap of two streams.

#include <algorithm>
#include <vector>

#include "stream_helpers.h"

using namespace stream_test;

TEST(rt40_events_order_streams_and_elapsed_time_adds_up) {
  TestDevice device;
  const EventPtr a = device.make_event(), b = device.make_event(), c = device.make_event();
  CHECK(!DeviceStreams::query(a));
  CHECK(!DeviceStreams::event_time_ns(a).has_value());
  std::vector<int> order;
  Gate gate;
  device.signal(1, a);
  device.submit(1, step(Engine::H2D, "one", 100, [&, wait = gate.waiter()] {
                  wait();
                  order.push_back(1);
                }));
  device.signal(1, b);
  device.wait(2, b);
  device.submit(2, step(Engine::Compute, "two", 50, [&] { order.push_back(2); }));
  device.signal(2, c);
  CHECK(DeviceStreams::query(a));
  CHECK(!DeviceStreams::query(c));
  gate.open();
  device.synchronize_event(c);
  CHECK((order == std::vector<int>{1, 2}));
  const int64_t ta = *DeviceStreams::event_time_ns(a), tb = *DeviceStreams::event_time_ns(b),
                tc = *DeviceStreams::event_time_ns(c);
  CHECK_EQ(ta, int64_t{0});
  CHECK_EQ(tb - ta, int64_t{100});
  CHECK_EQ(tc - tb, int64_t{50});
  CHECK_EQ(device.host_time_ns(), tc);  // the host waited for it
}

TEST(an_event_is_signalled_once) {
  TestDevice device;
  const EventPtr event = device.make_event();
  device.signal(0, event);
  CHECK_THROWS(device.signal(0, event), std::logic_error);
  CHECK_THROWS(device.signal(1, event), std::logic_error);
  device.synchronize_event(event);
  device.wait(3, event);  // long done: no effect
  CHECK(device.query(3));
}

TEST(a_wait_may_precede_the_signal_and_its_times_are_resolved_then) {
  TestDevice device;
  const EventPtr event = device.make_event(), tail = device.make_event();
  std::vector<int> order;
  device.wait(2, event);
  device.submit(2, step(Engine::Compute, "after", 10, [&] { order.push_back(2); }));
  device.signal(2, tail);
  CHECK_EQ(device.timeline()[0].start_ns, int64_t{-1});
  CHECK(!DeviceStreams::event_time_ns(tail).has_value());
  // The blocked step does not block its engine.
  device.submit(3, step(Engine::Compute, "free", 30, [&] { order.push_back(3); }));
  device.synchronize(3);
  device.submit(1, step(Engine::H2D, "before", 100, [&] { order.push_back(1); }));
  device.signal(1, event);
  CHECK_EQ(*DeviceStreams::event_time_ns(tail), int64_t{140});  // 30 (host) + 100 + 10
  device.synchronize_all();
  CHECK((order == std::vector<int>{3, 1, 2}));
  const auto rows = device.timeline();
  CHECK_EQ(rows[0].start_ns, int64_t{130});
  CHECK_EQ(rows[1].start_ns, int64_t{0});
}

TEST(a_step_held_back_leaves_its_engine_to_others) {
  TestDevice device;
  const EventPtr slow = device.make_event();
  device.submit(1, step(Engine::H2D, "slow", 1000));
  device.signal(1, slow);
  device.wait(2, slow);
  device.submit(2, step(Engine::Compute, "held", 100));      // 1000..1100
  device.submit(3, step(Engine::Compute, "fits", 900));      // 0..900, in the gap before
  device.submit(4, step(Engine::Compute, "too long", 200));  // 1100..1300
  device.submit(5, step(Engine::Compute, "small", 100));     // 900..1000
  device.synchronize_all();
  const auto rows = device.timeline();
  CHECK_EQ(rows[1].start_ns, int64_t{1000});
  CHECK_EQ(rows[2].start_ns, int64_t{0});
  CHECK_EQ(rows[3].start_ns, int64_t{1100});
  CHECK_EQ(rows[4].start_ns, int64_t{900});
}

TEST(events_cross_the_devices) {
  TestDevice first(plain_config(), 0), second(plain_config(), 1);
  const EventPtr event = first.make_event();
  std::vector<int> order;
  second.wait(0, event);
  second.submit(0, step(Engine::Compute, "b", 5, [&] { order.push_back(1); }));
  first.submit(0, step(Engine::Compute, "a", 50, [&] { order.push_back(0); }));
  first.signal(0, event);
  second.synchronize(0);
  CHECK((order == std::vector<int>{0, 1}));
  CHECK_EQ(second.stream_time_ns(0), int64_t{55});
}

TEST(rt41_circular_waits_raise_a_deadlock_that_names_the_streams) {
  TestDevice device;
  const EventPtr a = device.make_event(), b = device.make_event();
  device.wait(11, b);
  device.signal(11, a);
  device.wait(12, a);
  device.signal(12, b);
  for (int i = 0; i < 2; ++i) {
    const auto error = expect<Deadlock>([&] { device.synchronize(11); });
    CHECK(contains(error.what(), "circular"));
    CHECK(contains(error.what(), "stream 11 of device 0 waits, at its operation 1"));
    CHECK(contains(error.what(), "stream 12 of device 0 signals at its operation 2"));
  }
  CHECK_THROWS(device.synchronize_event(a), Deadlock);
  CHECK_THROWS(device.synchronize_all(), Deadlock);
  // Streams outside go on, and a reset resolves it.
  device.submit(1, step(Engine::Compute, "s", 1, [] {}));
  device.synchronize(1);
  device.reset(11);
  const auto error = expect<StreamFailure>([&] { device.synchronize(12); });
  CHECK(error.code == StreamError::Shutdown);
  device.reset(12);
  std::atomic<int> ran{0};
  for (StreamId id : {11, 12}) device.submit(id, step(Engine::Compute, "s", 1, [&] { ++ran; }));
  device.synchronize_all();
  CHECK_EQ(ran.load(), 2);
}

TEST(rt41_a_stream_that_waits_for_itself_is_a_deadlock) {
  TestDevice device;
  const EventPtr event = device.make_event();
  device.wait(4, event);
  device.signal(4, event);
  CHECK_THROWS(device.synchronize(4), Deadlock);
}

TEST(b122_wait_without_a_signal_is_named_after_a_grace_period) {
  StreamConfig config = plain_config();
  config.deadlock_grace_ms = 20;
  TestDevice device(config);
  const EventPtr never = device.make_event();
  device.wait(9, never);
  device.submit(9, step(Engine::Compute, "s", 1, [] {}));
  const auto error = expect<Deadlock>([&] { device.synchronize(9); });
  CHECK(contains(error.what(), "stream 9 of device 0"));
  CHECK(contains(error.what(), "no queued operation signals"));
  CHECK_THROWS(device.synchronize_event(never), Deadlock);
  device.reset(9);
  device.synchronize(9);
}

TEST(b122_another_thread_may_bring_the_signal_while_the_host_waits) {
  StreamConfig config = plain_config();
  config.deadlock_grace_ms = 60000;
  TestDevice device(config);
  const EventPtr event = device.make_event();
  std::vector<int> order;
  device.wait(2, event);
  device.submit(2, step(Engine::Compute, "second", 1, [&] { order.push_back(2); }));
  std::atomic<bool> polled{false};
  std::thread other([&] {
    while (!polled) std::this_thread::yield();
    device.submit(1, step(Engine::Compute, "first", 1, [&] { order.push_back(1); }));
    device.signal(1, event);
  });
  device.synchronize(2, [&] {
    polled = true;
    return false;
  });
  other.join();
  CHECK((order == std::vector<int>{1, 2}));
}

TEST(b122_poison_reaches_dependants_only_and_keeps_the_origin) {
  TestDevice device;
  Gate gate;
  const EventPtr event = device.make_event(), second = device.make_event();
  device.submit(1, step(Engine::Compute, "aten::bad", 1, [wait = gate.waiter()] {
                  wait();
                  throw std::runtime_error("page fault");
                }));
  device.signal(1, event);
  device.wait(2, event);
  device.submit(2, step(Engine::Compute, "never", 1, [] { CHECK(false); }));
  device.signal(2, second);
  device.wait(3, second);
  std::atomic<int> ran{0};
  device.submit(4, step(Engine::H2D, "free", 1, [&] { ++ran; }));
  gate.open();
  for (StreamId id : {1, 2, 3}) {
    const auto error = expect<StreamFailure>([&] { device.synchronize(id); });
    CHECK_EQ(error.origin, std::string("aten::bad"));
    CHECK_EQ(error.stream, 1);
    CHECK_EQ(error.device, 0);
    CHECK(contains(error.what(), "page fault"));
    CHECK_EQ(contains(error.what(), "waited for an event that was poisoned"), id != 1);
  }
  CHECK_THROWS(device.synchronize_event(second), StreamFailure);
  device.synchronize(4);
  CHECK_EQ(ran.load(), 1);
  // A signal on a failed stream poisons at once.
  const EventPtr late = device.make_event();
  device.signal(3, late);
  CHECK(DeviceStreams::query(late));
  CHECK(DeviceStreams::event_time_ns(late).has_value());
  CHECK_EQ(expect<StreamFailure>([&] { device.synchronize_event(late); }).origin,
           std::string("aten::bad"));
  // A dependant works again after its own reset; the poisoned event stays poisoned.
  device.reset(3);
  device.submit(3, step(Engine::H2D, "again", 1, [&] { ++ran; }));
  device.synchronize(3);
  CHECK_EQ(ran.load(), 2);
  device.wait(3, late);
  CHECK_THROWS(device.synchronize(3), StreamFailure);
}

namespace {

// N launches of a plan HostCompute (h), H2D (d), Compute (c), with `slots` correction slots:
// 0 = everything on one stream. Returns the modelled end; `out` gets what the device computed.
int64_t run_plan(int slots, std::vector<int>* out) {
  constexpr int64_t h = 500'000, d = 200'000, c = 1'000'000;
  constexpr int n = 4;
  StreamConfig config = plain_config();
  TestDevice device(config);
  const StreamId dev = 0, prep = slots ? device.host_compute_stream() : dev;
  int blob[n] = {}, slot[2] = {};
  std::vector<EventPtr> computed;
  for (int i = 0; i < n; ++i) {
    device.submit(prep, step(Engine::Host, "HostCompute", h, [&, i] { blob[i] = 10 + i; }));
    // The slot is free again when the Compute that read it has ended.
    if (slots && i >= slots) device.wait(prep, computed[i - slots]);
    int& target = slot[slots ? i % slots : 0];
    device.submit(prep, step(Engine::H2D, "H2D", d, [&, i] { target = blob[i]; }));
    if (slots) {
      const EventPtr ready = device.make_event();
      device.signal(prep, ready);
      device.wait(dev, ready);
    }
    device.submit(dev, step(Engine::Compute, "Compute", c, [&, out] { out->push_back(target); }));
    computed.push_back(device.make_event());
    device.signal(dev, computed.back());
  }
  device.synchronize_all();
  return device.device_time_ns();
}

}  // namespace

TEST(rt42_overlap_of_two_streams_with_correction_slots) {
  std::vector<int> serial, one, two;
  CHECK_EQ(run_plan(0, &serial), int64_t{6'800'000});
  CHECK(run_plan(1, &one) <= 5'300'000);
  CHECK(run_plan(2, &two) <= 4'700'000);
  CHECK((serial == std::vector<int>{10, 11, 12, 13}));
  CHECK(one == serial);
  CHECK(two == serial);
}
