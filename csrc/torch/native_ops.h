// Eager operations on the card: from a call to a launch without Python, where the call is known.
//
// A call's key says everything that its compiled program depends on: the operation, each tensor's
// dtype, sizes, strides, layout and place on the stick, which tensors share a storage, and all
// arguments that are no numbers. Numbers become symbols of the launch. The key leads to a recipe: a
// plan, what each of its arguments is, the outputs to make. A key that is new goes to Python
// (openspyre/ops/eager.py), which compiles, or gives the reason why the CPU computes such calls.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <initializer_list>

#include "torch/operator_facts.h"

namespace openspyre::device {

// OPENSPYRE_EAGER: whether calls are tried here at all.
bool native_enabled() noexcept;
void set_native_enabled(bool enabled) noexcept;

// Runs the call on top of `stack` on the card. True: its results have taken the place of the
// arguments. False: nothing has happened; the account of `facts` has the reason, if there is one.
// Throws what PyTorch's kernel would, and what a launch throws.
bool run_native(const c10::OperatorHandle& op, const OperatorFacts& facts,
                torch::jit::Stack* stack);

// For kernels that are registered by name ("aten::uniform_", ""): all arguments of the schema.
// Returns the results, or nothing when the card does not compute the call.
std::optional<torch::jit::Stack> call_native(const char* name, const char* overload,
                                             torch::jit::Stack arguments);

struct NativeCounts {
  uint64_t hits, misses, launches;
};
NativeCounts native_counts() noexcept;
// Forgets all recipes: the numerics mode, a policy or a lowering has changed.
void clear_native_recipes();

}  // namespace openspyre::device
