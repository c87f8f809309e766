// Sticky errors, reset, device state, seeded faults.

#include <vector>

#include "stream_helpers.h"

using namespace stream_test;

TEST(rt47_codes_and_states_have_their_numbers) {
  CHECK_EQ(static_cast<int>(StreamError::Success), 0);
  CHECK_EQ(static_cast<int>(StreamError::Shutdown), 1);
  CHECK_EQ(static_cast<int>(DeviceState::Ok), 0);
  CHECK_EQ(static_cast<int>(DeviceState::NotInitialized), 1);
  CHECK_EQ(static_cast<int>(DeviceState::StreamError), 2);
  TestDevice device;
  CHECK(device.state() == DeviceState::Ok);
  CHECK(device.stream_error(0) == StreamError::Success);
  CHECK_EQ(device.stream_error_text(0), std::string());
}

TEST(rt48_a_fault_sticks_to_its_stream_and_other_streams_go_on) {
  for (bool on_caller : {false, true}) {
    TestDevice device;
    std::atomic<int> ran{0};
    Step bad = step(Engine::Compute, "aten::mm", 10, [] { throw std::runtime_error("soft fail"); });
    bad.may_run_inline = on_caller;
    device.submit(1, std::move(bad));  // does not throw: the error is asynchronous
    const auto error = expect<StreamFailure>([&] { device.synchronize(1); });
    CHECK(error.code == StreamError::HardwareFault);
    CHECK_EQ(error.origin, std::string("aten::mm"));
    CHECK(contains(error.what(), "'aten::mm' failed on device 0, stream 1"));
    CHECK(contains(error.what(), "soft fail"));
    // Fails fast, before anything happens.
    const int64_t host = device.host_time_ns();
    const auto refused = expect<StreamFailure>(
        [&] { device.submit(1, step(Engine::Compute, "aten::add", 1, [&] { ++ran; })); });
    CHECK(contains(refused.what(), "0x8758"));
    CHECK(contains(refused.what(), "'aten::add'"));
    CHECK_EQ(refused.origin, std::string("aten::mm"));
    CHECK_THROWS(device.wait(1, device.make_event()), StreamFailure);
    CHECK_THROWS(device.query(1), StreamFailure);
    CHECK_THROWS(device.synchronize_all(), StreamFailure);
    CHECK(device.idle(1));
    CHECK_EQ(device.host_time_ns(), host);
    CHECK(device.stream_error(1) == StreamError::HardwareFault);
    CHECK_EQ(device.stream_error_text(1), std::string(error.what()));
    CHECK(device.state() == DeviceState::StreamError);
    device.submit(2, step(Engine::Compute, "other", 1, [&] { ++ran; }));
    device.synchronize(2);
    CHECK_EQ(ran.load(), 1);
    device.reset(1);
    CHECK(device.state() == DeviceState::Ok);
    device.submit(1, step(Engine::Compute, "again", 1, [&] { ++ran; }));
    device.synchronize(1);
    CHECK_EQ(ran.load(), 2);
    CHECK(device.timeline()[0].status == TimelineEntry::Status::Failed);
  }
}

TEST(work_may_name_its_own_code) {
  TestDevice device;
  device.submit(0, step(Engine::H2D, "dma", 1, [] {
                  throw StreamFailure("no answer", StreamError::Timeout, "dma", 0, 0);
                }));
  CHECK(expect<StreamFailure>([&] { device.synchronize(0); }).code == StreamError::Timeout);
  device.submit(1, step(Engine::H2D, "dma", 1, [] { throw std::bad_alloc(); }));
  CHECK(expect<StreamFailure>([&] { device.synchronize(1); }).code == StreamError::MemoryFault);
  device.submit(2, step(Engine::H2D, "dma", 1, [] { throw 7; }));
  CHECK(expect<StreamFailure>([&] { device.synchronize(2); }).code == StreamError::HardwareFault);
}

TEST(a_reset_drops_queued_work_and_waits_for_running_work) {
  TestDevice device;
  Gate gate;
  std::atomic<int> ran{0};
  device.submit(1, step(Engine::Compute, "running", 1, [&, wait = gate.waiter()] {
                  wait();
                  ++ran;
                }));
  gate.wait_entered();
  for (int i = 0; i < 5; ++i) device.submit(1, step(Engine::Compute, "q", 1, [&] { ran += 100; }));
  const EventPtr event = device.make_event();
  device.signal(1, event);
  std::thread opener([&] {
    while (!DeviceStreams::query(event)) std::this_thread::yield();
    gate.open();
  });
  device.reset(1);
  opener.join();
  CHECK_EQ(ran.load(), 1);
  CHECK_EQ(expect<StreamFailure>([&] { device.synchronize_event(event); }).origin,
           std::string("reset"));
  device.submit(1, step(Engine::Compute, "again", 1, [&] { ++ran; }));
  device.synchronize(1);
  CHECK_EQ(ran.load(), 2);
}

namespace {

// A small program on three streams; returns the sequence of steps that ran, per stream.
constexpr int kProgramSteps = 9;
struct Outcome {
  std::vector<int> ran;
  std::vector<TimelineEntry> rows;
  std::string error;
};

Outcome run_program(std::optional<FaultPlan> plan) {
  TestDevice device;
  device.inject_faults(plan);
  Outcome out;
  std::vector<std::vector<int>> ran(3);
  std::vector<EventPtr> events;
  int n = 0;
  const auto go = [&](StreamId id, Engine engine) {
    const int ordinal = n++;
    try {
      device.submit(id, step(engine, "step " + std::to_string(ordinal), 10 + ordinal,
                             [&ran, id, ordinal] { ran[id - 1].push_back(ordinal); }));
    } catch (const StreamFailure&) {
      // refused: the stream failed already
    }
  };
  for (int round = 0; round < 3; ++round) {
    go(1, Engine::H2D);
    const EventPtr event = device.make_event();
    device.signal(1, event);
    try {
      device.wait(2, event);
    } catch (const StreamFailure&) {
    }
    go(2, Engine::Compute);
    go(3, Engine::D2H);
  }
  try {
    device.synchronize_all();
  } catch (const StreamFailure& error) {
    out.error = error.origin;
  }
  for (auto& stream : ran) out.ran.insert(out.ran.end(), stream.begin(), stream.end());
  out.rows = device.timeline();
  return out;
}

}  // namespace

TEST(a_fault_at_every_step_stops_its_stream_and_its_dependants_only) {
  const Outcome whole = run_program(std::nullopt);
  CHECK_EQ(whole.ran.size(), size_t{kProgramSteps});
  CHECK_EQ(whole.error, std::string());
  for (int nth = 0; nth < kProgramSteps; ++nth) {
    FaultPlan plan;
    plan.nth = nth;
    const Outcome out = run_program(plan);
    CHECK_EQ(out.error, "step " + std::to_string(nth));
    // Ordinals run 0..8 over streams 1, 2, 3 in turn. Stream 3 depends on none, stream 2 on 1.
    std::vector<int> expected;
    const int hit = nth % 3, round = nth / 3;
    for (int stream = 0; stream < 3; ++stream)
      for (int r = 0; r < 3; ++r) {
        const bool dead = (stream == hit || (hit == 0 && stream == 1)) && r >= round;
        if (!dead) expected.push_back(3 * r + stream);
      }
    CHECK(out.ran == expected);
  }
}

TEST(seeded_faults_fall_on_the_same_steps_every_time) {
  const auto failed_at = [](uint64_t seed) {
    TestDevice device;
    FaultPlan plan;
    plan.seed = seed;
    plan.rate = 0.2;
    plan.code = StreamError::CoreUnavailable;
    device.inject_faults(plan);
    std::vector<int> failed;
    for (int i = 0; i < 200; ++i) {
      device.submit(1, step(Engine::Compute, "s", 1, [] {}));
      try {
        device.synchronize(1);
      } catch (const StreamFailure& error) {
        CHECK(error.code == StreamError::CoreUnavailable);
        failed.push_back(i);
        device.reset(1);
      }
    }
    return failed;
  };
  const auto first = failed_at(7);
  CHECK(first == failed_at(7));
  CHECK(first != failed_at(8));
  CHECK(first.size() > 15 && first.size() < 75);  // 40 expected
}

TEST(fault_filters_pick_engine_and_name_and_bad_plans_are_refused) {
  TestDevice device;
  FaultPlan plan;
  plan.nth = 1;
  plan.engine = Engine::H2D;
  plan.name_contains = "copy";
  device.inject_faults(plan);
  device.submit(1, step(Engine::H2D, "copy", 1));
  device.submit(2, step(Engine::D2H, "copy", 1));
  device.submit(3, step(Engine::H2D, "fill", 1));
  device.submit(4, step(Engine::H2D, "aten::copy_", 1));
  device.submit(5, step(Engine::H2D, "copy", 1));
  for (StreamId id = 1; id <= 5; ++id)
    CHECK(device.stream_error(id) == (id == 4 ? StreamError::HardwareFault : StreamError::Success));
  device.inject_faults(std::nullopt);
  device.reset(4);
  device.submit(4, step(Engine::H2D, "copy", 1));
  device.synchronize_all();
  plan.rate = 1.5;
  CHECK_THROWS(device.inject_faults(plan), std::invalid_argument);
  plan.rate = 0;
  plan.code = StreamError::Success;
  CHECK_THROWS(device.inject_faults(plan), std::invalid_argument);
}
