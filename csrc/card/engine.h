// The engines of one card: strands on the process's pool, each with a virtual busy list.
// Internal to csrc/card.
//
// A lane runs one step at a time. Streams whose head is a step for it stand in its ready queue;
// one drain task per lane works them off on the pool, or an idle stream's step runs on the
// submitting thread while the lane is free. All fields belong to the scheduler's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "card/stream.h"
#include "card/virtual_clock.h"

namespace openspyre::card {

struct Stream;
class Scheduler;

struct Lane {
  EngineSet* set = nullptr;
  Engine engine = Engine::Compute;
  bool busy = false;  // a drain is posted or running, or a step runs inline
  // HIGH streams first (runtime.md 2.1). Priority orders real execution only; virtual time goes
  // by submission order, or it would depend on what happened to be waiting.
  std::deque<Stream*> high, normal;
  BusyList virtual_time;

  bool has_ready() const { return !high.empty() || !normal.empty(); }
  void push(Stream* stream);
  Stream* pop();  // null when nothing is ready
  void remove(Stream* stream);
};

class EngineSet : public std::enable_shared_from_this<EngineSet> {
 public:
  EngineSet();
  Lane& lane(Engine engine) { return lanes_[static_cast<int>(engine)]; }

  // Puts a drain of `lane` (already marked busy) on the pool. Call with no lock held.
  void post(Lane& lane);

  // One modelled host drives all functions of a card; monotonic, written under the lock.
  std::atomic<int64_t> host_ns{0};
  std::vector<Scheduler*> devices;
  int64_t reservations = 0;  // on long busy lists; paces the cutting

  // No later step of this card can start before this virtual time.
  int64_t horizon() const;

 private:
  void drain(Lane& lane);
  Lane lanes_[kEngines];
};

}  // namespace openspyre::card
