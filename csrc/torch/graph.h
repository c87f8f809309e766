// torch.accelerator.Graph for spyre: launches of plans, captured once and replayed.
//
// While a stream captures, PreparedPlan::launch checks its tensors as always and hands the finished
// requests over instead of submitting them; everything else that would run on that stream is
// refused by name. A replay submits the requests to the current stream: no contract check, no
// search for symbols, and equal symbols leave HostCompute and H2D out.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "card/plan.h"
#include "torch/allocation.h"

namespace openspyre::device {

class PreparedPlan;

struct CapturedLaunch {
  std::shared_ptr<PreparedPlan> plan;
  std::vector<at::Tensor> tensors;         // held: their blocks are in the requests
  std::vector<AllocationRef> allocations;  // of the tensors, to see a resize
  std::vector<card::LaunchRequest> requests;
};

// Whether any stream captures: cheap, for the launch path.
bool capturing(int device, card::StreamId stream) noexcept;
// Adds to the capture of that stream, which must be capturing.
void capture(int device, card::StreamId stream, CapturedLaunch launch);
// Throws, naming `what`, when the current stream of `device` captures.
void refuse_in_capture(int device, const char* what);

// Makes spyre known to torch.accelerator.Graph. After the backend has its name.
void register_graph();

}  // namespace openspyre::device
