// Operations whose gradient formula leaves the range of 16-bit floats where value and gradient are
// well inside it (a power of a norm, an exponential before its logarithm, a product before its
// quotient). Autograd keeps their inputs and results in the dtype it is given, so widening the
// kernels alone cannot help: with a gradient to come, the call is recorded in float32.

#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <optional>

#include "torch/dtypes.h"

namespace openspyre::device {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The one 16-bit dtype of the call's tensors, if a gradient is asked for and no other floating
// dtype is among them (the CPU would refuse the mixture).
std::optional<at::ScalarType> dtype_to_widen(const Stack& stack, size_t count) {
  std::optional<at::ScalarType> narrow;
  bool gradient = false;
  const bool recording = c10::GradMode::is_enabled();
  for (const c10::IValue& value : torch::jit::last(stack, count)) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const Tensor& tensor = value.toTensor();
    const at::ScalarType type = tensor.scalar_type();
    if (!at::isFloatingType(type) && !at::isComplexType(type)) continue;
    if (!is_16bit_float(type) || (narrow && *narrow != type)) return std::nullopt;
    narrow = type;
    gradient |= (recording && tensor.requires_grad()) || tensor._fw_grad(/*level=*/0).defined();
  }
  return gradient ? narrow : std::nullopt;
}

void record_in_float32(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto named = schema.argumentIndexWithName("dtype");
  const bool dtype_given = named && !(*stack)[stack->size() - count + *named].isNone();
  const std::optional<at::ScalarType> narrow =
      dtype_given ? std::nullopt : dtype_to_widen(*stack, count);
  if (!narrow) {
    // PyTorch's own formula stands under every autograd key that this library has not claimed.
    op.redispatchBoxed(
        (keys & c10::after_autograd_keyset) | c10::DispatchKeySet(c10::DispatchKey::AutogradOther),
        stack);
    return;
  }
  for (size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (value.toTensor().scalar_type() == *narrow) value = value.toTensor().to(at::kFloat);
  }
  op.callBoxed(stack);
  c10::IValue& result = stack->back();
  result = result.toTensor().to(*narrow);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  for (const char* name : {"linalg_vector_norm", "logcumsumexp", "segment_reduce",
                           "soft_margin_loss", "linalg_matrix_exp"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&record_in_float32>());
  }
}

}  // namespace
}  // namespace openspyre::device
