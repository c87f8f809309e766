#include "torch/engine.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "machine/pool.h"
#include "torch/current.h"
#include "torch/errors.h"
#include "torch/graph.h"
#include "torch/interrupt.h"
#include "torch/op_scope.h"

namespace openspyre::device {
namespace {

// Above this, a step that nobody waits for goes to a worker instead of the caller's thread.
constexpr int64_t kInlineBytes = 64 << 10;

card::Step make_step(const card::Device& device, card::Engine engine, const char* what,
                     int64_t bytes) {
  card::Step step;
  step.engine = engine;
  step.kind = std::strcmp(what, "memset") == 0 ? card::StepKind::Set : card::StepKind::Copy;
  step.name.reserve(48);
  step.name.append(OpScope::current()).append(" ").append(what);
  const card::CostModel& cost = device.streams->cost();
  step.cost_ns =
      engine == card::Engine::Compute ? cost.d2d_ns(bytes) : cost.transfer_ns(engine, bytes);
  step.bytes = bytes;
  return step;
}

// The pool's budget follows torch.set_num_threads, which tells nobody: work that is large enough to
// be split looks whether the number has changed. OPENSPYRE_THREADS fixes the budget instead.
void follow_torch_threads(int64_t bytes) {
  static std::atomic<int> seen{0};
  if (bytes <= kInlineBytes || card::Runtime::get().config().threads > 0) return;
  const int wanted = at::get_num_threads();
  if (seen.load(std::memory_order_relaxed) == wanted) return;
  seen.store(wanted, std::memory_order_relaxed);
  machine::Pool::get().set_threads(wanted);
}

// Work that refers to its submitter's frame: given up when that frame is left early.
struct Borrowed {
  std::mutex mutex;
  std::function<void()> work;
};

}  // namespace

void run_on_card(card::Device& device, card::Engine engine, const char* what, int64_t bytes,
                 std::function<void()> work, std::vector<card::Access> accesses) {
  refuse_in_capture(device.index, what);
  const card::StreamId stream = current_stream(device.index);
  auto borrowed = std::make_shared<Borrowed>();
  borrowed->work = std::move(work);
  follow_torch_threads(bytes);
  card::Step step = make_step(device, engine, what, bytes);
  step.may_run_inline = true;  // the caller waits anyhow
  step.accesses = std::move(accesses);
  step.work = [borrowed] {
    std::lock_guard<std::mutex> lock(borrowed->mutex);
    if (borrowed->work) borrowed->work();
  };
  try {
    device.streams->submit(stream, std::move(step));
    wait_for_stream(device, stream);
  } catch (...) {
    {
      std::lock_guard<std::mutex> lock(borrowed->mutex);
      borrowed->work = nullptr;
    }
    rethrow_for_torch();
  }
}

void wait_for_stream(card::Device& device, card::StreamId stream) {
  if (device.streams->idle(stream)) {
    device.streams->synchronize(stream);  // does not block; hands over errors and the host's time
  } else {
    interruptible([&](const std::function<bool()>& interrupt) {
      device.streams->synchronize(stream, interrupt);
    });
  }
}

void submit_to_card(card::Device& device, card::Engine engine, const char* what, int64_t bytes,
                    std::function<void()> work, std::vector<card::Access> accesses) {
  refuse_in_capture(device.index, what);
  follow_torch_threads(bytes);
  card::Step step = make_step(device, engine, what, bytes);
  step.may_run_inline = bytes <= kInlineBytes;
  step.work = std::move(work);
  step.accesses = std::move(accesses);
  guarded([&] { device.streams->submit(current_stream(device.index), std::move(step)); });
}

}  // namespace openspyre::device
