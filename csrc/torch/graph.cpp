#include "torch/graph.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceType.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "torch/bind.h"
#include "torch/current.h"
#include "torch/errors.h"
#include "torch/launch.h"
#include "torch/op_scope.h"

namespace openspyre::device {
namespace {

using Place = std::pair<int, card::StreamId>;
class SpyreGraph;

// The streams that capture now. A leaf lock.
struct Captures {
  std::mutex mutex;
  std::map<Place, SpyreGraph*> running;
  std::atomic<int> count{0};
};
Captures& captures() {
  static auto* it = new Captures;  // outlives every graph
  return *it;
}

class SpyreGraph final : public at::GraphImplInterface {
 public:
  explicit SpyreGraph(const at::GraphImplArgs&) {}
  ~SpyreGraph() override { stop(); }
  SpyreGraph(const SpyreGraph&) = delete;
  SpyreGraph& operator=(const SpyreGraph&) = delete;

  void capture_begin(c10::MempoolId_t pool, at::GraphCaptureMode) override {
    TORCH_CHECK(!kept(), "graph: it holds a capture already; reset() it before another");
    const int device = current_device();
    const Place place{device, current_stream(device)};
    (void)device_at(device);  // starts the runtime, or says why it cannot
    Captures& all = captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    TORCH_CHECK(!recording_, "graph: capture_begin inside a capture");
    TORCH_CHECK(all.running.emplace(place, this).second, "graph: stream ", place.second,
                " of spyre:", device, " captures another graph");
    all.count.fetch_add(1);
    place_ = place;
    recording_ = true;
    if (pool.first != 0 || pool.second != 0) pool_ = pool;
  }
  void capture_end() override {
    std::optional<Kept> captured = stop();
    TORCH_CHECK(captured, "graph: capture_end without a capture");
    const auto kept = std::make_shared<const Kept>(std::move(*captured));
    std::lock_guard<std::mutex> lock(mutex_);
    kept_ = kept;
  }
  void instantiate() override {
    TORCH_CHECK(kept(), "graph: nothing was captured yet");
    // The launches are ready as they stand.
  }
  // Another thread may replay too, or reset: what is replayed here is kept until it is submitted.
  void replay() override {
    const auto all = kept();
    TORCH_CHECK(all, "graph: nothing was captured yet");
    const int device = all->place.first;
    const card::StreamId stream = current_stream(device);
    refuse_in_capture(device, "a replay of a graph");
    for (const CapturedLaunch& launch : all->launches)
      for (size_t i = 0; i < launch.tensors.size(); ++i)
        TORCH_CHECK(AllocationRef(launch.tensors[i]).get() == launch.allocations[i].get(),
                    "graph: tensor ", i, " of a captured launch of '",
                    launch.plan->plan().spec().name, "' was resized since; capture it again");
    for (const CapturedLaunch& launch : all->launches) launch.plan->note_writes(launch.tensors);
    guarded([&] {
      const WithoutGil released;
      for (const CapturedLaunch& launch : all->launches)
        for (const card::LaunchRequest& request : launch.requests) {
          if (request.stream == stream) {
            launch.plan->plan().launch(request);
          } else {
            card::LaunchRequest here = request;
            here.stream = stream;
            launch.plan->plan().launch(here);
          }
        }
    });
  }
  void reset() override {
    stop();
    std::shared_ptr<const Kept> dropped;  // outlives the lock: it drops tensors and plans
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(kept_);
  }
  c10::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    std::ofstream out(path);
    const auto all = kept();
    for (size_t i = 0; all && i < all->launches.size(); ++i) {
      const CapturedLaunch& launch = all->launches[i];
      out << launch.plan->plan().spec().name;
      for (const at::Tensor& tensor : launch.tensors)
        out << "  " << tensor.sizes() << " " << c10::toString(tensor.scalar_type());
      out << "  x" << launch.requests.size() << "\n";
    }
    TORCH_CHECK(out.good(), "graph: cannot write ", path);
  }

  void add(CapturedLaunch launch) { launches_.push_back(std::move(launch)); }

 private:
  struct Kept {
    Place place;
    std::vector<CapturedLaunch> launches;
  };
  // Ends a capture, if there is one.
  std::optional<Kept> stop() noexcept {
    Captures& all = captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (!recording_) return std::nullopt;
    all.running.erase(place_);
    all.count.fetch_sub(1);
    recording_ = false;
    return Kept{place_, std::exchange(launches_, {})};
  }
  std::shared_ptr<const Kept> kept() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return kept_;
  }
  static c10::MempoolId_t next_pool() {
    static std::atomic<uint64_t> last{0};
    return {0, last.fetch_add(1) + 1};
  }

  c10::MempoolId_t pool_ = next_pool();
  // Guarded by the lock of Captures.
  bool recording_ = false;
  Place place_;
  std::vector<CapturedLaunch> launches_;
  mutable std::mutex mutex_;  // of `kept_`; a leaf lock
  std::shared_ptr<const Kept> kept_;
};

}  // namespace

bool capturing(int device, card::StreamId stream) noexcept {
  Captures& all = captures();
  if (all.count.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.running.contains({device, stream});
}

void capture(int device, card::StreamId stream, CapturedLaunch launch) {
  Captures& all = captures();
  std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.running.find({device, stream});
  TORCH_CHECK(found != all.running.end(),
              "graph: the capture ended while a launch was added to it");
  found->second->add(std::move(launch));
}

void refuse_in_capture(int device, const char* what) {
  if (captures().count.load(std::memory_order_relaxed) == 0) return;
  const card::StreamId stream = current_stream(device);
  TORCH_CHECK(!capturing(device, stream), "graph: stream ", stream, " of spyre:", device,
              " captures a graph, which holds launches of plans (torch.spyre.launch) only; ",
              OpScope::current(), " ", what,
              " cannot be captured. Do it before the capture, or on another stream");
}

void register_graph() {
  const std::string key = c10::DeviceTypeName(kSpyre, /*lower_case=*/false);
  if (!at::GraphImplRegistry()->Has(key))
    at::GraphImplRegistry()->Register(key, [](const at::GraphImplArgs& args) {
      return std::unique_ptr<at::GraphImplInterface>(new SpyreGraph(args));
    });
}

}  // namespace openspyre::device
