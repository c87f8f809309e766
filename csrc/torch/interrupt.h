// Host waits that a person can stop: they run without the GIL and answer Ctrl-C.
//
// Used by the bindings and by the guard (torch.Stream.synchronize, torch.accelerator.synchronize).
// Safe on threads that Python does not know.
#pragma once

#include <functional>
#include <utility>

#include "card/stream.h"

namespace openspyre::device {

// True when a signal handler of Python has raised (KeyboardInterrupt); the Python error stays set
// on this thread. Takes the GIL for a moment; false on threads without a Python thread state.
bool python_interrupted();

// Throws the Python error that python_interrupted() found, as pybind11's error_already_set, which
// both pybind11 and torch's own bindings hand on unchanged.
[[noreturn]] void throw_python_interrupt();

// Gives up the GIL for a scope when this thread holds it.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_;  // PyThreadState*, null when the GIL was not held
};

// Calls wait(interrupt) without the GIL, where `interrupt` is what the waits of card/stream.h take.
template <class Wait>
void interruptible(Wait&& wait) {
  try {
    WithoutGil released;
    std::forward<Wait>(wait)(std::function<bool()>(&python_interrupted));
  } catch (const card::Interrupted&) {
    throw_python_interrupt();
  }
}

}  // namespace openspyre::device
