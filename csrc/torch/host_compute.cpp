#include "torch/host_compute.h"

#include <c10/util/Exception.h>

namespace openspyre::device {

HostCompute::HostCompute(std::initializer_list<at::Tensor> operands, const char* op,
                         FallbackScope& scope)
    : guard_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {
  const at::Tensor* first = nullptr;
  for (const at::Tensor& operand : operands) {
    if (!operand.defined()) continue;
    if (first == nullptr) {
      first = &operand;
      device_ = operand.device();
      type_ = operand.scalar_type();
    }
    TORCH_CHECK(operand.device() == first->device() && operand.is_privateuseone(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                first->device(), " and ", operand.device(), "! (", op, ", ", describe(operand),
                ")");
    TORCH_CHECK(operand.scalar_type() == first->scalar_type(), op,
                ": the operands must have one "
                "dtype, but found ",
                describe(*first), " and ", describe(operand),
                "; convert one of them with .to(dtype)");
  }
  if (is_16bit_float(type_)) scope.widened();
}

}  // namespace openspyre::device
