// DeviceStreams: the public face of the scheduler.
//
// Conventions fixed here:
//  - submit() advances the card's modelled host time by cost.host_submit_ns and the step's
//    submission time is the host time after that. Signals and waits cost no host time, so that
//    timing events do not disturb what they time.
//  - a refused submission (StreamFailure) changes nothing, host time included.
//  - after a failure the virtual times of that stream are what its queued steps had reserved;
//    what is dropped before it got a time takes none.

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "card/scheduler.h"

namespace openspyre::card {

struct DeviceStreams::Impl : Scheduler {
  using Scheduler::Scheduler;
};

namespace {

// A longer step is surely a mistake, and sums of such steps stay far from overflow: 104 days.
constexpr int64_t kMaxCostNs = int64_t{1} << 53;

std::atomic<uint64_t> g_correlation{0};  // one sequence per process: profilers join on it

Event& checked(const EventPtr& event) {
  if (!event) throw std::invalid_argument("the event is null; make one with make_event()");
  return *event;
}

[[noreturn]] void refuse(const Failure& failure, const std::string& operation, int device,
                         StreamId stream) {
  // RUNTIMESCHEDULER::StreamInErrorState, 0x8758 (runtime.md 2.4)
  throw StreamFailure("stream " + std::to_string(stream) + " of device " + std::to_string(device) +
                          " is in an error state (0x8758) and refuses " + operation + ": " +
                          failure.text,
                      failure.code, failure.origin, failure.device, failure.stream);
}

}  // namespace

DeviceStreams::DeviceStreams(int device, std::shared_ptr<EngineSet> engines, StreamConfig config)
    : impl_(std::make_unique<Impl>(device, std::move(engines), std::move(config))) {}
DeviceStreams::~DeviceStreams() = default;

// --- pools

StreamId DeviceStreams::stream_from_pool(int priority) {
  std::lock_guard<std::mutex> lock(shared().mutex);
  uint32_t& next = priority == 0 ? impl_->next_low : impl_->next_high;
  const StreamId id =
      (priority == 0 ? kFirstLow : kFirstHigh) + static_cast<int>(next++ % kPoolStreams);
  Stream& stream = impl_->streams[id];
  if (!std::exchange(stream.handed_out, true)) stream.high = priority < 0;
  return id;
}

StreamId DeviceStreams::host_compute_stream() {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return kFirstHostCompute +
         static_cast<int>(impl_->next_host_compute++ %
                          static_cast<uint32_t>(impl_->config.host_compute_streams));
}

int DeviceStreams::priority_of(StreamId id) { return id >= kFirstHigh ? -1 : 0; }

bool DeviceStreams::valid(StreamId id) const { return id >= 0 && id < impl_->stream_count; }

std::vector<StreamId> DeviceStreams::used_streams() const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  std::vector<StreamId> used;
  for (int i = 0; i < impl_->stream_count; ++i)
    if (impl_->streams[i].used) used.push_back(i);
  return used;
}

// --- submission

namespace {

void note_use(Scheduler& scheduler, Stream& stream) {
  ++stream.submitted;
  ++shared().activity;
  if (!std::exchange(stream.used, true) && scheduler.stats) stat_add(scheduler.stats->streams, 1);
}

}  // namespace

uint64_t DeviceStreams::submit(StreamId id, Step step) {
  Impl& impl = *impl_;
  Stream& stream = impl.at(id);
  const int64_t began_wall = Recorder::get().on() ? Recorder::wall_ns() : 0;
  if (step.cost_ns < 0 || step.cost_ns > kMaxCostNs || step.bytes < 0)
    throw std::invalid_argument("step '" + step.name + "' costs " + std::to_string(step.cost_ns) +
                                " ns and moves " + std::to_string(step.bytes) +
                                " bytes; costs are 0 to 2^53 ns and bytes are not negative");
  if (static_cast<int>(step.engine) >= kEngines)
    throw std::invalid_argument("step '" + step.name + "' names no engine of the card");
  Scheduler::Lock lock(shared().mutex);
  for (;;) {
    if (stream.failure) {
      const FailurePtr failure = stream.failure;
      lock.unlock();
      refuse(*failure, "'" + step.name + "'", impl.device, id);
    }
    After edges;
    impl.order_step(stream, step, edges);
    if (edges.empty()) break;
    Scheduler::finish(lock, edges);  // which gives the lock away: look again
    lock.lock();
  }
  impl.record_step(stream, step);

  if (!step.correlation) step.correlation = next_correlation();
  const uint64_t correlation = step.correlation;
  const int64_t now = impl.host_ns() + impl.config.cost.host_submit_ns;
  impl.engines->host_ns.store(now, std::memory_order_relaxed);
  const StreamError fault = impl.faults.active() ? impl.faults.decide(step) : StreamError::Success;
  const StepSlot slot = impl.timeline.add(step, correlation, id, now, began_wall);
  const bool idle = stream.quiet();
  note_use(impl, stream);
  impl.clock_step(stream, step, now, slot);
  const int64_t now_ms = impl.stats ? Scheduler::coarse_ms() : 0;
  if (impl.stats) stat_set(impl.stats->virtual_now_ns, static_cast<uint64_t>(impl.device_ns()));

  Lane& lane = impl.engines->lane(step.engine);
  // A step without work needs no thread either.
  if (idle && !lane.busy && (step.may_run_inline || !step.work)) {
    stream.running = true;
    set_busy(lane, true);
    lock.unlock();
    Ran ran;
    FailurePtr failure = execute(stream, step, fault, slot, ran);
    impl.finish_step(stream, step, slot, ran, std::move(failure), &lane);
    impl.refresh_stats(now_ms);
    return correlation;
  }
  stream.queue.push_back({Op::Kind::Step, fault, slot, std::move(step), nullptr});
  if (began_wall) impl.timeline.set_submitted(slot);
  After after;
  impl.advance(stream, after);
  Scheduler::finish(lock, after);
  impl.refresh_stats(now_ms);
  return correlation;
}

// --- events

EventPtr DeviceStreams::make_event() { return std::make_shared<Event>(); }

void DeviceStreams::signal(StreamId id, const EventPtr& event) {
  Stream& stream = impl_->at(id);
  checked(event);
  Scheduler::Lock lock(shared().mutex);
  if (std::exchange(event->claimed, true))
    throw std::logic_error("an event is signalled once; make a new one for each record");
  After after;
  impl_->clock_signal(stream, event, impl_->host_ns());
  impl_->order_signal(stream, *event);
  if (stream.failure) {
    impl_->fire(*event, stream.failure, after);
  } else {
    note_use(*impl_, stream);
    event->signal_stream = &stream;
    event->signal_position = stream.submitted;
    stream.queue.push_back({Op::Kind::Signal, StreamError::Success, Timeline::kNoSlot, {}, event});
  }
  impl_->advance(stream, after);
  Scheduler::finish(lock, after);
}

void DeviceStreams::wait(StreamId id, const EventPtr& event, bool soft) {
  Stream& stream = impl_->at(id);
  checked(event);
  Scheduler::Lock lock(shared().mutex);
  if (stream.failure) {
    const FailurePtr failure = stream.failure;
    lock.unlock();
    refuse(*failure, "a wait for an event", impl_->device, id);
  }
  note_use(*impl_, stream);
  impl_->clock_wait(stream, event);
  impl_->order_wait(stream, event);
  stream.queue.push_back(
      {Op::Kind::Wait, StreamError::Success, Timeline::kNoSlot, {}, event, soft});
  After after;
  impl_->advance(stream, after);
  Scheduler::finish(lock, after);
}

bool DeviceStreams::query(const EventPtr& event) {
  const bool fired = checked(event).state.load(std::memory_order_acquire) != Event::State::Pending;
  if (fired && !event->order.empty()) {
    std::lock_guard<std::mutex> lock(shared().mutex);
    shared().host_order.merge(event->order);
  }
  return fired;
}

void DeviceStreams::synchronize_event(const EventPtr& event,
                                      const std::function<bool()>& interrupt) {
  checked(event);
  FailurePtr poison;
  {
    Scheduler::Lock lock(shared().mutex);
    impl_->wait_for(lock, *event, interrupt);
    impl_->order_host(event->order);
    impl_->host_reaches(event->time_ns.load(std::memory_order_relaxed));
    poison = event->poison;
  }
  if (poison) poison->raise();
}

std::optional<int64_t> DeviceStreams::event_time_ns(const EventPtr& event) {
  const int64_t time = checked(event).time_ns.load(std::memory_order_acquire);
  if (time == Event::kUnresolved) return std::nullopt;
  return time;
}

// --- host waits

bool DeviceStreams::query(StreamId id) {
  Stream& stream = impl_->at(id);
  FailurePtr failure;
  bool quiet;
  {
    std::lock_guard<std::mutex> lock(shared().mutex);
    failure = stream.failure;
    quiet = stream.quiet();
    if (quiet) impl_->order_host(stream.order);
  }
  if (failure) failure->raise();
  return quiet;
}

bool DeviceStreams::idle(StreamId id) const {
  if (!valid(id)) return true;
  std::lock_guard<std::mutex> lock(shared().mutex);
  return impl_->streams[id].quiet();
}

void DeviceStreams::synchronize(StreamId id, const std::function<bool()>& interrupt) {
  Stream& stream = impl_->at(id);
  FailurePtr failure;
  {
    Scheduler::Lock lock(shared().mutex);
    const bool resolved = stream.clock.deferred.empty();
    const int64_t reached = stream.clock.ready_ns;  // before later submissions of other threads
    const VectorClock order = stream.order;
    impl_->wait_for(lock, stream, stream.submitted, interrupt);
    impl_->order_host(order);
    impl_->host_reaches(resolved ? reached : stream.clock.ready_ns);
    if (impl_->stats)
      stat_set(impl_->stats->virtual_now_ns, static_cast<uint64_t>(impl_->device_ns()));
    failure = stream.failure;
  }
  impl_->refresh_stats(Scheduler::coarse_ms());
  if (failure) failure->raise();
}

void DeviceStreams::synchronize_all(const std::function<bool()>& interrupt) {
  std::exception_ptr first;
  for (const StreamId id : used_streams()) {
    try {
      synchronize(id, interrupt);
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

// --- errors

StreamError DeviceStreams::stream_error(StreamId id) const {
  Stream& stream = impl_->at(id);
  std::lock_guard<std::mutex> lock(shared().mutex);
  return stream.failure ? stream.failure->code : StreamError::Success;
}

std::string DeviceStreams::stream_error_text(StreamId id) const {
  Stream& stream = impl_->at(id);
  std::lock_guard<std::mutex> lock(shared().mutex);
  return stream.failure ? stream.failure->text : "";
}

DeviceState DeviceStreams::state() const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  for (int i = 0; i < impl_->stream_count; ++i)
    if (impl_->streams[i].failure) return DeviceState::StreamError;
  return DeviceState::Ok;
}

void DeviceStreams::reset(StreamId id) {
  Stream& stream = impl_->at(id);
  if (inside_step())
    throw Deadlock("a step's work resets stream " + std::to_string(id) +
                   "; a reset waits for running work, so work cannot do it");
  Scheduler::Lock lock(shared().mutex);
  After after;
  const FailurePtr why =
      stream.failure
          ? stream.failure
          : std::make_shared<const Failure>(
                Failure{"stream " + std::to_string(id) + " of device " +
                            std::to_string(impl_->device) + " was reset before this work could run",
                        StreamError::Shutdown, "reset", impl_->device, id});
  impl_->cancel(stream, why, after);
  impl_->advance(stream, after);  // the streams that its dropped signals held back
  const uint64_t target = stream.submitted;
  Scheduler::finish(lock, after);
  lock.lock();
  impl_->wait_for(lock, stream, target, {});
  impl_->order_host(stream.order);
  stream.failure = nullptr;
}

void DeviceStreams::inject_faults(std::optional<FaultPlan> plan) {
  std::lock_guard<std::mutex> lock(shared().mutex);
  impl_->faults.set(std::move(plan));
}

// --- hazards

bool DeviceStreams::tracks_hazards() const noexcept { return impl_->tracks(); }

void DeviceStreams::forget_block(const void* block) {
  if (!tracks_hazards()) return;
  std::lock_guard<std::mutex> lock(shared().mutex);
  shared().hazards.forget(block);
}

size_t DeviceStreams::hazard_records() const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return shared().hazards.records();
}

// --- markers

uint64_t DeviceStreams::record_marker(StreamId id) {
  Stream& stream = impl_->at(id);
  std::lock_guard<std::mutex> lock(shared().mutex);
  return stream.submitted;
}

bool DeviceStreams::marker_passed(StreamId id, uint64_t marker) const {
  return impl_->at(id).completed.load(std::memory_order_acquire) >= marker;
}

// --- virtual clock

int64_t DeviceStreams::host_time_ns() const { return impl_->host_ns(); }

void DeviceStreams::advance_host(int64_t ns) {
  if (ns < 0 || ns > kMaxCostNs)
    throw std::invalid_argument("host time cannot advance by " + std::to_string(ns) + " ns");
  std::lock_guard<std::mutex> lock(shared().mutex);
  impl_->host_reaches(impl_->host_ns() + ns);
}

int64_t DeviceStreams::stream_time_ns(StreamId id) const {
  Stream& stream = impl_->at(id);
  std::lock_guard<std::mutex> lock(shared().mutex);
  return stream.clock.last_end_ns;
}

int64_t DeviceStreams::device_time_ns() const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return impl_->device_ns();
}

const CostModel& DeviceStreams::cost() const { return impl_->config.cost; }

// --- Timeline

std::vector<TimelineEntry> DeviceStreams::timeline() const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return impl_->timeline.entries();
}

void DeviceStreams::clear_timeline() {
  std::lock_guard<std::mutex> lock(shared().mutex);
  impl_->timeline.clear();
}

uint64_t DeviceStreams::next_correlation() {
  return g_correlation.fetch_add(1, std::memory_order_relaxed) + 1;
}

DeviceStreams::EngineTotals DeviceStreams::totals(Engine engine) const {
  std::lock_guard<std::mutex> lock(shared().mutex);
  return impl_->totals[static_cast<int>(engine)];
}

int DeviceStreams::device() const { return impl_->device; }

// --- for the runtime

void DeviceStreams::attach_stats(StatsDevice* words, std::function<void()> refresh) {
  auto hook = refresh && words ? std::make_shared<const std::function<void()>>(std::move(refresh))
                               : nullptr;
  std::lock_guard<std::mutex> lock(shared().mutex);
  impl_->stats = words;
  impl_->refresh_after_ms.store(hook ? 0 : std::numeric_limits<int64_t>::max(),
                                std::memory_order_relaxed);
  impl_->refresh = std::move(hook);
}

void DeviceStreams::drain() noexcept { impl_->drain(); }

bool DeviceStreams::inside_step() { return card::inside_step(); }

}  // namespace openspyre::card
