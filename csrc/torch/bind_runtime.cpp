// The process's runtime: start, devices, numerics, threads, statistics page.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "machine/pool.h"
#include "torch/bind.h"
#include "torch/current.h"

namespace openspyre::device {

namespace {

py::tuple numerics() {
  const machine::Numerics n = card::Runtime::get().numerics();
  return py::make_tuple(mode_name(n.mode), tie_name(n.tie), n.merged_is_nan);
}

py::object stats_page() {
  const card::StatsPage* page = card::Runtime::get().stats_page();
  if (page == nullptr) return py::none();
  py::dict out;
  out["pid"] = page->pid;
  out["start_unix_ns"] = page->start_unix_ns;
  out["device_count"] = page->device_count;
  out["heartbeat_unix_ns"] = page->heartbeat_unix_ns;
  py::list devices;
  for (uint64_t i = 0; i < page->device_count && i < card::kStatsMaxDevices; ++i) {
    const card::StatsDevice& d = page->devices[i];
    py::dict entry;
    entry["capacity"] = d.capacity;
    entry["reserved"] = d.reserved;
    entry["allocated"] = d.allocated;
    entry["allocations"] = d.allocations;
    entry["frees"] = d.frees;
    entry["ooms"] = d.ooms;
    entry["streams"] = d.streams;
    entry["handles_used"] = d.handles_used;
    py::dict engines;
    for (int e = 0; e < card::kStatsEngines; ++e) {
      engines[card::engine_name(static_cast<card::Engine>(e))] =
          py::make_tuple(d.engine_steps[e], d.engine_bytes[e], d.engine_busy_ns[e]);
    }
    entry["engines"] = engines;
    entry["virtual_now_ns"] = d.virtual_now_ns;
    entry["fallback_calls"] = d.fallback_calls;
    entry["fallback_bytes"] = d.fallback_bytes;
    entry["errors"] = d.errors;
    devices.append(entry);
  }
  out["devices"] = devices;
  return out;
}

}  // namespace

void bind_runtime(py::module_& m) {
  m.def("device_count", [] { return card::Runtime::get().device_count(); });
  // torch.accelerator's functions of the same purpose start the runtime first; these do not.
  m.def("current_device", [] { return current_device(); });
  m.def("set_current_device", [](int index) { set_current_device(index); }, py::arg("index"));
  m.def(
      "has_primary_context",
      [](int index) {
        return at::detail::getPrivateUse1Hooks().hasPrimaryContext(
            static_cast<c10::DeviceIndex>(index));
      },
      py::arg("index"), "What torch's core is told: the runtime runs and has this device.");
  m.def("is_started", [] { return card::Runtime::get().started(); });
  m.def("in_forked_child", [] { return card::Runtime::get().in_forked_child(); });
  m.def("execute", [] { return card::Runtime::get().execute(); });
  m.def("start", [] {
    WithoutGil released;
    card::Runtime& runtime = card::Runtime::get();
    if (runtime.in_forked_child()) {
      throw card::ForkedChild(
          "the spyre device cannot be used in a child made by fork: start workers with the 'spawn' "
          "or 'forkserver' method of torch.multiprocessing");
    }
    runtime.ensure_started();
  });
  m.def("shutdown", [] {
    WithoutGil released;
    card::Runtime::get().shutdown();
  });
  m.def("numerics", &numerics, "(mode, tie, merged_is_nan)");
  m.def(
      "set_numerics",
      [](const std::string& mode, const std::string& tie, bool merged_is_nan) {
        const machine::Numerics wanted{parse_mode(mode), parse_tie(tie), merged_is_nan};
        WithoutGil released;
        card::Runtime::get().set_numerics(wanted);
      },
      py::arg("mode"), py::arg("tie"), py::arg("merged_is_nan"));
  m.def("threads", [] { return machine::Pool::get().threads(); });
  m.def("running_threads", [] { return machine::Pool::get().running(); });
  m.def(
      "set_threads",
      [](int budget) {
        WithoutGil released;
        machine::Pool::get().set_threads(budget);
      },
      py::arg("budget"));
  m.def("stats_page", &stats_page, "The words of the statistics page, or None before the start.");
}

}  // namespace openspyre::device
