// One core of a launch: its five queues, its semaphores, its LX.
//
// Torch-free. A core is run by one thread at a time. Of another core it touches only the
// semaphores, atomically, and the LX behind its deferred loads' lock (RING).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/kernels/kernels.h"
#include "machine/program/evaluate.h"
#include "machine/program/execute.h"
#include "machine/program/lazy.h"

namespace openspyre::machine {

class Core;

// What the cores of one launch share.
struct Shared {
  const Program& program;
  const Launch& launch;
  const Kernels& kernels;
  std::vector<bool> deferrable;  // per operand: nobody writes its bytes during the launch
  std::vector<Core*> cores;      // by number; filled only when the cores talk
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> failed_core{INT64_MAX};  // the lowest that failed: higher ones may give up
  // Called by a core that signalled core number `target`.
  void (*wake)(void* scheduler, int64_t target) = nullptr;
  void* scheduler = nullptr;
};

class Core {
 public:
  enum class Status { Done, Blocked, Failed, GaveUp };

  // `lx`: card_lx_bytes bytes that belong to this core until it is done.
  Core(Shared* shared, int64_t number, std::byte* lx);

  // Runs until every queue has ended or waits. Failed: `fault` says why.
  Status run();

  int64_t number() const { return number_; }
  bool done() const { return done_; }
  std::string waits() const;       // the queues that wait and what for, for the deadlock's message
  ExecutionCounts counts() const;  // when no core runs any more that may read this one's LX
  std::optional<LaunchFault> fault;
  std::exception_ptr other;  // an exception that is not a fault of the program (no memory)

 private:
  struct Frame {
    const std::vector<Instruction>* list;
    size_t at;
    int64_t step, count;
    int variable;
    const std::string* name;
  };
  struct Queue {
    Unit unit;
    std::vector<Frame> frames;
    std::vector<int64_t> environment;
    const Instruction* current = nullptr;
    bool waiting = false;
  };
  // The iteration box of the instruction at hand.
  struct Over {
    int labels;
    int64_t start[kMaxLabels], size[kMaxLabels];
    bool empty;
  };

  // Positions of a scatter: all lie below `limit`, those in first..end-1 are stored.
  struct Rows {
    int64_t limit = 0, first = 0, end = 0;
  };

  bool run_queue(Queue& queue);
  bool wait(const Instruction& code, const int64_t* env);
  void signal(const Instruction& code, const int64_t* env);
  int64_t semaphore(const Instruction& code, const int64_t* env) const;
  void give(int64_t semaphore, int64_t amount);

  void load(const Instruction& code, const int64_t* env);
  void store(const Instruction& code, const int64_t* env);
  void ring(const Instruction& code, int64_t* env);
  void compute(const Instruction& code, const int64_t* env);

  void evaluate_over(const Instruction& code, const int64_t* env);
  // Fills `tile` and checks it: addresses are whole sticks inside LX or the operand's window.
  // `label`: one that has the `extent` positions from `first` here instead of the box's, or -1.
  void resolve(const Access& access, const int64_t* env, Tile* tile, int label = -1,
               int64_t extent = 0, int64_t first = 0) const;
  void gather(const Instruction& code, const int64_t* env, const Tile& from, const Tile& to);
  void scatter(const Instruction& code, const int64_t* env, const Rows& rows, const Tile& from,
               const std::byte* source, const int64_t* source_stride, const Tile& to);
  void add_sticks(const Instruction& code, std::byte* to, const std::byte* from, const Tile& source,
                  const int64_t* source_stride, const Tile& target) const;
  void view_of(const Tile& tile, std::byte* base, const int64_t* stride, View* view) const;
  StickBox pair(const int64_t* from, const Tile& counts_from, const Tile& to, int without) const;
  // One element of an index tile; throws Fault(Index) outside 0..limit-1.
  int64_t index_at(const Instruction& code, const Tile& tile, int64_t t, int64_t limit) const;
  void check_box(const Instruction& code, const Tile* inputs, const Tile* outputs);
  void charge(int64_t work);
  void flush();

  std::byte* memory(const Access& access) const {
    return shared_.launch.operands[static_cast<size_t>(access.operand)].base;
  }
  std::unique_lock<std::mutex> lock_lx() {
    return shared_.program.rings ? std::unique_lock(lx_mutex_) : std::unique_lock<std::mutex>();
  }
  std::string place(const Queue& queue) const;
  LaunchFault located(const Queue& queue, LaunchFault::Kind kind, const std::string& text) const;

  Shared& shared_;
  const int64_t number_;
  std::byte* const lx_;
  bool done_ = false;
  Queue queues_[kUnits];
  std::unique_ptr<std::atomic<int64_t>[]> semaphores_;
  Over over_{};
  ComputeTask task_{};
  Tile tiles_[2][kMaxTiles];  // inputs and outputs of the COMPUTE at hand
  ExecutionCounts counts_;
  int64_t pending_steps_ = 0;
  std::mutex lx_mutex_;  // lazy_, and LX as far as lazy_ writes it, when cores read each other's
  LazyLoads lazy_;
};

}  // namespace openspyre::machine
