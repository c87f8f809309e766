// The process's one pool of worker threads: conversions and engines share it.
//
// Torch-free. The budget (set_threads) counts the caller of parallel_for too, so a budget of 1
// starts no thread. Threads start at first need, wait passively (no spinning) and end in
// shutdown(). After a fork the child must call abandon(), which forgets the parent's threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace openspyre::machine {

class Pool {
 public:
  static Pool& get();  // leaked on purpose: no destructor may run after its users

  void set_threads(int budget);  // >= 1; throws std::invalid_argument
  int threads() const;           // the budget
  int running() const;           // worker threads that exist now

  // Calls body(begin, end) over [0, n) in chunks of at least `grain`; the caller works too.
  // The first exception is rethrown in the caller after all chunks ended. Safe to nest.
  void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

  // Runs `task` on a worker, first in first out. At least one worker exists for it even with a
  // budget of 1. A task that throws is reported on stderr and dropped: catch inside. Throws
  // std::system_error, with the task not queued, when no worker exists and none can be started.
  void post(std::function<void()> task);

  // Runs what is queued, then joins the workers; later calls run inline. Throws std::logic_error
  // when called from a worker, which cannot join itself.
  void shutdown();
  void abandon();  // fork child only; the child starts anew with the same budget

 private:
  struct State;
  Pool();
  std::atomic<State*> state_;
};

}  // namespace openspyre::machine
