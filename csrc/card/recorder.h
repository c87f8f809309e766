// What profilers are told: every step of the process with its wall-clock and virtual times.
//
// Torch-free. Nobody listens: submission reads one flag and that is all. While somebody does, a
// step takes an entry of a buffer that was laid out when listening began; listeners share the
// entries. Entries are written under the scheduler's lock, which submissions and completions hold
// anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "card/stream.h"

namespace openspyre::card {

// Wall-clock times: nanoseconds since 1970 (CLOCK_REALTIME, which PyTorch's profiler uses).
// Virtual times: as in TimelineEntry; -1 while unknown.
struct RecordedStep {
  uint64_t correlation = 0;
  uint64_t operation = 0;  // the caller's operation: what push_operation() was given; 0: none
  std::string name;
  uint32_t sources = 0;  // source_text() has the operations that the step was compiled from
  Engine engine = Engine::Compute;
  StepKind kind = StepKind::Kernel;
  int device = 0;
  StreamId stream = 0;
  int submit_thread = 0, run_thread = 0;               // of the system
  int64_t submit_begin_wall = 0, submit_end_wall = 0;  // the call of submit()
  int64_t begin_wall = 0, end_wall = 0;                // the step's work; 0: did not run (yet)
  int64_t begin_virtual = -1, end_virtual = -1, submit_virtual = -1;
  int64_t bytes = 0;
  TimelineEntry::Status status = TimelineEntry::Status::Pending;
};

class Recorder {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};
  // Entries kept while listening goes on; what comes later is counted, not kept.
  static constexpr size_t kMostEntries = size_t{1} << 20;

  static Recorder& get();
  bool on() const noexcept { return listeners_.load(std::memory_order_relaxed) > 0; }

  // --- listeners; each takes the scheduler's lock
  struct Recording {
    std::vector<RecordedStep> steps;  // in order of submission
    uint64_t dropped = 0;             // steps that found the buffer full
  };
  // Begins to listen; the number names what is recorded from now on.
  uint64_t start();
  // Steps recorded since `begin`, so far; listening goes on.
  Recording peek(uint64_t begin);
  // Ends what start() began.
  Recording stop(uint64_t begin);

  // --- for the scheduler; needs its lock
  uint64_t add(const Step& step, uint64_t correlation, int device, StreamId stream,
               int64_t submit_begin_wall, int64_t submit_virtual);
  RecordedStep* find(uint64_t slot);  // null for kNone and for what has been given up

  // --- the operation that this thread works for, as profilers number them
  static void push_operation(uint64_t id);
  static void pop_operation();

  static int64_t wall_ns();
  static int thread_id();

 private:
  static constexpr size_t kChunk = 4096;
  static constexpr size_t kChunksAtStart = 4;
  using Chunk = std::vector<RecordedStep>;
  static std::unique_ptr<Chunk> make_chunk();
  Recording copy(uint64_t begin) const;

  std::atomic<int> listeners_{0};
  std::deque<std::unique_ptr<Chunk>> chunks_;
  uint64_t first_ = 0, next_ = 0;  // slots are never used twice
  uint64_t dropped_ = 0;
};

// Texts of source operations: one small number each, for the life of the process. "" is 0.
uint32_t source_number(const std::string& text);
std::string source_text(uint32_t number);

}  // namespace openspyre::card
