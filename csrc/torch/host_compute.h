// Moving the operands of a kernel that the CPU computes: one device, float32 for 16-bit operands.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <initializer_list>
#include <optional>

#include "torch/copy.h"
#include "torch/dtypes.h"
#include "torch/fallback.h"

namespace openspyre::device {

// While it lives, autograd and CPU autocast do not see the host's own work.
class HostCompute {
 public:
  // `operands` (undefined ones are skipped) must lie on one device and agree in dtype; the error
  // names `op` and the operand otherwise. 16-bit operands are computed in float32.
  HostCompute(std::initializer_list<at::Tensor> operands, const char* op, FallbackScope& scope);

  // The operand on the host; undefined stays undefined.
  at::Tensor in(const at::Tensor& operand) const {
    if (!operand.defined()) return {};
    return to_host(operand, is_16bit_float(operand.scalar_type())
                                ? std::optional<at::ScalarType>(at::kFloat)
                                : std::nullopt);
  }
  // The result on the device, in the operands' dtype; undefined stays undefined.
  at::Tensor out(const at::Tensor& result, FallbackScope& scope) const {
    if (!result.defined()) return {};
    at::Tensor moved = to_device(
        result, device_,
        result.scalar_type() == at::kFloat ? std::optional<at::ScalarType>(type_) : std::nullopt);
    scope.moved_to_device(moved);
    return moved;
  }

 private:
  c10::Device device_{c10::DeviceType::PrivateUse1};
  at::ScalarType type_ = at::kFloat;
  c10::impl::ExcludeDispatchKeyGuard guard_;
};

}  // namespace openspyre::device
