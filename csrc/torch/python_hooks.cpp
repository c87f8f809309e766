// Everything in the extension that runs Python from below: the interrupt check of host waits, the
// garbage collection hook of the allocator, and the stacks of the memory history.
//
// Lock rule: none of these is called with a lock of the card held (card/memory.h, MemoryHooks).
#include <pybind11/pybind11.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

bool python_is_usable() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

// A thread that Python never saw must not get a thread state just to look for signals: only the
// main thread runs signal handlers anyway.
bool thread_is_known() { return PyGILState_GetThisThreadState() != nullptr; }

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace

bool python_interrupted() {
  if (!python_is_usable() || !thread_is_known()) return false;
  Gil gil;
  return PyErr_CheckSignals() != 0;
}

void throw_python_interrupt() {
  Gil gil;
  if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw pybind11::error_already_set();
}

WithoutGil::WithoutGil()
    : state_(python_is_usable() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}

WithoutGil::~WithoutGil() {
  if (state_ != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(state_));
}

bool collect_garbage() {
  if (!python_is_usable()) return false;
  Gil gil;
  // The allocation may come from the middle of a failing call: its error must survive.
  pybind11::error_scope keep;
  try {
    // gc.collect, not PyGC_Collect: the latter does nothing while the collector is disabled.
    const auto found = pybind11::module_::import("gc").attr("collect")();
    return pybind11::cast<long long>(found) > 0;
  } catch (pybind11::error_already_set& error) {
    error.discard_as_unraisable("openspyre: garbage collection under memory pressure");
    return false;
  }
}

std::shared_ptr<void> capture_python_frames() {
  if (!python_is_usable() || !thread_is_known()) return nullptr;
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/false, /*cpp=*/false);
}

}  // namespace openspyre::device
