// The scheduler behind DeviceStreams: queues, their heads, failures, virtual resolution, waits.
// Internal to csrc/card.
//
// One process-wide lock guards every stream, event, lane and busy list: events may cross devices,
// and the lock is held for well under a microsecond. It is NEVER held while step work runs or is
// destroyed (work may free tensors and take the allocator's locks), nor while a task is posted.
//
// Two queues per stream:
//   queue            what has still to execute; the head decides what the stream waits for
//   clock.deferred   what has no virtual time yet, behind a wait whose signal is not submitted
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "card/engine.h"
#include "card/event.h"
#include "card/fault.h"
#include "card/hazards.h"
#include "card/stats_page.h"
#include "card/stream.h"
#include "card/timeline.h"

namespace openspyre::card {

struct Op {
  enum class Kind : uint8_t { Step, Signal, Wait } kind = Kind::Step;
  StreamError fault = StreamError::Success;  // injected at submission
  StepSlot timeline;
  Step step;
  EventPtr event;
  bool soft = false;  // of a Wait: poison counts as signalled
};

struct VirtualOp {
  Op::Kind kind;
  Engine engine;
  int64_t submit_ns, cost_ns;
  StepSlot timeline;
  EventPtr event;
};

struct VirtualStream {
  int64_t ready_ns = 0;     // when the next step may start: end of the last step, waits included
  int64_t last_end_ns = 0;  // end of the last resolved step
  EventPtr waiting_for;     // set while `deferred` is not empty
  std::deque<VirtualOp> deferred;
};

struct Stream {
  Scheduler* owner = nullptr;
  StreamId id = 0;
  bool high = false;  // served first; fixed when the pool first hands the stream out
  bool handed_out = false;
  bool used = false;
  bool running = false;      // one of its steps executes now (it is no longer in `queue`)
  Lane* ready_on = nullptr;  // the lane whose ready queue holds the stream
  EventPtr blocked_on;       // the event that the head waits for
  std::deque<Op> queue;
  uint64_t submitted = 0;              // operations ever accepted: steps, signals, waits
  std::atomic<uint64_t> completed{0};  // operations done or cancelled, never ahead of a running one
  uint64_t owed = 0;  // cancelled behind a running step; counted when that one ends
  uint64_t wake_at = std::numeric_limits<uint64_t>::max();  // least `completed` a host waits for
  std::condition_variable wake;
  FailurePtr failure;  // sticky
  VirtualStream clock;
  uint64_t tracked = 0;  // steps whose order the hazard tracker knows
  VectorClock order;
  std::vector<EventPtr> unordered;  // waited for before their signals were submitted

  bool quiet() const { return completed.load(std::memory_order_relaxed) == submitted; }
};

// What must happen after the lock is released, in this order.
struct After {
  struct Dead {
    Stream* stream;
    uint64_t count;
    std::deque<Op> ops;  // closures to destroy
  };
  std::vector<Stream*> advance;  // streams whose head may go on (worked off under the lock)
  std::vector<Lane*> posts;
  std::vector<Dead> dead;
  bool empty() const { return posts.empty() && dead.empty(); }
};

// State of the whole process.
struct Shared {
  std::mutex mutex;
  std::condition_variable event_fired;
  uint64_t activity = 0;  // counts submissions and completions, for the deadlock grace period
  int busy_lanes = 0;
  HazardTracker hazards;
  VectorClock host_order;  // what the host has waited for
};
inline Shared& shared() {
  static Shared* state = new Shared;  // leaked: workers may outlive static destruction
  return *state;
}

inline void set_busy(Lane& lane, bool busy) {
  lane.busy = busy;
  shared().busy_lanes += busy ? 1 : -1;
}

// True on a thread that is executing a step's work: it must not wait for streams.
bool inside_step();

// Runs a step's work and destroys it. No lock held. Returns why it failed, or null. `ran` is filled
// in where `slot` is recorded.
FailurePtr execute(const Stream& stream, Step& step, StreamError fault, StepSlot slot, Ran& ran);

class Scheduler {
 public:
  Scheduler(int device, std::shared_ptr<EngineSet> engines, StreamConfig config);
  ~Scheduler();

  using Lock = std::unique_lock<std::mutex>;

  // --- scheduler.cpp: everything below needs the lock, but finish_step and finish
  Stream& at(StreamId id);  // throws std::out_of_range (needs no lock)
  void advance(Stream& stream, After& after);
  void fire(Event& event, FailurePtr poison, After& after);
  void fail(Stream& stream, FailurePtr failure, After& after);
  void cancel(Stream& stream, const FailurePtr& failure, After& after);
  void retire(Stream& stream, uint64_t count);
  // Ends a running step; takes the lock. `inline_lane`: the lane that the caller's thread held.
  void finish_step(Stream& stream, const Step& step, StepSlot slot, const Ran& ran,
                   FailurePtr failure, Lane* inline_lane);
  void account(const Step& step, StepSlot slot);
  // Releases the lock and does what is left: posts, destroys cancelled work.
  static void finish(Lock& lock, After& after);

  // Calls `refresh` when it is due. No lock held.
  void refresh_stats(int64_t now_ms) {
    if (now_ms >= refresh_after_ms.load(std::memory_order_relaxed)) refresh_now(now_ms);
  }
  static int64_t coarse_ms();

  // --- virtual_streams.cpp: virtual time; needs the lock
  void clock_step(Stream& stream, const Step& step, int64_t submit_ns, StepSlot slot);
  void clock_signal(Stream& stream, const EventPtr& event, int64_t submit_ns);
  void clock_wait(Stream& stream, const EventPtr& event);
  void clock_drop(Stream& stream);  // resolves what a failed stream will never run
  int64_t earliest_deferred() const;
  int64_t host_ns() const { return engines->host_ns.load(std::memory_order_relaxed); }
  void host_reaches(int64_t ns);
  int64_t device_ns() const { return std::max(host_ns(), latest_end_ns); }

  // --- hazard_order.cpp: who runs behind whom; no effect where hazards are off
  bool tracks() const { return config.hazards != HazardMode::Off; }
  // Throws Hazard (check) or makes `stream` wait (insert); call before the step has any effect.
  void order_step(Stream& stream, const Step& step, After& after);
  void record_step(Stream& stream, const Step& step);
  void order_signal(Stream& stream, Event& event);
  void order_wait(Stream& stream, const EventPtr& event);
  void order_host(const VectorClock& reached);

  // --- waiting.cpp: host waits
  void wait_for(Lock& lock, Stream& stream, uint64_t target,
                const std::function<bool()>& interrupt);
  void wait_for(Lock& lock, Event& event, const std::function<bool()>& interrupt);
  void drain() noexcept;  // until quiet; what can never run is cancelled

  const int device;
  const std::shared_ptr<EngineSet> engines;
  const StreamConfig config;
  const int stream_count;
  std::unique_ptr<Stream[]> streams;
  uint32_t next_low = 0, next_high = 0, next_host_compute = 0;
  Timeline timeline;
  FaultInjector faults;
  DeviceStreams::EngineTotals totals[kEngines] = {};
  StatsDevice* stats = nullptr;
  std::shared_ptr<const std::function<void()>> refresh;  // of the page's other words
  std::atomic<int64_t> refresh_after_ms{std::numeric_limits<int64_t>::max()};
  int64_t failures = 0;
  int64_t latest_end_ns = 0;  // of all resolved steps

 private:
  void refresh_now(int64_t now_ms);
  void advance_head(Stream& stream, After& after);
  void place(Stream& stream, Engine engine, int64_t submit_ns, int64_t cost_ns, StepSlot slot);
  static void run_deferred(std::vector<Stream*>& unblocked);
};

}  // namespace openspyre::card
