// How errors of the torch-free layers reach PyTorch.
//
// csrc/card and csrc/machine throw std exceptions of their own; torch's Python bindings know only
// c10 errors. `guarded` runs a piece of work and turns what it throws into the right one:
// out of memory -> torch.OutOfMemoryError; named errors of the card -> the Python classes that the
// extension module registered through set_error_translator (it must throw); the rest as they are.
#pragma once

#include <exception>
#include <string>
#include <utility>

namespace openspyre::device {

// Called with the current exception when a named error of the card passes; throws its replacement
// or returns, and then a c10::AcceleratorError with the same text is thrown.
using ErrorTranslator = void (*)(const std::exception_ptr& error);
void set_error_translator(ErrorTranslator translator) noexcept;

[[noreturn]] void rethrow_for_torch();  // inside a catch block only

template <class F>
decltype(auto) guarded(F&& work) {
  try {
    return std::forward<F>(work)();
  } catch (...) {
    rethrow_for_torch();
  }
}

// "spyre:5 is not a device of this process ..." as torch.AcceleratorError.
[[noreturn]] void throw_bad_device(int64_t index);

}  // namespace openspyre::device
