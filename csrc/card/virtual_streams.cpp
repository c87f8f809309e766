// Virtual time of streams: when each step starts and ends on the card's clock.
//
// Resolved at submission. Behind a wait whose event has no virtual time yet, a stream defers; the
// signal that resolves the event resolves the deferred streams too, lowest (device, stream) first
// and FIFO inside each, so that times depend on submission order alone.

#include <algorithm>
#include <limits>

#include "card/scheduler.h"

namespace openspyre::card {

namespace {

// How often a long busy list is cut at the horizon (finding the horizon looks at every stream).
constexpr size_t kBusyBeforeCut = 64;
constexpr int64_t kCutEvery = 64;

bool before(const Stream* a, const Stream* b) {
  if (a->owner->device != b->owner->device) return a->owner->device < b->owner->device;
  return a->id < b->id;
}

}  // namespace

void Scheduler::host_reaches(int64_t ns) {
  if (ns > host_ns()) engines->host_ns.store(ns, std::memory_order_relaxed);
}

int64_t Scheduler::earliest_deferred() const {
  int64_t time = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < stream_count; ++i) {
    const auto& deferred = streams[i].clock.deferred;
    if (!deferred.empty()) time = std::min(time, deferred.front().submit_ns);
  }
  return time;
}

void Scheduler::place(Stream& stream, Engine engine, int64_t submit_ns, int64_t cost_ns,
                      StepSlot slot) {
  BusyList& busy = engines->lane(engine).virtual_time;
  if (busy.size() > kBusyBeforeCut && ++engines->reservations % kCutEvery == 0)
    busy.forget_before(engines->horizon());
  VirtualStream& clock = stream.clock;
  const int64_t start = busy.reserve(std::max(submit_ns, clock.ready_ns), cost_ns);
  clock.ready_ns = clock.last_end_ns = start + cost_ns;
  latest_end_ns = std::max(latest_end_ns, clock.last_end_ns);
  timeline.set_times(slot, start, clock.ready_ns);
}

void Scheduler::clock_step(Stream& stream, const Step& step, int64_t submit_ns, StepSlot slot) {
  if (stream.clock.deferred.empty())
    place(stream, step.engine, submit_ns, step.cost_ns, slot);
  else
    stream.clock.deferred.push_back(
        {Op::Kind::Step, step.engine, submit_ns, step.cost_ns, slot, nullptr});
}

void Scheduler::clock_wait(Stream& stream, const EventPtr& event) {
  VirtualStream& clock = stream.clock;
  const int64_t time = event->time_ns.load(std::memory_order_relaxed);
  if (clock.deferred.empty() && time != Event::kUnresolved) {
    clock.ready_ns = std::max(clock.ready_ns, time);
    return;
  }
  if (clock.deferred.empty()) {
    clock.waiting_for = event;
    event->virtual_waiters.push_back(&stream);
  }
  clock.deferred.push_back({Op::Kind::Wait, Engine::Host, host_ns(), 0, Timeline::kNoSlot, event});
}

namespace {

// Gives `event` its time and hands over the streams that waited for it.
void resolve(Event& event, int64_t time, std::vector<Stream*>& unblocked) {
  if (event.time_ns.load(std::memory_order_relaxed) != Event::kUnresolved) return;
  event.time_ns.store(time, std::memory_order_release);
  for (Stream* waiter : event.virtual_waiters) {
    waiter->clock.waiting_for = nullptr;
    unblocked.push_back(waiter);
  }
  event.virtual_waiters.clear();
}

}  // namespace

void Scheduler::run_deferred(std::vector<Stream*>& unblocked) {
  while (!unblocked.empty()) {
    const auto lowest = std::min_element(unblocked.begin(), unblocked.end(), before);
    Stream& stream = **lowest;
    unblocked.erase(lowest);
    VirtualStream& clock = stream.clock;
    while (!clock.deferred.empty()) {
      VirtualOp& op = clock.deferred.front();
      if (op.kind == Op::Kind::Step) {
        stream.owner->place(stream, op.engine, op.submit_ns, op.cost_ns, op.timeline);
      } else if (op.kind == Op::Kind::Signal) {
        resolve(*op.event, std::max(op.submit_ns, clock.ready_ns), unblocked);
      } else {
        const int64_t time = op.event->time_ns.load(std::memory_order_relaxed);
        if (time == Event::kUnresolved) {
          clock.waiting_for = op.event;
          op.event->virtual_waiters.push_back(&stream);
          break;
        }
        clock.ready_ns = std::max(clock.ready_ns, time);
      }
      clock.deferred.pop_front();
    }
  }
}

void Scheduler::clock_signal(Stream& stream, const EventPtr& event, int64_t submit_ns) {
  VirtualStream& clock = stream.clock;
  if (!clock.deferred.empty()) {
    clock.deferred.push_back(
        {Op::Kind::Signal, Engine::Host, submit_ns, 0, Timeline::kNoSlot, event});
    return;
  }
  std::vector<Stream*> unblocked;
  resolve(*event, std::max(submit_ns, clock.ready_ns), unblocked);
  run_deferred(unblocked);
}

void Scheduler::clock_drop(Stream& stream) {
  VirtualStream& clock = stream.clock;
  if (clock.deferred.empty()) return;
  if (clock.waiting_for) {
    auto& waiters = clock.waiting_for->virtual_waiters;
    waiters.erase(std::remove(waiters.begin(), waiters.end(), &stream), waiters.end());
    clock.waiting_for = nullptr;
  }
  // What never runs takes no time; its events fire (poisoned) where the stream stopped.
  std::vector<Stream*> unblocked;
  std::deque<VirtualOp> dropped = std::move(clock.deferred);
  clock.deferred.clear();
  for (VirtualOp& op : dropped) {
    const int64_t time = std::max(op.submit_ns, clock.ready_ns);
    if (op.kind == Op::Kind::Step) timeline.set_times(op.timeline, time, time);
    if (op.kind == Op::Kind::Signal) resolve(*op.event, time, unblocked);
  }
  run_deferred(unblocked);
}

}  // namespace openspyre::card
