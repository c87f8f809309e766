// Streams, engines, events and the virtual clock of one device.
//
// Torch-free; never takes the GIL. Two notions of time are kept apart:
//  - real execution: steps run asynchronously on the process's Pool, FIFO per stream and one at a
//    time per engine; an idle stream runs small work on the caller's thread;
//  - virtual time: nanoseconds on the card's clock, a pure function of submission order, step
//    costs and the modelled host cost. Never of wall-clock arrival. It is resolved at submission,
//    or, behind a wait for a signal that has not been submitted yet, when that signal is.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace openspyre::card {

struct StatsDevice;

enum class Engine : uint8_t { H2D, D2H, Compute, Host };
inline constexpr int kEngines = 4;
const char* engine_name(Engine engine);  // "H2D", "D2H", "Compute", "HostCompute"

using StreamId = int;
inline constexpr StreamId kDefaultStream = 0;
inline constexpr StreamId kFirstLow = 1, kFirstHigh = 33, kFirstHostCompute = 65;
inline constexpr int kPoolStreams = 32;

// runtime.md 2.4
enum class StreamError : uint8_t {
  Success = 0,
  Shutdown = 1,
  HardwareFault = 2,
  Timeout = 3,
  MemoryFault = 4,
  CoreUnavailable = 5
};
enum class DeviceState : uint8_t { Ok = 0, NotInitialized = 1, StreamError = 2 };

// An error that sticks to a stream. what() names the origin operation, device, stream and code.
class StreamFailure : public std::runtime_error {
 public:
  StreamFailure(const std::string& text, StreamError code, std::string origin, int device,
                StreamId stream)
      : std::runtime_error(text),
        code(code),
        origin(std::move(origin)),
        device(device),
        stream(stream) {}
  StreamError code;
  std::string origin;
  int device;
  StreamId stream;
};
// Waiting that can never end. Names the streams.
class Deadlock : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// A wait was given up because the interrupt check said so (Ctrl-C).
class Interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Refused by OPENSPYRE_HAZARDS=check: unordered steps of two streams touch the same bytes.
class Hazard : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One-shot (flex's model): signalled or poisoned once; a recorded torch.Event makes a new one.
class Event;
using EventPtr = std::shared_ptr<Event>;

// What a step touches, for the hazard tracker. Only filled in where tracks_hazards().
struct ByteRange {
  uint64_t begin, end;  // bytes in the block, end excluded
};
struct Access {
  const void* block = nullptr;  // the block's token: unique while the block lives
  bool write = false;
  std::vector<ByteRange> ranges;  // ascending and disjoint
};
enum class HazardMode : uint8_t { Off, Check, Insert };

// What profilers call a step of the compute engine or of DMA. Copy on Compute: within the card.
enum class StepKind : uint8_t { Kernel, Copy, Set };

struct Step {
  Engine engine = Engine::Compute;
  StepKind kind = StepKind::Kernel;  // Kernel on H2D and D2H: a copy all the same
  uint32_t sources = 0;              // number of the text of its source operations (recorder.h)
  std::string name;                  // operation, e.g. "aten::copy_", for errors and Timeline
  int64_t cost_ns = 0;               // modelled duration on the engine
  int64_t bytes = 0;                 // moved by the step, for the Timeline and statistics
  uint64_t correlation = 0;          // 0: the device assigns the next id
  bool may_run_inline = false;       // small enough for the caller's thread on an idle stream
  std::function<void()> work;  // may be empty (synthetic step); an exception poisons the stream
  std::vector<Access> accesses;
};

struct TimelineEntry {
  uint64_t correlation;
  std::string name;
  Engine engine;
  StreamId stream;
  int64_t start_ns, end_ns;  // virtual
  int64_t submit_ns;         // virtual host time at submission
  int64_t bytes;
  enum class Status : uint8_t { Pending, Done, Failed, Cancelled } status;
};

// Constants of the first timing model; the values come from openspyre/card.py.
struct CostModel {
  double h2d_bytes_per_ns = 55.0, d2h_bytes_per_ns = 55.0, d2d_bytes_per_ns = 105.0;
  int64_t transfer_latency_ns = 1000;  // per transfer (one control block)
  int64_t host_submit_ns = 1000;       // host cost of one submission, advances host time
  int64_t transfer_ns(Engine engine, int64_t bytes) const;
  int64_t d2d_ns(int64_t bytes) const;
};

// Seeded fault injection: each step (name filter, engine filter) fails with probability `rate`,
// or exactly at the `nth` matching step. Deterministic in submission order.
struct FaultPlan {
  uint64_t seed = 0;
  double rate = 0;
  int64_t nth = -1;           // 0-based among matching steps; -1 = use rate
  std::string name_contains;  // "" = all
  std::optional<Engine> engine;
  StreamError code = StreamError::HardwareFault;
};

struct StreamConfig {
  int host_compute_streams = 4;  // 1..8
  CostModel cost;
  size_t timeline_capacity = 1 << 16;  // ring; 0 = off
  // How long a host wait for an event without a queued signal goes on, while nothing runs and
  // nothing is submitted, before it raises Deadlock (another thread may be about to signal).
  int64_t deadlock_grace_ms = 200;
  HazardMode hazards = HazardMode::Off;  // of all devices of a process alike
};

// The engines of one card: shared by all its functions (a VF competes with its siblings).
class EngineSet;
std::shared_ptr<EngineSet> make_engine_set();

class DeviceStreams {
 public:
  DeviceStreams(int device, std::shared_ptr<EngineSet> engines, StreamConfig config);
  ~DeviceStreams();  // drains

  // --- pools (runtime.md 2.1)
  StreamId stream_from_pool(int priority);  // 0: ids 1..32, any other: 33..64; round robin
  StreamId host_compute_stream();           // ids 65.. round robin
  static int priority_of(StreamId id);      // the getter: 0 or -1
  bool valid(StreamId id) const;
  std::vector<StreamId> used_streams() const;  // those that ever got work, ascending

  // --- submission. Thread-safe. Throws StreamFailure at once when the stream is in error, and
  // Hazard, before anything has changed, in the mode Check.
  // Returns the correlation id.
  uint64_t submit(StreamId stream, Step step);

  // --- events
  EventPtr make_event();
  void signal(StreamId stream,
              const EventPtr& event);  // EventSignalOp: fires after all earlier work
  // EventWaitOp: the event may be signalled later. `soft`: a poisoned event counts as signalled;
  // for waits that keep something from being overwritten too early, and need nothing of it.
  void wait(StreamId stream, const EventPtr& event, bool soft = false);
  static bool query(const EventPtr& event);  // signalled (or poisoned)
  // Blocks until signalled; rethrows poison; `interrupt` is polled about every 50 ms.
  void synchronize_event(const EventPtr& event, const std::function<bool()>& interrupt = {});
  // Virtual time at which it fired; nullopt while unresolved.
  static std::optional<int64_t> event_time_ns(const EventPtr& event);

  // --- host waits. Rethrow the stream's sticky error; Deadlock when no progress is possible.
  bool query(StreamId stream);  // idle? throws the sticky error
  void synchronize(StreamId stream, const std::function<bool()>& interrupt = {});
  void synchronize_all(const std::function<bool()>& interrupt = {});  // every stream; first error
  bool idle(StreamId stream) const;                                   // like query, never throws

  // --- errors
  StreamError stream_error(StreamId stream) const;
  std::string stream_error_text(StreamId stream) const;
  DeviceState state() const;
  void reset(StreamId stream);  // drops queued work, clears the error; the stream works again
  void inject_faults(std::optional<FaultPlan> plan);

  // --- hazards between streams (card/hazards.h)
  bool tracks_hazards() const noexcept;
  void forget_block(const void* block);  // it was freed: its bytes have no history
  size_t hazard_records() const;         // of all devices, for tests

  // --- markers for the allocator: a number at the end of the queue, passed when all before ended
  uint64_t record_marker(StreamId stream);
  bool marker_passed(StreamId stream, uint64_t marker) const;

  // --- virtual clock
  int64_t host_time_ns() const;                   // modelled host time
  void advance_host(int64_t ns);                  // modelled host work between submissions
  int64_t stream_time_ns(StreamId stream) const;  // end of the last resolved step
  int64_t device_time_ns() const;                 // max over streams and host
  const CostModel& cost() const;

  // --- Timeline
  std::vector<TimelineEntry> timeline() const;  // oldest first
  void clear_timeline();
  uint64_t next_correlation();
  struct EngineTotals {
    int64_t steps, bytes, busy_ns;
  };
  EngineTotals totals(Engine engine) const;
  int device() const;

  // --- for the runtime
  // Statistics words of this device, kept up to date from now on; null stops. `refresh` is called
  // after submissions and waits, with no lock held and at most every 100 ms.
  void attach_stats(StatsDevice* words, std::function<void()> refresh = {});
  // Waits until all streams are quiet; work that can never run is cancelled (code Shutdown).
  void drain() noexcept;
  // True on a thread that executes a step's work, where host waits raise Deadlock.
  static bool inside_step();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace openspyre::card
