// One recorded step gives two activities: the host's call and the card's work, joined by a flow.

#include "torch/profiler_activities.h"

#include <libkineto.h>
#include <output_base.h>
#include <unistd.h>

#include <set>
#include <string>
#include <utility>

namespace openspyre::device {

namespace {

using card::Engine;
using card::RecordedStep;
using card::StepKind;
using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

// Rows of a device: the engines of a stream stand together. 8 leaves room for engines to come.
constexpr int kRowsPerStream = 8;
int row_of(const RecordedStep& step) {
  return step.stream * kRowsPerStream + static_cast<int>(step.engine);
}

ActivityType type_of(const RecordedStep& step) {
  if (step.engine == Engine::Host) return ActivityType::PRIVATEUSE1_DRIVER;
  if (step.kind == StepKind::Set) return ActivityType::GPU_MEMSET;
  if (step.kind == StepKind::Copy || step.engine != Engine::Compute)
    return ActivityType::GPU_MEMCPY;
  return ActivityType::CONCURRENT_KERNEL;
}

// Copies have the names that tools for PyTorch traces look for.
std::string name_of(const RecordedStep& step) {
  switch (type_of(step)) {
    case ActivityType::GPU_MEMSET:
      return "Memset (Device)";
    case ActivityType::GPU_MEMCPY:
      return step.engine == Engine::H2D   ? "Memcpy HtoD (Host -> Device)"
             : step.engine == Engine::D2H ? "Memcpy DtoH (Device -> Host)"
                                          : "Memcpy DtoD (Device -> Device)";
    default:
      return step.name.empty() ? "unnamed step" : step.name;
  }
}

const char* call_of(ActivityType type) {
  switch (type) {
    case ActivityType::GPU_MEMSET:
      return "spyreMemsetAsync";
    case ActivityType::GPU_MEMCPY:
      return "spyreMemcpyAsync";
    case ActivityType::PRIVATEUSE1_DRIVER:
      return "spyreHostCompute";
    default:
      return "spyreLaunchKernel";
  }
}

// For a place between quotation marks of JSON: Kineto writes text as it gets it, but for
// backslashes, which it turns into slashes. So nothing can be escaped.
std::string plain(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    out += c == '"' ? '\'' : c == '\\' ? '/' : static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out;
}

void describe(GenericTraceActivity& activity, const RecordedStep& step) {
  activity.addMetadata("correlation", step.correlation);
  activity.addMetadata("device", step.device);
  activity.addMetadata("stream", step.stream);
  activity.addMetadataQuoted("engine", card::engine_name(step.engine));
  activity.addMetadata("bytes", step.bytes);
  if (step.name != activity.activityName) activity.addMetadataQuoted("step", plain(step.name));
  if (step.sources)
    activity.addMetadataQuoted("source operations", plain(card::source_text(step.sources)));
  if (step.begin_virtual >= 0) {
    activity.addMetadata("modelled begin (ns)", step.begin_virtual);
    activity.addMetadata("modelled end (ns)", step.end_virtual);
  }
  if (step.status == card::TimelineEntry::Status::Failed)
    activity.addMetadataQuoted("status", "failed");
}

std::unique_ptr<GenericTraceActivity> make(const libkineto::TraceSpan& span, ActivityType type,
                                           std::string name, const RecordedStep& step,
                                           bool starts_flow) {
  auto activity = std::make_unique<GenericTraceActivity>(span, type, plain(name));
  activity->id = static_cast<int32_t>(step.correlation);
  activity->flow.id = static_cast<uint32_t>(step.correlation);
  activity->flow.type = libkineto::kLinkAsyncCpuGpu;
  activity->flow.start = starts_flow;
  return activity;
}

}  // namespace

TraceActivities make_activities(const std::vector<RecordedStep>& steps,
                                const libkineto::TraceSpan& span,
                                const libkineto::getLinkedActivityCallback& linked) {
  TraceActivities made;
  std::set<std::pair<int, int>> rows;
  std::set<int> devices;
  const auto process = static_cast<int32_t>(getpid());
  for (const RecordedStep& step : steps) {
    if (step.status == card::TimelineEntry::Status::Pending) ++made.unfinished;
    if (step.end_wall == 0) continue;  // not run: queued still, or cancelled behind a failure
    const ActivityType type = type_of(step);
    const libkineto::ITraceActivity* operation =
        linked && step.operation ? linked(static_cast<int32_t>(step.operation)) : nullptr;

    auto call = make(span, ActivityType::PRIVATEUSE1_RUNTIME, call_of(type), step, true);
    call->startTime = step.submit_begin_wall;
    call->endTime = step.submit_end_wall;
    call->device = process;
    call->resource = call->threadId = step.submit_thread;
    call->linked = operation;
    call->addMetadata("correlation", step.correlation);
    made.activities.push_back(std::move(call));

    auto work = make(span, type, name_of(step), step, false);
    work->startTime = step.begin_wall;
    work->endTime = step.end_wall;
    work->linked = operation;
    if (type == ActivityType::PRIVATEUSE1_DRIVER) {  // work of the host, on a thread of its own
      work->device = process;
      work->resource = work->threadId = step.run_thread;
    } else {
      work->device = step.device;
      work->resource = work->threadId = row_of(step);
      devices.insert(step.device);
      if (rows.insert({step.device, row_of(step)}).second)
        made.rows.push_back(
            {row_of(step), row_of(step), step.device,
             "stream " + std::to_string(step.stream) + " " + card::engine_name(step.engine)});
    }
    describe(*work, step);
    made.activities.push_back(std::move(work));
  }
  for (const int device : devices) {
    const std::string name = "spyre " + std::to_string(device);
    made.devices.push_back({device, libkineto::kExceedMaxPid + device, name, name});
  }
  return made;
}

}  // namespace openspyre::device
