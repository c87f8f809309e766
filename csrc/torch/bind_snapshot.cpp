// One device's memory snapshot as the dict that torch.cuda._memory_viz reads.
//
// Stacks are captured as raw code pointers and become file names and lines only here.
#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "card/memory.h"
#include "torch/bind.h"

namespace openspyre::device {

namespace {

// Symbolises every distinct stack once and gives equal stacks the same list object.
class Frames {
 public:
  void add(const std::shared_ptr<void>& handle) {
    if (handle && index_.emplace(handle.get(), captured_.size()).second) {
      captured_.push_back(static_cast<torch::CapturedTraceback*>(handle.get()));
    }
  }
  void symbolize() {
    const torch::SymbolizedTracebacks symbols = torch::symbolize(captured_);
    std::vector<py::dict> frames;
    frames.reserve(symbols.all_frames.size());
    for (const auto& frame : symbols.all_frames) {
      py::dict entry;
      entry["name"] = frame.funcname;
      entry["filename"] = frame.filename;
      entry["line"] = frame.lineno;
      frames.push_back(std::move(entry));
    }
    for (const auto& traceback : symbols.tracebacks) {
      py::list list;
      for (const uint64_t i : traceback) list.append(frames.at(i));
      lists_.push_back(std::move(list));
    }
  }
  py::list of(const std::shared_ptr<void>& handle) const {
    const auto found = index_.find(handle.get());
    return found == index_.end() ? py::list() : lists_.at(found->second);
  }

 private:
  std::unordered_map<void*, size_t> index_;
  std::vector<torch::CapturedTraceback*> captured_;
  std::vector<py::list> lists_;
};

py::dict block_dict(const card::BlockInfo& block, const Frames& frames) {
  py::dict out;
  out["address"] = block.address;
  out["size"] = block.size;
  out["requested_size"] = block.requested;
  out["state"] = card::state_name(block.state);
  out["stream"] = block.stream;
  out["frames"] = frames.of(block.frames);
  return out;
}

py::dict segment_dict(int device, const card::RegionInfo& region, const Frames& frames) {
  py::dict out;
  out["device"] = device;
  out["address"] = region.address;
  out["total_size"] = region.size;
  out["allocated_size"] = region.allocated;
  out["active_size"] = region.active;
  out["requested_size"] = region.requested;
  out["stream"] = 0;  // a region serves every stream; its blocks name theirs
  out["segment_type"] = "large";
  out["segment_pool_id"] = py::make_tuple(0, 0);
  out["is_expandable"] = false;
  out["frames"] = py::list();
  out["memory_type"] = memory_type_name(region.type);
  out["region"] = region.region;
  out["physical"] = region.physical;
  py::list blocks;
  for (const auto& block : region.blocks) blocks.append(block_dict(block, frames));
  out["blocks"] = blocks;
  return out;
}

py::dict trace_dict(const card::TraceEntry& entry, const Frames& frames) {
  py::dict out;
  const bool oom = entry.action == card::TraceEntry::Action::Oom;
  out["action"] = card::action_name(entry.action);
  out["addr"] = entry.address;
  if (oom) out["device_free"] = entry.address;  // the name the viewer reads
  out["size"] = entry.size;
  out["stream"] = entry.stream;
  out["time_us"] = entry.time_us;
  out["pool_id"] = py::make_tuple(0, 0);
  out["frames"] = frames.of(entry.frames);
  return out;
}

// {"segments": [...], "trace": [...]} of one device.
py::dict snapshot(int device) {
  card::MemorySnapshot snap;
  {
    WithoutGil released;
    snap = card::Runtime::get().device(device).memory->snapshot();
  }
  Frames frames;
  for (const auto& region : snap.regions) {
    for (const auto& block : region.blocks) frames.add(block.frames);
  }
  for (const auto& entry : snap.trace) frames.add(entry.frames);
  frames.symbolize();
  py::list segments;
  for (const auto& region : snap.regions) segments.append(segment_dict(device, region, frames));
  py::list trace;
  for (const auto& entry : snap.trace) trace.append(trace_dict(entry, frames));
  py::dict out;
  out["segments"] = segments;
  out["trace"] = trace;
  return out;
}

}  // namespace

void bind_snapshot(py::module_& m) { m.def("memory_snapshot", &snapshot, py::arg("device")); }

}  // namespace openspyre::device
