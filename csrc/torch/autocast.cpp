// Autocast for the device: the key AutocastPrivateUse1, with CUDA's cast lists.
//
// The lists are PyTorch's own (the AT_FORALL_* macros of ATen/autocast_mode.h), so they follow the
// installed version. The kernels are boxed: one per policy instead of one per operation. Without
// the fallthrough every operation outside the lists would raise under autocast (pytorch.md PT25).

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <optional>
#include <string>

namespace openspyre::device {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr auto kType = c10::DeviceType::PrivateUse1;

at::ScalarType lower_precision() { return at::autocast::get_autocast_dtype(kType); }

// Casts eligible tensors (floating, on the device, not float64) of the last `count` values.
void cast_arguments(Stack* stack, size_t count, at::ScalarType type) {
  const size_t first = stack->size() - count;
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      if (tensor.defined()) value = at::autocast::cached_cast(type, tensor, kType);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& tensor : value.toTensorVector()) {
        list.push_back(at::autocast::cached_cast(type, tensor, kType));
      }
      value = std::move(list);
    } else if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensor()) {
      c10::List<std::optional<Tensor>> list;  // Tensor?[]: index operations
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isTensor() ? std::optional<Tensor>(at::autocast::cached_cast(
                                             type, item.toTensor(), kType))
                                       : std::nullopt);
      }
      value = std::move(list);
    }
  }
}

// The widest eligible dtype among the arguments, starting from the lower precision.
at::ScalarType widest(const Stack& stack, size_t count) {
  at::ScalarType type = lower_precision();
  for (const c10::IValue& value : torch::jit::last(stack, count)) {
    if (value.isTensor()) {
      const Tensor& tensor = value.toTensor();
      if (tensor.defined()) type = at::autocast::prioritize(type, tensor, kType);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) type = at::autocast::prioritize(type, item.toTensor(), kType);
      }
    }
  }
  return type;
}

c10::impl::ExcludeDispatchKeyGuard without_autocast() {
  return c10::impl::ExcludeDispatchKeyGuard(c10::DispatchKey::AutocastPrivateUse1);
}

void in_lower_precision(const c10::OperatorHandle& op, Stack* stack) {
  const auto guard = without_autocast();
  cast_arguments(stack, op.schema().arguments().size(), lower_precision());
  op.callBoxed(stack);
}

void in_float32(const c10::OperatorHandle& op, Stack* stack) {
  const auto guard = without_autocast();
  cast_arguments(stack, op.schema().arguments().size(), at::kFloat);
  op.callBoxed(stack);
}

void in_widest(const c10::OperatorHandle& op, Stack* stack) {
  const auto guard = without_autocast();
  const size_t count = op.schema().arguments().size();
  cast_arguments(stack, count, widest(*stack, count));
  op.callBoxed(stack);
}

// Reductions with an output dtype: float32 unless the caller chose, and only for an eligible input.
void with_float32_result(const c10::OperatorHandle& op, Stack* stack) {
  const auto guard = without_autocast();
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const c10::IValue& input = (*stack)[first];
  if (input.isTensor() && at::autocast::is_eligible(input.toTensor(), kType)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[first + i];
      if (arguments[i].name() == "dtype" && value.isNone()) value = at::kFloat;
    }
  }
  op.callBoxed(stack);
}

at::ScalarType norm_dtype(const Tensor& self) {
  return at::autocast::is_eligible(self, kType) ? at::kFloat : self.scalar_type();
}
Tensor norm_scalar(const Tensor& self, const at::Scalar& p) {
  const auto guard = without_autocast();
  return at::norm(self, p, norm_dtype(self));
}
Tensor norm_dim(const Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                bool keepdim) {
  const auto guard = without_autocast();
  return at::norm(self, p, dim, keepdim, norm_dtype(self));
}

Tensor refuse_binary_cross_entropy(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                                   int64_t) {
  TORCH_CHECK(false,
              "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
              "autocast: in a 16-bit format the logarithm of a probability overflows. Use "
              "binary_cross_entropy_with_logits or BCEWithLogitsLoss, or leave autocast for this "
              "call: torch.autocast(\"spyre\", enabled=False).");
}

// "op" and "op.overload" of the (OP) and (OP, OVERLOAD) entries of the lists.
#define OPENSPYRE_NAME_1(OP) "aten::" #OP
#define OPENSPYRE_NAME_2(OP, OVERLOAD) "aten::" #OP "." #OVERLOAD
#define OPENSPYRE_PICK(_1, _2, NAME, ...) NAME
#define OPENSPYRE_NAME(...) \
  OPENSPYRE_PICK(__VA_ARGS__, OPENSPYRE_NAME_2, OPENSPYRE_NAME_1, )(__VA_ARGS__)
#define OPENSPYRE_REGISTER(KERNEL, ...) \
  m.impl(OPENSPYRE_NAME(__VA_ARGS__), torch::CppFunction::makeFromBoxedFunction<&KERNEL>());
#define OPENSPYRE_LOWER(...) OPENSPYRE_REGISTER(in_lower_precision, __VA_ARGS__)
#define OPENSPYRE_FLOAT32(...) OPENSPYRE_REGISTER(in_float32, __VA_ARGS__)
#define OPENSPYRE_RESULT(...) OPENSPYRE_REGISTER(with_float32_result, __VA_ARGS__)
#define OPENSPYRE_WIDEST(...) OPENSPYRE_REGISTER(in_widest, __VA_ARGS__)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(OPENSPYRE_LOWER)
  AT_FORALL_FP32(OPENSPYRE_FLOAT32)
  AT_FORALL_FP32_SET_OPT_DTYPE(OPENSPYRE_RESULT)
  AT_FORALL_PROMOTE(OPENSPYRE_WIDEST)
  m.impl("norm.Scalar", &norm_scalar);
  m.impl("norm.ScalarOpt_dim", &norm_dim);
  m.impl("binary_cross_entropy", &refuse_binary_cross_entropy);
}

}  // namespace
}  // namespace openspyre::device
