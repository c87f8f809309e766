// The extension module openspyre._C: the torch-free runtime for Python.
//
// Loading it also runs the static registrations of csrc/torch (guard, hooks, allocator, kernels,
// torch.ops.openspyre); it starts no thread and opens no device.
#include "torch/bind.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Bindings of the OpenSpyre runtime. Private: the public names are torch.spyre.*";
  using namespace openspyre::device;
  bind_exceptions(m);
  bind_config(m);
  bind_formats(m);
  bind_runtime(m);
  bind_streams(m);
  bind_recorder(m);
  bind_memory(m);
  bind_snapshot(m);
  bind_host_memory(m);
  bind_random(m);
  bind_layout(m);
  bind_fallback(m);
  bind_program(m);
  bind_plan(m);
  bind_facts(m);
  bind_native(m);
  bind_element_copy(m);
}
