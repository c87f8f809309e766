#include "torch/graph.h"

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/DeviceType.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
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
    TORCH_CHECK(!recording_, "graph: capture_begin inside a capture");
    TORCH_CHECK(launches_.empty() && !captured_,
                "graph: it holds a capture already; reset() it before another");
    const int device = current_device();
    const Place place{device, current_stream(device)};
    (void)device_at(device);  // starts the runtime, or says why it cannot
    Captures& all = captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    TORCH_CHECK(all.running.emplace(place, this).second, "graph: stream ", place.second,
                " of spyre:", device, " captures another graph");
    all.count.fetch_add(1);
    place_ = place;
    recording_ = true;
    if (pool.first != 0 || pool.second != 0) pool_ = pool;
  }
  void capture_end() override {
    TORCH_CHECK(recording_, "graph: capture_end without a capture");
    stop();
    captured_ = true;
  }
  void instantiate() override {
    TORCH_CHECK(captured_, "graph: nothing was captured yet");
    // The launches are ready as they stand.
  }
  void replay() override {
    TORCH_CHECK(captured_, "graph: nothing was captured yet");
    const int device = place_.first;
    const card::StreamId stream = current_stream(device);
    refuse_in_capture(device, "a replay of a graph");
    for (const CapturedLaunch& launch : launches_)
      for (size_t i = 0; i < launch.tensors.size(); ++i)
        TORCH_CHECK(allocation_of(launch.tensors[i]) == launch.allocations[i].get(),
                    "graph: tensor ", i, " of a captured launch of '",
                    launch.plan->plan().spec().name, "' was resized since; capture it again");
    guarded([&] {
      const WithoutGil released;
      for (CapturedLaunch& launch : launches_)
        for (card::LaunchRequest& request : launch.requests) {
          request.stream = stream;
          launch.plan->plan().launch(request);
        }
    });
  }
  void reset() override {
    stop();
    launches_.clear();
    captured_ = false;
  }
  c10::MempoolId_t pool() const override { return pool_; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string& path) override {
    std::ofstream out(path);
    for (const CapturedLaunch& launch : launches_) {
      out << launch.plan->plan().spec().name;
      for (const at::Tensor& tensor : launch.tensors)
        out << "  " << tensor.sizes() << " " << c10::toString(tensor.scalar_type());
      out << "  x" << launch.requests.size() << "\n";
    }
    TORCH_CHECK(out.good(), "graph: cannot write ", path);
  }

  void add(CapturedLaunch launch) { launches_.push_back(std::move(launch)); }

 private:
  void stop() noexcept {
    if (!recording_) return;
    Captures& all = captures();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.running.erase(place_);
    all.count.fetch_sub(1);
    recording_ = false;
  }
  static c10::MempoolId_t next_pool() {
    static std::atomic<uint64_t> last{0};
    return {0, last.fetch_add(1) + 1};
  }

  Place place_;
  bool recording_ = false, captured_ = false;
  c10::MempoolId_t pool_ = next_pool();
  std::vector<CapturedLaunch> launches_;
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
  all.running.at({device, stream})->add(std::move(launch));
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
