// Draining an engine on the pool.

#include "card/engine.h"

#include <algorithm>
#include <utility>

#include "card/scheduler.h"
#include "machine/pool.h"

namespace openspyre::card {

namespace {
// Steps that one drain runs before it goes to the end of the pool's queue, so that a long queue
// of one engine does not keep the others from a pool with a single worker.
constexpr int kStepsPerDrain = 8;

// The lane whose drain is being put back on the pool by this thread. A pool that is shut down runs
// tasks inside post(); the drain then goes on in its loop instead of nesting ever deeper.
thread_local Lane* t_reposting = nullptr;
}  // namespace

void Lane::push(Stream* stream) { (stream->high ? high : normal).push_back(stream); }

Stream* Lane::pop() {
  std::deque<Stream*>& from = high.empty() ? normal : high;
  if (from.empty()) return nullptr;
  Stream* stream = from.front();
  from.pop_front();
  return stream;
}

void Lane::remove(Stream* stream) {
  std::deque<Stream*>& from = stream->high ? high : normal;
  from.erase(std::remove(from.begin(), from.end(), stream), from.end());
}

EngineSet::EngineSet() {
  for (int i = 0; i < kEngines; ++i) {
    lanes_[i].set = this;
    lanes_[i].engine = static_cast<Engine>(i);
  }
}

std::shared_ptr<EngineSet> make_engine_set() { return std::make_shared<EngineSet>(); }

int64_t EngineSet::horizon() const {
  int64_t time = host_ns.load(std::memory_order_relaxed);
  for (const Scheduler* device : devices) time = std::min(time, device->earliest_deferred());
  return time;
}

void EngineSet::post(Lane& lane) {
  try {
    machine::Pool::get().post([self = shared_from_this(), &lane] { self->drain(lane); });
  } catch (...) {
    // No thread could be had: the work is not lost, the caller does it.
    drain(lane);
  }
}

void EngineSet::drain(Lane& lane) {
  if (t_reposting == &lane) {
    t_reposting = nullptr;
    return;
  }
  for (int n = 0;; ++n) {
    Op op;
    Stream* stream;
    {
      std::lock_guard<std::mutex> lock(shared().mutex);
      if (n < kStepsPerDrain || !lane.has_ready()) {
        stream = lane.pop();
        if (!stream) {
          set_busy(lane, false);
          return;
        }
        op = std::move(stream->queue.front());
        stream->queue.pop_front();
        stream->ready_on = nullptr;
        stream->running = true;
      } else {
        stream = nullptr;
      }
    }
    if (!stream) {  // the lane stays busy: still ours
      t_reposting = &lane;
      post(lane);
      if (std::exchange(t_reposting, nullptr)) return;
      n = -1;
      continue;
    }
    Ran ran;
    FailurePtr failure = execute(*stream, op.step, op.fault, op.timeline, ran);
    // From here on the stream may be gone as soon as the lock is released.
    stream->owner->finish_step(*stream, op.step, op.timeline, ran, std::move(failure), nullptr);
  }
}

}  // namespace openspyre::card
