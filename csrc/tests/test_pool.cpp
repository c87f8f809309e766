// The worker pool: every index once, the budget, nesting, errors, posting, fork and shutdown.
//
// Pool::get() is one per process and other subjects' tests use it too: each test here works on a
// fresh one and leaves an open one with the former budget behind (see `FreshPool`).
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "machine/pool.h"

using openspyre::machine::Pool;

namespace {

class FreshPool {
 public:
  explicit FreshPool(int budget) : before_(Pool::get().threads()) { renew(budget); }
  ~FreshPool() { renew(before_); }
  FreshPool(const FreshPool&) = delete;
  FreshPool& operator=(const FreshPool&) = delete;
  operator Pool&() const { return Pool::get(); }

 private:
  static void renew(int budget) {
    Pool::get().shutdown();
    Pool::get().abandon();
    Pool::get().set_threads(budget);
  }
  const int before_;
};

class Latch {  // counts down to zero; wait() is passive
 public:
  explicit Latch(int n) : left_(n) {}
  void hit() {
    std::lock_guard lock(mutex_);
    if (--left_ == 0) zero_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [&] { return left_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int left_;
};

}  // namespace

TEST(every_index_is_visited_once_in_chunks_of_at_least_the_grain) {
  for (int budget : {1, 2, 3, 8}) {
    const FreshPool only(budget);
    Pool& pool = only;
    for (int64_t n : {0, 1, 2, 31, 64, 100, 1000, 4097}) {
      for (int64_t grain : {1, 7, 64, 5000}) {
        std::vector<std::atomic<int>> seen(size_t(n) + 1);
        std::atomic<bool> small{false};
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
          if (end - begin < std::min(n, grain)) small = true;
          for (int64_t i = begin; i < end; ++i) ++seen[size_t(i)];
        });
        for (int64_t i = 0; i < n; ++i) CHECK_EQ(seen[size_t(i)].load(), 1);
        CHECK(!small);
      }
    }
    CHECK(pool.running() <= budget - 1);
  }
}

TEST(a_huge_range_does_not_overflow) {
  const FreshPool only(4);
  Pool& pool = only;
  std::atomic<int64_t> total{0};
  const int64_t n = INT64_MAX - 5;
  pool.parallel_for(n, 1, [&](int64_t begin, int64_t end) { total += end - begin; });
  CHECK_EQ(total.load(), n);
}

TEST(a_negative_range_and_a_grain_below_one_are_harmless) {
  const FreshPool only(2);
  Pool& pool = only;
  int calls = 0;
  pool.parallel_for(-3, 1, [&](int64_t, int64_t) { ++calls; });
  CHECK_EQ(calls, 0);
  std::atomic<int64_t> total{0};
  pool.parallel_for(10, 0, [&](int64_t begin, int64_t end) { total += end - begin; });
  CHECK_EQ(total.load(), 10);
}

TEST(a_budget_of_one_starts_no_thread_and_stays_on_the_caller) {
  const FreshPool only(1);
  Pool& pool = only;
  const auto self = std::this_thread::get_id();
  bool elsewhere = false;
  pool.parallel_for(1000, 1,
                    [&](int64_t, int64_t) { elsewhere |= std::this_thread::get_id() != self; });
  CHECK(!elsewhere);
  CHECK_EQ(pool.running(), 0);
}

TEST(the_workers_take_part) {
  const FreshPool only(3);
  Pool& pool = only;
  // Three chunks that wait for each other end only if three threads run them at once.
  std::atomic<int> arrived{0};
  std::mutex mutex;
  std::condition_variable all;
  std::set<std::thread::id> ids;
  pool.parallel_for(3, 1, [&](int64_t, int64_t) {
    std::unique_lock lock(mutex);
    ids.insert(std::this_thread::get_id());
    ++arrived;
    all.notify_all();
    all.wait(lock, [&] { return arrived == 3; });
  });
  CHECK_EQ(ids.size(), 3u);
  CHECK_EQ(pool.running(), 2);
}

TEST(nested_loops_from_many_threads_end) {
  const FreshPool only(3);
  Pool& pool = only;
  std::atomic<int64_t> total{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        pool.parallel_for(8, 1, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) {
            pool.parallel_for(8, 1, [&](int64_t b2, int64_t e2) {
              for (int64_t j = b2; j < e2; ++j) {
                pool.parallel_for(4, 1, [&](int64_t b3, int64_t e3) { total += e3 - b3; });
              }
            });
          }
        });
      }
    });
  }
  for (auto& t : callers) t.join();
  CHECK_EQ(total.load(), 4 * 20 * 8 * 8 * 4);
}

TEST(the_first_failing_chunk_is_rethrown_after_all_chunks_ended) {
  for (int budget : {1, 3}) {
    const FreshPool only(budget);
    Pool& pool = only;
    std::atomic<int64_t> visited{0};
    std::string message;
    try {
      pool.parallel_for(100, 10, [&](int64_t begin, int64_t end) {
        visited += end - begin;
        if (begin == 0) throw std::runtime_error("chunk zero");
        throw std::runtime_error("a later chunk");
      });
    } catch (const std::runtime_error& e) {
      message = e.what();
    }
    CHECK_EQ(message, "chunk zero");
    CHECK_EQ(visited.load(), 100);
    std::atomic<int64_t> after{0};  // the pool still works
    pool.parallel_for(100, 10, [&](int64_t b, int64_t e) { after += e - b; });
    CHECK_EQ(after.load(), 100);
  }
}

TEST(posted_tasks_run_on_a_worker_in_order_even_with_a_budget_of_one) {
  const FreshPool only(1);
  Pool& pool = only;
  const auto self = std::this_thread::get_id();
  std::vector<int> order;  // one worker: no two tasks at once
  bool on_caller = false;
  Latch latch(50);
  for (int i = 0; i < 50; ++i) {
    pool.post([&, i] {
      order.push_back(i);
      on_caller |= std::this_thread::get_id() == self;
      latch.hit();
    });
  }
  latch.wait();
  CHECK(!on_caller);
  for (int i = 0; i < 50; ++i) CHECK_EQ(order[size_t(i)], i);
  CHECK_EQ(pool.running(), 1);
}

TEST(a_posted_task_may_loop_and_post) {
  const FreshPool only(2);
  Pool& pool = only;
  std::atomic<int64_t> total{0};
  Latch latch(2);
  pool.post([&] {
    pool.parallel_for(1000, 10, [&](int64_t b, int64_t e) { total += e - b; });
    pool.post([&] {
      ++total;
      latch.hit();
    });
    latch.hit();
  });
  latch.wait();
  CHECK_EQ(total.load(), 1001);
}

TEST(a_posted_task_that_throws_kills_nothing) {
  const FreshPool only(2);
  Pool& pool = only;
  Latch latch(1);
  pool.post([] { throw std::runtime_error("on purpose, by test_pool"); });
  pool.post([&] { latch.hit(); });
  latch.wait();
}

TEST(a_loop_ends_while_every_worker_is_busy) {
  const FreshPool only(2);
  Pool& pool = only;
  Latch release(1), ended(1);
  pool.post([&] {
    release.wait();
    ended.hit();
  });
  std::atomic<int64_t> total{0};
  pool.parallel_for(1000, 1, [&](int64_t b, int64_t e) { total += e - b; });
  CHECK_EQ(total.load(), 1000);
  release.hit();
  ended.wait();
}

TEST(the_budget_can_shrink_and_grow_while_work_runs) {
  const FreshPool only(4);
  Pool& pool = only;
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    for (int i = 0; i < 200; ++i) pool.set_threads(1 + i % 5);
    stop = true;
  });
  int64_t loops = 0;
  std::atomic<int64_t> total{0};
  while (!stop || loops < 20) {
    pool.parallel_for(64, 1, [&](int64_t b, int64_t e) { total += e - b; });
    ++loops;
  }
  changer.join();
  CHECK_EQ(total.load(), loops * 64);
  pool.set_threads(1);
  while (pool.running() > 0) std::this_thread::yield();
  CHECK_EQ(pool.threads(), 1);
}

TEST(a_budget_below_one_is_refused_and_changes_nothing) {
  const FreshPool only(2);
  Pool& pool = only;
  CHECK_THROWS(pool.set_threads(0), std::invalid_argument);
  CHECK_THROWS(pool.set_threads(-4), std::invalid_argument);
  CHECK_EQ(pool.threads(), 2);
}

TEST(shutdown_runs_what_is_queued_and_later_calls_run_inline) {
  const FreshPool only(3);
  Pool& pool = only;
  std::atomic<int> ran{0};
  for (int i = 0; i < 100; ++i) pool.post([&] { ++ran; });
  pool.shutdown();
  CHECK_EQ(ran.load(), 100);
  CHECK_EQ(pool.running(), 0);
  const auto self = std::this_thread::get_id();
  bool here = false;
  pool.post([&] { here = std::this_thread::get_id() == self; });
  CHECK(here);
  std::atomic<int64_t> total{0};
  pool.parallel_for(1000, 1, [&](int64_t b, int64_t e) { total += e - b; });
  CHECK_EQ(total.load(), 1000);
  CHECK_EQ(pool.running(), 0);
  pool.shutdown();  // a second one does nothing
}

TEST(shutdown_from_a_worker_is_refused) {
  const FreshPool only(2);
  Pool& pool = only;
  std::atomic<bool> refused{false};
  Latch latch(1);
  pool.post([&] {
    try {
      pool.shutdown();
    } catch (const std::logic_error&) {
      refused = true;
    }
    latch.hit();
  });
  latch.wait();
  CHECK(refused.load());
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer cannot start threads after such a fork
TEST(a_fork_child_that_abandons_works_anew) {
  const FreshPool only(3);
  Pool& pool = only;
  Latch release(1), busy(1);
  pool.post([&] {  // a worker is in the middle of something
    busy.hit();
    release.wait();
  });
  busy.wait();
  const pid_t child = fork();
  if (child == 0) {
    pool.abandon();
    bool good = pool.running() == 0 && pool.threads() == 3;
    std::atomic<int64_t> total{0};
    pool.parallel_for(1000, 1, [&](int64_t b, int64_t e) { total += e - b; });
    Latch latch(1);
    pool.post([&] { latch.hit(); });
    latch.wait();
    pool.shutdown();
    _exit(good && total == 1000 ? 0 : 1);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  release.hit();
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::atomic<int64_t> total{0};  // the parent is untouched
  pool.parallel_for(1000, 1, [&](int64_t b, int64_t e) { total += e - b; });
  CHECK_EQ(total.load(), 1000);
  pool.shutdown();
}
#endif
