// torch.profiler's view of the card, by PyTorch's own PrivateUse1 hook into Kineto.
//
// Kineto asks for a session when a profile begins that wants device activities; the session listens
// to the card's recorder and hands over what it heard when the profile has ended. No session: the
// recorder is off. The header's macro and libkineto's headers need USE_KINETO (CMake gives it).
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "card/recorder.h"
#include "torch/profiler_activities.h"

#ifndef USE_KINETO
#error "torch's profiler headers are empty without USE_KINETO"
#endif

namespace openspyre::device {

namespace {

using libkineto::ActivityType;

const std::set<ActivityType>& our_types() {
  static const std::set<ActivityType> types{
      ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
      ActivityType::PRIVATEUSE1_RUNTIME, ActivityType::PRIVATEUSE1_DRIVER};
  return types;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}
  ~Session() override {
    if (begin_) card::Recorder::get().stop(*begin_);
  }

  void start() override {
    if (!begin_) begin_ = card::Recorder::get().start();
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    if (begin_) recording_ = card::Recorder::get().stop(*std::exchange(begin_, std::nullopt));
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return errors_; }

  void processTrace(libkineto::ActivityLogger& logger) override { processTrace(logger, {}, 0, 0); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked,
                    int64_t start, int64_t end) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, "spyre");
    buffer_->gpuOpCount = 0;
    TraceActivities made = make_activities(recording_.steps, buffer_->span, linked);
    for (const libkineto::ResourceInfo& row : made.rows) logger.handleResourceInfo(row, start);
    devices_ = std::move(made.devices);
    logger_ = &logger;
    start_ = start;
    for (auto& activity : made.activities) {
      if (!wanted_.count(activity->activityType)) continue;
      ++buffer_->gpuOpCount;
      activity->log(logger);
      buffer_->activities.push_back(std::move(activity));
    }
    if (made.unfinished)
      errors_.push_back(std::to_string(made.unfinished) +
                        " steps of spyre had not ended when the profile did and are left out; "
                        "synchronize before it ends");
    if (recording_.dropped)
      errors_.push_back(std::to_string(recording_.dropped) +
                        " steps of spyre found the profiler's buffer full and are left out; "
                        "profile fewer steps of the model at a time");
    recording_ = {};
  }
  // Kineto asks for one device, with the logger of processTrace() still at work and after it has
  // called the first 16 devices "GPU n" itself; the last name counts. Ours may be several.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    libkineto::ActivityLogger* logger = std::exchange(logger_, nullptr);
    if (devices_.empty() || !logger) return nullptr;
    for (size_t i = 1; i < devices_.size(); ++i) logger->handleDeviceInfo(devices_[i], start_);
    return std::make_unique<libkineto::DeviceInfo>(devices_[0]);
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override {
    return std::move(buffer_);
  }

  void pushCorrelationId(uint64_t id) override { card::Recorder::push_operation(id); }
  void popCorrelationId() override { card::Recorder::pop_operation(); }

 private:
  const std::set<ActivityType> wanted_;
  std::optional<uint64_t> begin_;
  card::Recorder::Recording recording_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::vector<libkineto::DeviceInfo> devices_;
  libkineto::ActivityLogger* logger_ = nullptr;
  int64_t start_ = 0;
  std::vector<std::string> errors_;
};

class SpyreProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return our_types(); }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      const std::set<ActivityType>& types, const libkineto::Config&) override {
    // A profile of the CPU alone asks for neither.
    if (!types.count(ActivityType::CONCURRENT_KERNEL) && !types.count(ActivityType::GPU_MEMCPY))
      return nullptr;
    std::set<ActivityType> wanted;
    for (const ActivityType type : our_types())
      if (types.count(type)) wanted.insert(type);
    return std::make_unique<Session>(std::move(wanted));
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& types,
      const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  std::string name_ = "spyre";
};

REGISTER_PRIVATEUSE1_PROFILER(SpyreProfiler);

}  // namespace

}  // namespace openspyre::device
