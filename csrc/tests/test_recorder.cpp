// The recorder: silence when nobody listens, times, threads, failures, listeners that overlap.

#include <set>
#include <thread>
#include <vector>

#include "card/recorder.h"
#include "stream_helpers.h"

using namespace stream_test;

namespace {

std::vector<std::string> names(const Recorder::Recording& recording) {
  std::vector<std::string> out;
  for (const RecordedStep& step : recording.steps) out.push_back(step.name);
  return out;
}

}  // namespace

TEST(b167_nothing_is_recorded_while_nobody_listens) {
  TestDevice device;
  CHECK(!Recorder::get().on());
  device.submit(0, step(Engine::Compute, "before", 10));
  const uint64_t begin = Recorder::get().start();
  CHECK(Recorder::get().on());
  const Recorder::Recording recording = Recorder::get().stop(begin);
  CHECK(recording.steps.empty());
  CHECK(!Recorder::get().on());
}

TEST(recorded_steps_have_both_times_and_their_operation) {
  TestDevice device;
  const uint64_t begin = Recorder::get().start();
  Recorder::push_operation(7);
  Step one = step(Engine::H2D, "one", 100, [] {});
  one.bytes = 64;
  one.kind = StepKind::Copy;
  one.sources = source_number("aten.add");
  const uint64_t number = device.submit(3, std::move(one));
  Recorder::pop_operation();
  Recorder::pop_operation();  // one too many does no harm
  device.submit(3, inline_step(Engine::Compute, "two", 50, [] {}));
  device.synchronize(3);
  const Recorder::Recording recording = Recorder::get().stop(begin);
  CHECK_EQ(recording.steps.size(), 2u);
  const RecordedStep& first = recording.steps[0];
  CHECK_EQ(first.correlation, number);
  CHECK_EQ(first.operation, 7u);
  CHECK_EQ(source_text(first.sources), "aten.add");
  CHECK_EQ(first.bytes, 64);
  CHECK_EQ(first.stream, 3);
  CHECK(first.engine == Engine::H2D);
  CHECK(first.status == TimelineEntry::Status::Done);
  CHECK_EQ(first.end_virtual - first.begin_virtual, 100);
  CHECK(first.submit_begin_wall > 0);
  CHECK(first.submit_begin_wall <= first.begin_wall);
  CHECK(first.begin_wall <= first.end_wall);
  CHECK(first.submit_end_wall >= first.submit_begin_wall);
  const RecordedStep& second = recording.steps[1];
  CHECK_EQ(second.operation, 0u);
  CHECK_EQ(second.begin_virtual, first.end_virtual);
}

TEST(listeners_overlap_and_each_gets_its_own) {
  TestDevice device;
  Recorder& recorder = Recorder::get();
  const uint64_t outer = recorder.start();
  device.submit(0, step(Engine::Compute, "one", 1));
  const uint64_t inner = recorder.start();
  device.submit(0, step(Engine::Compute, "two", 1));
  CHECK_EQ(recorder.peek(outer).steps.size(), 2u);
  const Recorder::Recording in = recorder.stop(inner);
  device.submit(0, step(Engine::Compute, "three", 1));
  device.synchronize(0);
  CHECK(names(in) == std::vector<std::string>({"two"}));
  CHECK(names(recorder.stop(outer)) == std::vector<std::string>({"one", "two", "three"}));
}

TEST(failed_and_cancelled_steps_say_so_and_late_ends_do_no_harm) {
  TestDevice device;
  Gate gate;
  const uint64_t begin = Recorder::get().start();
  device.submit(1, step(Engine::Compute, "held", 1, gate.waiter()));
  device.submit(1, step(Engine::Compute, "broken", 1, [] { throw std::runtime_error("broken"); }));
  device.submit(1, step(Engine::Compute, "behind", 1, [] {}));
  gate.open();
  CHECK_THROWS(device.synchronize(1), StreamFailure);
  device.reset(1);
  const Recorder::Recording recording = Recorder::get().stop(begin);
  CHECK(recording.steps[1].status == TimelineEntry::Status::Failed);
  CHECK(recording.steps[1].end_wall > 0);
  CHECK(recording.steps[2].status == TimelineEntry::Status::Cancelled);
  CHECK_EQ(recording.steps[2].end_wall, 0);

  // A step that ends after its listener has gone.
  Gate later;
  const uint64_t again = Recorder::get().start();
  device.submit(2, step(Engine::Compute, "late", 1, later.waiter()));
  CHECK(Recorder::get().stop(again).steps[0].status == TimelineEntry::Status::Pending);
  later.open();
  device.synchronize(2);
}

TEST(many_threads_are_recorded_without_loss) {
  TestDevice device;
  constexpr int kThreads = 4, kSteps = 3000;  // more than one chunk
  const uint64_t begin = Recorder::get().start();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSteps; ++i)
        device.submit(1 + t, inline_step(Engine::Compute, "step", 1, [] {}));
    });
  for (std::thread& thread : threads) thread.join();
  device.synchronize_all();
  const Recorder::Recording recording = Recorder::get().stop(begin);
  CHECK_EQ(recording.dropped, 0u);
  std::set<uint64_t> numbers;
  for (const RecordedStep& step : recording.steps) {
    numbers.insert(step.correlation);
    CHECK(step.status == TimelineEntry::Status::Done);
    CHECK(step.end_wall >= step.begin_wall);
  }
  CHECK_EQ(numbers.size(), static_cast<size_t>(kThreads * kSteps));
}
