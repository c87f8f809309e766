// The process's one pool of worker threads: conversions and engines share it.
//
// Torch-free. The budget (set_threads) counts the caller of parallel_for too, so a budget of 1
// starts no thread. Threads start at first need, wait passively (no spinning) and end in
// shutdown(). After a fork the child must call abandon(), which forgets the parent's threads.
#pragma once

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

  // Runs `task` on a worker. At least one worker exists for it even with a budget of 1.
  void post(std::function<void()> task);

  void shutdown();  // joins the workers; later calls run inline
  void abandon();   // fork child only
};

}  // namespace openspyre::machine
