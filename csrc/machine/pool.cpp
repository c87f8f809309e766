// The pool of worker threads. Torch-free; knows nothing of what it runs.
//
// One mutex guards one FIFO queue. parallel_for queues tickets: a ticket lets a worker join a loop
// whose chunks are handed out by an atomic counter. The caller takes chunks as well and waits
// only for chunks that a running thread has already taken, never for a queued ticket; so nesting
// cannot deadlock, and a ticket that arrives late finds nothing left and goes.
#include "machine/pool.h"

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace openspyre::machine {

namespace {

// Chunks per thread of the budget: enough that an unlucky thread does not hold up the others.
constexpr int64_t kChunksPerThread = 4;

thread_local bool t_is_worker = false;

struct Loop {
  Loop(int64_t n_, int64_t chunks_, const std::function<void(int64_t, int64_t)>& body_)
      : n(n_), chunks(chunks_), body(&body_) {}

  const int64_t n, chunks;
  // The caller's own object: valid for whoever holds a chunk, since the caller waits for those.
  const std::function<void(int64_t, int64_t)>* const body;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable all_done;
  int64_t done = 0;            // guarded by mutex
  int64_t failed_chunk = 0;    // guarded by mutex; meaningful when error is set
  std::exception_ptr error{};  // guarded by mutex; of the lowest chunk that failed

  // Chunk c covers n/chunks elements, the first n%chunks ones one more.
  int64_t begin(int64_t c) const { return c * (n / chunks) + std::min(c, n % chunks); }

  void work() {
    for (;;) {
      const int64_t c = next.fetch_add(1, std::memory_order_relaxed);
      if (c >= chunks) return;
      std::exception_ptr thrown;
      try {
        (*body)(begin(c), begin(c + 1));
      } catch (...) {
        thrown = std::current_exception();
      }
      std::lock_guard lock(mutex);
      if (thrown && (!error || c < failed_chunk)) {
        error = std::move(thrown);
        failed_chunk = c;
      }
      if (++done == chunks) all_done.notify_all();
    }
  }

  void finish() {
    std::unique_lock lock(mutex);
    all_done.wait(lock, [&] { return done == chunks; });
    // Moved out: a late ticket may be the last owner, and must not own the exception.
    if (std::exception_ptr thrown = std::exchange(error, nullptr)) {
      lock.unlock();
      std::rethrow_exception(thrown);
    }
  }
};

void run_task(const std::function<void()>& task) {
  try {
    task();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "openspyre: a posted task threw, which it must not: %s\n", e.what());
  } catch (...) {
    std::fprintf(stderr, "openspyre: a posted task threw, which it must not\n");
  }
}

// Workers take no signals: those belong to the interpreter's main thread.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

struct Pool::State {
  explicit State(int budget_, State* abandoned_ = nullptr)
      : budget(budget_), abandoned(abandoned_) {}

  std::atomic<int> budget;          // atomic, so that a fork child may read it without the mutex
  State* const abandoned;           // what the parent process used: kept reachable, never touched
  std::atomic<bool> closed{false};  // written under mutex

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> queue;  // guarded by mutex, as all below
  std::list<std::thread> workers, retired;  // retired ones have left their loop: joins are short
  int idle = 0;
  bool has_posted = false;

  std::mutex lifecycle;  // one joiner at a time; taken before mutex

  int wanted() const {
    return std::max(budget.load(std::memory_order_relaxed) - 1, has_posted ? 1 : 0);
  }

  void serve(std::list<std::thread>::iterator self) {
    t_is_worker = true;
    std::unique_lock lock(mutex);
    for (;;) {
      ++idle;
      wake.wait(lock, [&] {
        return !queue.empty() || closed.load(std::memory_order_relaxed) ||
               int(workers.size()) > wanted();
      });
      --idle;
      // Surplus threads leave before they take work; wanted() keeps one for posted tasks.
      if (int(workers.size()) > wanted() && !closed.load(std::memory_order_relaxed)) {
        retired.splice(retired.end(), workers, self);
        if (!queue.empty()) wake.notify_one();  // the wake-up may have been meant for the queue
        return;
      }
      if (queue.empty()) return;  // closed; shutdown joins
      std::function<void()> task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      run_task(task);
      task = nullptr;  // its captures die outside the lock
      lock.lock();
    }
  }

  void start_one() {  // under mutex; throws std::system_error
    SignalsBlocked blocked;
    const auto self = workers.emplace(workers.end());
    try {
      *self = std::thread([this, self] { serve(self); });  // waits for mutex first
    } catch (...) {
      workers.erase(self);
      throw;
    }
  }
};

// hardware_concurrency() may be 0 when unknown.
Pool::Pool() : state_(new State(int(std::max(1u, std::thread::hardware_concurrency())))) {}

Pool& Pool::get() {
  static Pool* pool = new Pool;
  return *pool;
}

void Pool::set_threads(int budget) {
  if (budget < 1) {
    throw std::invalid_argument("thread pool: a budget of " + std::to_string(budget) +
                                " threads; it counts the caller, so it is at least 1");
  }
  State& s = *state_.load();
  std::lock_guard lock(s.mutex);
  s.budget = budget;
  s.wake.notify_all();  // surplus workers leave
}

int Pool::threads() const { return state_.load()->budget; }

int Pool::running() const {
  State& s = *state_.load();
  std::lock_guard lock(s.mutex);
  return int(s.workers.size());
}

void Pool::parallel_for(int64_t n, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  State& s = *state_.load();
  const int64_t budget = s.budget;
  const int64_t chunks = std::min(n / std::max<int64_t>(grain, 1), budget * kChunksPerThread);
  if (chunks <= 1 || budget == 1 || s.closed) return body(0, n);

  const auto loop = std::make_shared<Loop>(n, chunks, body);
  std::list<std::thread> ended;
  {
    std::lock_guard lock(s.mutex);
    if (!s.closed) {
      const int helpers = int(std::min(chunks - 1, budget - 1));
      const int free = std::max(0, s.idle - int(s.queue.size()));  // idle and not yet spoken for
      try {
        for (int missing = helpers - free; missing > 0 && int(s.workers.size()) < s.wanted();
             --missing) {
          s.start_one();
        }
      } catch (const std::system_error&) {
        // The system has no thread to give. The caller does the work alone if need be.
      }
      const int tickets = std::min(helpers, int(s.workers.size()));
      for (int i = 0; i < tickets; ++i) {
        s.queue.emplace_back([loop] { loop->work(); });
        s.wake.notify_one();
      }
      ended.swap(s.retired);
    }
  }
  for (std::thread& t : ended) t.join();
  loop->work();
  loop->finish();
}

void Pool::post(std::function<void()> task) {
  State& s = *state_.load();
  std::list<std::thread> ended;
  {
    std::unique_lock lock(s.mutex);
    if (s.closed) {
      lock.unlock();
      return run_task(task);
    }
    s.has_posted = true;
    if (s.idle <= int(s.queue.size()) && int(s.workers.size()) < s.wanted()) {
      try {
        s.start_one();
      } catch (const std::system_error&) {
        if (s.workers.empty()) throw;
      }
    }
    s.queue.push_back(std::move(task));
    s.wake.notify_one();
    ended.swap(s.retired);
  }
  for (std::thread& t : ended) t.join();
}

void Pool::shutdown() {
  if (t_is_worker) {
    throw std::logic_error("thread pool: shutdown was called from one of its own workers");
  }
  State& s = *state_.load();
  std::lock_guard only(s.lifecycle);
  std::list<std::thread> all;
  {
    std::lock_guard lock(s.mutex);
    s.closed = true;
    s.wake.notify_all();
    all.splice(all.end(), s.retired);
  }
  // A closed pool starts no worker and retires none, so each is here exactly once.
  for (;;) {
    std::thread worker;
    {
      std::lock_guard lock(s.mutex);
      if (s.workers.empty()) break;
      worker = std::move(s.workers.front());
      s.workers.pop_front();
    }
    worker.join();
  }
  for (std::thread& t : all) t.join();
  // Tasks that were queued while no worker was left to take them.
  for (;;) {
    std::function<void()> task;
    {
      std::lock_guard lock(s.mutex);
      if (s.queue.empty()) break;
      task = std::move(s.queue.front());
      s.queue.pop_front();
    }
    run_task(task);
  }
}

void Pool::abandon() {
  // The parent's threads do not exist here and its mutexes may be locked for ever: take nothing
  // from the old state but the budget, and never destroy it.
  State* old = state_.load();
  state_ = new State(old->budget, old);
  t_is_worker = false;  // the forking thread may have been a worker; it is the main thread now
}

}  // namespace openspyre::machine
