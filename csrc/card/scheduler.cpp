// Real execution: the heads of the queues, the end of steps, failure and cancellation.

#include "card/scheduler.h"

#include <time.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace openspyre::card {

namespace {

thread_local int t_steps_running = 0;  // nesting: work may submit, which may run inline

const char* code_name(StreamError code) {
  switch (code) {
    case StreamError::Success:
      return "Success";
    case StreamError::Shutdown:
      return "Shutdown";
    case StreamError::HardwareFault:
      return "HardwareFault";
    case StreamError::Timeout:
      return "Timeout";
    case StreamError::MemoryFault:
      return "MemoryFault";
    case StreamError::CoreUnavailable:
      return "CoreUnavailable";
  }
  return "unknown code";
}

FailurePtr describe(const Stream& stream, const std::string& operation, StreamError code,
                    const std::string& cause) {
  const int device = stream.owner->device;
  const std::string name = operation.empty() ? "unnamed step" : operation;
  return std::make_shared<const Failure>(Failure{
      "operation '" + name + "' failed on device " + std::to_string(device) + ", stream " +
          std::to_string(stream.id) + ": " + code_name(code) + " (" +
          std::to_string(static_cast<int>(code)) + "): " + cause +
          ". Later work of this stream was cancelled and it refuses new work. Way out: "
          "torch.spyre.reset_stream(torch.spyre.current_stream()), or the stream that it was, "
          "or use another stream",
      code, name, device, stream.id});
}

// What a stream gets that waited for a poisoned event: everything of the origin, and the way it
// came here.
FailurePtr inherit(const Stream& stream, const Failure& origin) {
  Failure failure = origin;
  failure.text = "stream " + std::to_string(stream.id) + " of device " +
                 std::to_string(stream.owner->device) +
                 " waited for an event that was poisoned: " + origin.text;
  return std::make_shared<const Failure>(std::move(failure));
}

}  // namespace

bool inside_step() { return t_steps_running > 0; }

FailurePtr execute(const Stream& stream, Step& step, StreamError fault, StepSlot slot, Ran& ran) {
  struct Nest {
    Nest() { ++t_steps_running; }
    ~Nest() { --t_steps_running; }
  } nest;
  const bool recorded = slot.recorded != Recorder::kNone;
  if (recorded) ran.begin_wall = Recorder::wall_ns();
  FailurePtr failure;
  if (fault != StreamError::Success) {
    failure = describe(stream, step.name, fault, "injected fault");
  } else if (step.work) {
    try {
      step.work();
    } catch (const StreamFailure& error) {
      failure = describe(stream, step.name, error.code, error.what());
    } catch (const std::bad_alloc&) {
      failure = describe(stream, step.name, StreamError::MemoryFault, "the host has no memory");
    } catch (const std::exception& error) {
      failure = describe(stream, step.name, StreamError::HardwareFault, error.what());
    } catch (...) {
      failure = describe(stream, step.name, StreamError::HardwareFault, "unknown exception");
    }
  }
  step.work = nullptr;  // what the closure owns goes before the step counts as done
  if (recorded) {
    ran.end_wall = Recorder::wall_ns();
    ran.thread = Recorder::thread_id();
  }
  return failure;
}

Scheduler::Scheduler(int device, std::shared_ptr<EngineSet> engine_set, StreamConfig stream_config)
    : device(device),
      engines(std::move(engine_set)),
      config([&] {
        StreamConfig c = std::move(stream_config);
        if (c.host_compute_streams < 1)
          throw std::invalid_argument("host_compute_streams is " +
                                      std::to_string(c.host_compute_streams) +
                                      "; it must be 1 to 8");
        c.host_compute_streams = std::min(c.host_compute_streams, 8);  // runtime.md 2.1: capped
        const CostModel& m = c.cost;
        if (!(m.h2d_bytes_per_ns > 0 && m.d2h_bytes_per_ns > 0 && m.d2d_bytes_per_ns > 0))
          throw std::invalid_argument("transfer rates of the cost model must be positive");
        if (m.transfer_latency_ns < 0 || m.host_submit_ns < 0)
          throw std::invalid_argument("latencies of the cost model must not be negative");
        return c;
      }()),
      stream_count(kFirstHostCompute + config.host_compute_streams),
      streams(new Stream[static_cast<size_t>(stream_count)]),
      timeline(config.timeline_capacity, device) {
  if (!engines) throw std::invalid_argument("a device needs the engine set of its card");
  for (int i = 0; i < stream_count; ++i) {
    streams[i].owner = this;
    streams[i].id = i;
  }
  std::lock_guard<std::mutex> lock(shared().mutex);
  engines->devices.push_back(this);
}

Scheduler::~Scheduler() {
  drain();
  std::lock_guard<std::mutex> lock(shared().mutex);
  auto& all = engines->devices;
  all.erase(std::remove(all.begin(), all.end(), this), all.end());
  for (int i = 0; i < stream_count; ++i) {
    shared().hazards.forget_stream(&streams[i]);
    shared().host_order.forget(&streams[i]);
  }
}

Stream& Scheduler::at(StreamId id) {
  if (id < 0 || id >= stream_count)
    throw std::out_of_range("stream " + std::to_string(id) + " of device " +
                            std::to_string(device) + " does not exist; ids are 0 to " +
                            std::to_string(stream_count - 1));
  return streams[id];
}

void Scheduler::retire(Stream& stream, uint64_t count) {
  if (stream.running) {
    // Markers compare with `completed`: it must not pass the step that still runs.
    stream.owed += count;
    return;
  }
  const uint64_t done =
      stream.completed.load(std::memory_order_relaxed) + count + std::exchange(stream.owed, 0);
  stream.completed.store(done, std::memory_order_release);
  if (done >= stream.wake_at) {
    stream.wake_at = std::numeric_limits<uint64_t>::max();
    stream.wake.notify_all();
  }
}

void Scheduler::advance(Stream& stream, After& after) {
  advance_head(stream, after);
  while (!after.advance.empty()) {
    Stream* next = after.advance.back();
    after.advance.pop_back();
    next->owner->advance_head(*next, after);
  }
}

void Scheduler::advance_head(Stream& stream, After& after) {
  while (!stream.queue.empty()) {
    if (stream.running || stream.ready_on || stream.blocked_on) return;
    Op& op = stream.queue.front();
    if (op.kind == Op::Kind::Step) {
      Lane& lane = engines->lane(op.step.engine);
      lane.push(&stream);
      stream.ready_on = &lane;
      if (!lane.busy) {
        set_busy(lane, true);
        after.posts.push_back(&lane);
      }
      return;
    }
    EventPtr event = std::move(op.event);
    if (op.kind == Op::Kind::Wait) {
      const Event::State state = event->state.load(std::memory_order_relaxed);
      if (state == Event::State::Pending) {
        event->waiters.push_back(&stream);
        stream.blocked_on = event;
        op.event = std::move(event);
        return;
      }
      if (state == Event::State::Poisoned && !op.soft) {
        op.event = event;
        fail(stream, inherit(stream, *event->poison), after);
        return;
      }
    }
    const bool signals = op.kind == Op::Kind::Signal;
    stream.queue.pop_front();
    if (signals) fire(*event, nullptr, after);
    retire(stream, 1);
  }
}

void Scheduler::fire(Event& event, FailurePtr poison, After& after) {
  if (event.state.load(std::memory_order_relaxed) != Event::State::Pending) return;
  event.signal_stream = nullptr;
  const bool poisoned = poison != nullptr;
  event.poison = std::move(poison);
  event.state.store(poisoned ? Event::State::Poisoned : Event::State::Signalled,
                    std::memory_order_release);
  for (Stream* waiter : event.waiters) {
    waiter->blocked_on = nullptr;
    after.advance.push_back(waiter);
  }
  event.waiters.clear();
  if (event.host_waiters) shared().event_fired.notify_all();
}

void Scheduler::fail(Stream& stream, FailurePtr failure, After& after) {
  if (!stream.failure) {
    stream.failure = failure;
    ++failures;
    if (stats) stat_set(stats->errors, static_cast<uint64_t>(failures));
  }
  cancel(stream, failure, after);
}

void Scheduler::cancel(Stream& stream, const FailurePtr& failure, After& after) {
  if (stream.blocked_on) {
    auto& waiters = stream.blocked_on->waiters;
    waiters.erase(std::remove(waiters.begin(), waiters.end(), &stream), waiters.end());
    stream.blocked_on = nullptr;
  }
  if (stream.ready_on) {
    stream.ready_on->remove(&stream);
    stream.ready_on = nullptr;
  }
  if (stream.queue.empty()) return;
  // Virtual first: whoever is woken below finds the times of the poisoned events resolved.
  clock_drop(stream);
  for (Op& op : stream.queue) {
    if (op.kind == Op::Kind::Signal) fire(*op.event, failure, after);
    if (op.kind == Op::Kind::Step)
      timeline.set_status(op.timeline, TimelineEntry::Status::Cancelled);
  }
  const uint64_t count = stream.queue.size();
  after.dead.push_back({&stream, count, std::move(stream.queue)});
  stream.queue.clear();
}

void Scheduler::account(const Step& step, StepSlot slot) {
  timeline.set_status(slot, TimelineEntry::Status::Done);
  const int e = static_cast<int>(step.engine);
  DeviceStreams::EngineTotals& sum = totals[e];
  ++sum.steps;
  sum.bytes += step.bytes;
  sum.busy_ns += step.cost_ns;
  if (stats) {
    stat_set(stats->engine_steps[e], static_cast<uint64_t>(sum.steps));
    stat_set(stats->engine_bytes[e], static_cast<uint64_t>(sum.bytes));
    stat_set(stats->engine_busy_ns[e], static_cast<uint64_t>(sum.busy_ns));
  }
}

void Scheduler::finish_step(Stream& stream, const Step& step, StepSlot slot, const Ran& ran,
                            FailurePtr failure, Lane* inline_lane) {
  After after;
  Lock lock(shared().mutex);
  ++shared().activity;
  if (inline_lane) {
    if (inline_lane->has_ready())
      after.posts.push_back(inline_lane);  // others came meanwhile: hand the lane to the pool
    else
      set_busy(*inline_lane, false);
  }
  stream.running = false;
  if (ran.thread) timeline.set_ran(slot, ran);
  if (inline_lane && ran.thread) timeline.set_submitted(slot);
  if (!failure) {
    account(step, slot);
    retire(stream, 1);
    if (!stream.queue.empty()) advance(stream, after);
  } else {
    timeline.set_status(slot, TimelineEntry::Status::Failed);
    retire(stream, 1);
    fail(stream, std::move(failure), after);
    advance(stream, after);  // its dependants
  }
  finish(lock, after);
}

int64_t Scheduler::coarse_ms() {
  timespec now;  // a few nanoseconds to read; exact to a scheduler tick
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

void Scheduler::refresh_now(int64_t now_ms) {
  std::shared_ptr<const std::function<void()>> hook;
  {
    std::lock_guard<std::mutex> lock(shared().mutex);
    if (!refresh) return;
    refresh_after_ms.store(now_ms + 100, std::memory_order_relaxed);
    hook = refresh;
  }
  (*hook)();
}

void Scheduler::finish(Lock& lock, After& after) {
  if (after.empty()) {
    lock.unlock();
    return;
  }
  // Keeps the engine sets alive: once the last work is done their owners may go.
  std::vector<std::pair<std::shared_ptr<EngineSet>, Lane*>> posts;
  posts.reserve(after.posts.size());
  for (Lane* lane : after.posts) posts.emplace_back(lane->set->shared_from_this(), lane);
  lock.unlock();
  for (auto& [set, lane] : posts) set->post(*lane);
  if (after.dead.empty()) return;
  for (After::Dead& dead : after.dead) dead.ops.clear();
  lock.lock();
  for (After::Dead& dead : after.dead) dead.stream->owner->retire(*dead.stream, dead.count);
  ++shared().activity;
  lock.unlock();
}

}  // namespace openspyre::card
