// Statistics of the pinned host memory, from torch's caching host allocator.
#include <ATen/core/CachingHostAllocator.h>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

at::HostAllocator* allocator() {
  return at::getHostAllocator(at::kPrivateUse1);  // throws when none is registered
}

void put(py::dict& out, const std::string& name, const c10::CachingAllocator::Stat& stat) {
  out[py::str(name + ".current")] = stat.current;
  out[py::str(name + ".peak")] = stat.peak;
  out[py::str(name + ".allocated")] = stat.allocated;
  out[py::str(name + ".freed")] = stat.freed;
}

py::dict host_memory_stats() {
  const at::HostStats stats = allocator()->get_stats();
  py::dict out;
  put(out, "allocation", stats.allocations);
  put(out, "allocated_bytes", stats.allocated_bytes);
  put(out, "active_requests", stats.active_requests);
  put(out, "active_bytes", stats.active_bytes);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

}  // namespace

void bind_host_memory(py::module_& m) {
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_peak_host_memory_stats", [] { allocator()->reset_peak_stats(); });
  m.def("reset_accumulated_host_memory_stats", [] { allocator()->reset_accumulated_stats(); });
}

}  // namespace openspyre::device
