// A launch: checks what it is given, and runs its cores on the process's pool.
//
// Cores that do not talk run one after another on each worker, to completion, in the worker's one
// LX, which stays in its caches. Cores that talk have an LX each and are resumed when another one
// signalled them; a worker without a core that can run waits passively.
#include "machine/program/execute.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>

#include "machine/pool.h"
#include "machine/program/core.h"

namespace openspyre::machine {

namespace {

// --- LX buffers, kept from launch to launch

class LxStore {
 public:
  static LxStore& get() {
    static LxStore* store = new LxStore;  // leaked: launches may outlive static destructors
    return *store;
  }

  std::byte* take(size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      for (size_t i = free_.size(); i-- > 0;) {
        if (free_[i].bytes != bytes) continue;
        std::byte* const found = free_[i].data;
        free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
        return found;
      }
    }
    void* const made =
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (made == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(made);
  }

  void give(std::byte* data, size_t bytes) noexcept {
    if (bytes <= kLargest) {
      std::lock_guard lock(mutex_);
      if (free_.size() < kKept) {
        free_.push_back({data, bytes});  // reserved: cannot throw
        return;
      }
    }
    std::free(data);
  }

 private:
  // As many as a card has cores. LX is 2 MiB: at most 64 MiB are kept.
  static constexpr size_t kKept = 32, kLargest = size_t(2) << 20, kAlignment = 128;
  struct Buffer {
    std::byte* data;
    size_t bytes;
  };
  LxStore() { free_.reserve(kKept); }
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

class Lx {
 public:
  explicit Lx(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes)), data_(LxStore::get().take(bytes_)) {}
  ~Lx() { LxStore::get().give(data_, bytes_); }
  Lx(const Lx&) = delete;
  Lx& operator=(const Lx&) = delete;
  std::byte* data() const { return data_; }

 private:
  const size_t bytes_;
  std::byte* const data_;
};

// --- the outcome of a launch

class Outcome {
 public:
  void add(const Core& core) {
    const ExecutionCounts counts = core.counts();
    std::lock_guard lock(mutex_);
    total_.tasks += counts.tasks;
    total_.bytes_read += counts.bytes_read;
    total_.bytes_written += counts.bytes_written;
    total_.bytes_copied += counts.bytes_copied;
  }

  void failed(const Core& core, Shared& shared) {
    record(core.number(), core.fault ? std::make_exception_ptr(*core.fault) : core.other, shared);
  }

  // Of several failures the one of the lowest core is told, whatever the threads did.
  void record(int64_t core, std::exception_ptr error, Shared& shared) {
    std::lock_guard lock(mutex_);
    if (error_ && core >= core_) return;
    core_ = core;
    error_ = std::move(error);
    shared.failed_core.store(core, std::memory_order_relaxed);
  }

  ExecutionCounts finish() {
    if (error_) std::rethrow_exception(error_);
    return total_;
  }

 private:
  std::mutex mutex_;
  ExecutionCounts total_;
  int64_t core_ = 0;
  std::exception_ptr error_;
};

// Runs `worker` on up to `n` threads, the caller's included.
void on_threads(int64_t n, const std::function<void()>& worker) {
  if (n <= 1) return worker();
  Pool::get().parallel_for(n, 1, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) worker();
  });
}

// --- cores that do not talk

void run_apart(Shared& shared, int64_t threads, Outcome& outcome) {
  std::atomic<int64_t> next{0};
  const int64_t cores = shared.program.cores;
  on_threads(threads, [&] {
    if (next.load(std::memory_order_relaxed) >= cores) return;
    const Lx lx(shared.program.card_lx_bytes);
    for (;;) {
      const int64_t number = next.fetch_add(1, std::memory_order_relaxed);
      if (number >= cores || shared.failed_core.load(std::memory_order_relaxed) < number) return;
      Core core(&shared, number, lx.data());
      Core::Status status = core.run();
      if (status == Core::Status::Blocked) {
        core.fault.emplace(LaunchFault::Kind::Deadlock,
                           "deadlock on core " + std::to_string(number) + ": " + core.waits());
        status = Core::Status::Failed;
      }
      if (status == Core::Status::Failed) outcome.failed(core, shared);
      outcome.add(core);
    }
  });
}

// --- cores that talk

class Scheduler {
 public:
  Scheduler(Shared& shared, Outcome& outcome) : shared_(shared), outcome_(outcome) {
    const int64_t cores = shared.program.cores;
    for (int64_t i = 0; i < cores; ++i) {
      lx_.push_back(std::make_unique<Lx>(shared.program.card_lx_bytes));
      cores_.push_back(std::make_unique<Core>(&shared, i, lx_.back()->data()));
      shared.cores.push_back(cores_.back().get());
      ready_.push_back(i);
    }
    states_.assign(static_cast<size_t>(cores), State::Ready);
    shared.scheduler = this;
    shared.wake = [](void* self, int64_t core) { static_cast<Scheduler*>(self)->wake(core); };
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      change_.wait(lock, [&] { return !ready_.empty() || running_ == 0 || failed_; });
      if (ready_.empty() || failed_) {  // nothing runs that could wake a core: done, or stuck
        change_.notify_all();
        return;
      }
      const int64_t number = ready_.front();
      const auto at = static_cast<size_t>(number);
      ready_.pop_front();
      states_[at] = State::Running;
      ++running_;
      lock.unlock();
      const Core::Status status = cores_[at]->run();
      lock.lock();
      --running_;
      if (status == Core::Status::Blocked) {
        if (states_[at] == State::Poked) {
          states_[at] = State::Ready;
          ready_.push_back(number);
        } else {
          states_[at] = State::Blocked;
        }
      } else {
        states_[at] = State::Ended;
        if (status == Core::Status::Failed) outcome_.failed(*cores_[at], shared_);
        failed_ = failed_ || status != Core::Status::Done;
      }
      if (running_ == 0 || failed_) change_.notify_all();
    }
  }

  // After all workers are back: cores that still wait will wait for ever.
  void finish() {
    if (failed_) return;
    for (const auto& core : cores_) outcome_.add(*core);
    std::string stuck;
    int64_t first = -1;
    constexpr int kNamed = 4;
    int named = 0;
    for (size_t i = 0; i < cores_.size(); ++i) {
      if (states_[i] == State::Ended) continue;
      if (first < 0) first = static_cast<int64_t>(i);
      if (named++ < kNamed) stuck += (stuck.empty() ? "" : "; ") + cores_[i]->waits();
    }
    if (first < 0) return;
    if (named > kNamed) stuck += "; and " + std::to_string(named - kNamed) + " more cores";
    outcome_.record(
        first,
        std::make_exception_ptr(LaunchFault(LaunchFault::Kind::Deadlock, "deadlock: " + stuck)),
        shared_);
  }

 private:
  enum class State { Ready, Running, Poked, Blocked, Ended };

  void wake(int64_t core) {
    const auto at = static_cast<size_t>(core);
    std::lock_guard lock(mutex_);
    if (states_[at] == State::Running) states_[at] = State::Poked;
    if (states_[at] != State::Blocked) return;
    states_[at] = State::Ready;
    ready_.push_back(core);
    change_.notify_one();
  }

  Shared& shared_;
  Outcome& outcome_;
  std::vector<std::unique_ptr<Lx>> lx_;
  std::vector<std::unique_ptr<Core>> cores_;
  std::mutex mutex_;
  std::condition_variable change_;
  std::deque<int64_t> ready_;  // guarded by mutex_, as all below
  std::vector<State> states_;
  int64_t running_ = 0;
  bool failed_ = false;
};

// --- what a launch gives

[[noreturn]] void refuse(LaunchFault::Kind kind, const std::string& text) {
  throw LaunchFault(kind, text);
}

void check_symbols(const Program& program, const Launch& launch) {
  if (launch.operands.size() != program.operands.size()) {
    refuse(LaunchFault::Kind::Number,
           "program " + program.name + " has " + std::to_string(program.operands.size()) +
               " operands; the launch gives " + std::to_string(launch.operands.size()));
  }
  if (launch.symbols.size() != program.symbols.size()) {
    refuse(LaunchFault::Kind::Number,
           "program " + program.name + " has " + std::to_string(program.symbols.size()) +
               " symbols; the launch gives " + std::to_string(launch.symbols.size()));
  }
  for (size_t i = 0; i < program.symbols.size(); ++i) {
    const Symbol& symbol = program.symbols[i];
    const int64_t value = launch.symbols[i];
    if (value == static_cast<int64_t>(kUnpatched)) {
      refuse(LaunchFault::Kind::Unpatched, "symbol " + symbol.name + " was never corrected");
    }
    if (symbol.kind == SymbolKind::Float) continue;
    const bool size = symbol.kind == SymbolKind::Dimension;
    const int64_t low = size ? std::max(symbol.minimum, symbol.granularity) : symbol.minimum;
    if (value < low || value > symbol.maximum || (size && value % symbol.granularity != 0)) {
      refuse(LaunchFault::Kind::Number,
             "symbol " + symbol.name + ": " + std::to_string(value) + " must lie in " +
                 std::to_string(low) + ".." + std::to_string(symbol.maximum) +
                 " and be a multiple of " + std::to_string(size ? symbol.granularity : 1));
    }
  }
  for (size_t i = 0; i < program.operands.size(); ++i) {
    if (launch.operands[i].base == nullptr && launch.operands[i].bytes != 0) {
      refuse(LaunchFault::Kind::Unpatched,
             "operand " + program.operands[i].name + " has no address");
    }
  }
}

bool overlap(const Window& a, const Window& b) {
  const auto low = reinterpret_cast<uintptr_t>(a.base), other = reinterpret_cast<uintptr_t>(b.base);
  return a.bytes != 0 && b.bytes != 0 && low < other + b.bytes && other < low + a.bytes;
}

// An operand that nobody writes while the launch runs may be read late.
std::vector<bool> find_deferrable(const Program& program, const Launch& launch) {
  std::vector<bool> out(program.operands.size());
  const auto read_only = [&](size_t i) {
    return program.operands[i].role == Role::In || program.operands[i].role == Role::Const;
  };
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = read_only(i);
    for (size_t j = 0; out[i] && j < out.size(); ++j) {
      if (!read_only(j)) out[i] = !overlap(launch.operands[i], launch.operands[j]);
    }
  }
  return out;
}

}  // namespace

ExecutionCounts execute_program(const Program& program, const Launch& launch) {
  check_symbols(program, launch);
  Shared shared{program, launch, kernels_for(current_isa()), find_deferrable(program, launch), {}};
  const int64_t budget = launch.threads > 0 ? launch.threads : Pool::get().threads();
  const int64_t threads = std::min(budget, program.cores);
  Outcome outcome;
  if (program.talks) {
    Scheduler scheduler(shared, outcome);
    on_threads(threads, [&] { scheduler.work(); });
    scheduler.finish();
  } else {
    run_apart(shared, threads, outcome);
  }
  return outcome.finish();
}

}  // namespace openspyre::machine
