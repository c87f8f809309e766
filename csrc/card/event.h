// The one-shot event between streams (flex's model, runtime.md 2.3). Internal to csrc/card.
//
// Life: pending -> signalled, or pending -> poisoned (the first poison wins). There is no reset;
// every record makes a new event. All fields but the two atomics belong to the scheduler's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "card/hazards.h"
#include "card/stream.h"

namespace openspyre::card {

struct Stream;

// Why a stream failed. Shared by the stream and by all that depend on it, so the origin is kept.
// Each throw builds a fresh StreamFailure: no exception object is shared between threads.
struct Failure {
  std::string text;
  StreamError code;
  std::string origin;
  int device;
  StreamId stream;
  [[noreturn]] void raise() const { throw StreamFailure(text, code, origin, device, stream); }
};
using FailurePtr = std::shared_ptr<const Failure>;

class Event {
 public:
  static constexpr int64_t kUnresolved = std::numeric_limits<int64_t>::min();
  enum class State : uint8_t { Pending, Signalled, Poisoned };

  std::atomic<State> state{State::Pending};
  std::atomic<int64_t> time_ns{kUnresolved};  // virtual

  FailurePtr poison;
  bool claimed = false;                  // some signal() was made for it
  Stream* signal_stream = nullptr;       // where the signal is queued, until it fires
  uint64_t signal_position = 0;          // ordinal of the signal in that stream
  int host_waiters = 0;                  // threads in synchronize_event
  std::vector<Stream*> waiters;          // streams whose head waits for it
  std::vector<Stream*> virtual_waiters;  // streams whose virtual time waits for it
  VectorClock order;                     // of its signal (hazards)
};

}  // namespace openspyre::card
