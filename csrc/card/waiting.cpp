// Host waits: passive, interruptible, and never for something that cannot happen.
//
// A waiter follows the chain "this stream's head waits for an event, which that stream will
// signal, whose head waits for ..." - each stream has one head, so the chain has one end:
//   - a stream that runs or is ready: there is progress, keep waiting;
//   - a stream met before: circular, Deadlock at once;
//   - an event that nothing queued signals: another thread may still submit the signal, so
//     Deadlock only after `deadlock_grace_ms` without any submission or running step.

#include <algorithm>
#include <chrono>
#include <string>

#include "card/scheduler.h"

namespace openspyre::card {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPoll = std::chrono::milliseconds(50);  // interrupts and deadlocks

enum class Outlook { Progress, Circular, Unsignalled };

struct Chain {
  Outlook outlook = Outlook::Progress;
  std::string text;
};

std::string name_of(const Stream& stream) {
  return "stream " + std::to_string(stream.id) + " of device " +
         std::to_string(stream.owner->device);
}

std::string signal_text(const Event& event) {
  if (!event.signal_stream) return "an event that no queued operation signals";
  return "the event that " + name_of(*event.signal_stream) + " signals at its operation " +
         std::to_string(event.signal_position);
}

// Follows from `event` when given, else from the head of `stream`.
Chain follow(const Stream* stream, const Event* event) {
  Chain chain;
  std::vector<const Stream*> seen;
  for (;;) {
    if (event) {
      if (event->state.load(std::memory_order_relaxed) != Event::State::Pending) return {};
      stream = event->signal_stream;
      if (!stream) {
        chain.outlook = Outlook::Unsignalled;
        return chain;
      }
    }
    if (std::find(seen.begin(), seen.end(), stream) != seen.end()) {
      chain.outlook = Outlook::Circular;
      return chain;
    }
    seen.push_back(stream);
    if (!stream->blocked_on) return {};
    event = stream->blocked_on.get();
    chain.text += (chain.text.empty() ? "" : "; ") + name_of(*stream) +
                  " waits, at its operation " +
                  std::to_string(stream->completed.load(std::memory_order_relaxed) + 1) + ", for " +
                  signal_text(*event);
  }
}

// One host wait: when it began to see no activity.
class Watch {
 public:
  explicit Watch(int64_t grace_ms) : grace_(grace_ms) {}

  // Throws Deadlock when nothing can end the wait. Needs the lock.
  void check(const Stream* stream, const Event* event) {
    if (inside_step())
      throw Deadlock("a step's work waits for " +
                     (stream ? name_of(*stream) : signal_text(*event)) +
                     "; work on an engine must not wait for streams, order it with events");
    Chain chain = follow(stream, event);
    if (chain.outlook == Outlook::Progress) {
      since_ = {};
      return;
    }
    if (chain.outlook == Outlook::Circular)
      throw Deadlock("deadlock, circular waits: " + chain.text +
                     ". No work of these streams can run; reset one of them");
    const Clock::time_point now = Clock::now();
    if (since_ == Clock::time_point{} || activity_ != shared().activity ||
        shared().busy_lanes > 0) {
      since_ = now;
      activity_ = shared().activity;
      return;
    }
    if (now - since_ < grace_) return;
    if (chain.text.empty()) chain.text = "the host waits for " + signal_text(*event);
    throw Deadlock("deadlock, wait without a signal: " + chain.text +
                   ". Nothing was submitted and nothing ran for " + std::to_string(grace_.count()) +
                   " ms; record the event first, or reset the waiting stream");
  }

 private:
  std::chrono::milliseconds grace_;
  Clock::time_point since_{};
  uint64_t activity_ = 0;
};

void poll_interrupt(Scheduler::Lock& lock, const std::function<bool()>& interrupt) {
  if (!interrupt) return;
  lock.unlock();
  if (interrupt()) throw Interrupted("the wait for the device was interrupted");
  lock.lock();
}

}  // namespace

void Scheduler::wait_for(Lock& lock, Stream& stream, uint64_t target,
                         const std::function<bool()>& interrupt) {
  Watch watch(config.deadlock_grace_ms);
  Clock::time_point polled = Clock::now();
  while (stream.completed.load(std::memory_order_relaxed) < target) {
    watch.check(&stream, nullptr);
    stream.wake_at = std::min(stream.wake_at, target);
    stream.wake.wait_for(lock, kPoll);
    if (Clock::now() - polled >= kPoll) {
      poll_interrupt(lock, interrupt);
      polled = Clock::now();
    }
  }
}

void Scheduler::wait_for(Lock& lock, Event& event, const std::function<bool()>& interrupt) {
  Watch watch(config.deadlock_grace_ms);
  Clock::time_point polled = Clock::now();
  struct Count {
    Event& event;
    explicit Count(Event& e) : event(e) { ++event.host_waiters; }
    ~Count() { --event.host_waiters; }
  };
  while (event.state.load(std::memory_order_relaxed) == Event::State::Pending) {
    watch.check(nullptr, &event);
    {
      Count count(event);
      shared().event_fired.wait_for(lock, kPoll);
    }
    if (Clock::now() - polled >= kPoll) {
      poll_interrupt(lock, interrupt);
      polled = Clock::now();
    }
  }
}

void Scheduler::drain() noexcept {
  static const FailurePtr gone =
      std::make_shared<const Failure>(Failure{"the device was shut down before this work could run",
                                              StreamError::Shutdown, "shutdown", -1, -1});
  Lock lock(shared().mutex);
  for (int i = 0; i < stream_count; ++i) {
    Stream& stream = streams[i];
    while (!stream.quiet()) {
      const bool stuck = follow(&stream, nullptr).outlook != Outlook::Progress;
      if (stuck && (stream.blocked_on != nullptr) && shared().busy_lanes == 0) {
        After after;
        fail(stream, gone, after);
        advance(stream, after);
        finish(lock, after);
        lock.lock();
        continue;
      }
      stream.wake_at = std::min(stream.wake_at, stream.submitted);
      stream.wake.wait_for(lock, kPoll);
    }
  }
}

}  // namespace openspyre::card
