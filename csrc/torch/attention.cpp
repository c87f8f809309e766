// What scaled dot product attention and products of scaled numbers need from a private backend,
// and the tensor of zeros without memory that autograd makes.

#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include "torch/copy.h"
#include "torch/current.h"
#include "torch/fallback.h"
#include "torch/host_compute.h"
#include "torch/native_ops.h"

namespace openspyre::device {

using at::Tensor;

// Attention without gradients is one operation of the card, which shares keys among grouped queries
// and keeps scores in LX; the rest decomposes into products and a softmax ("math").
int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                         const std::optional<Tensor>& mask, double dropout, bool,
                         std::optional<double>, bool) {
  constexpr int64_t kMath = 0, kOverrideable = 4;  // sdp::SDPBackend
  const auto differentiable = [](const Tensor& t) { return t.requires_grad(); };
  const bool gradients =
      at::GradMode::is_enabled() && (differentiable(query) || differentiable(key) ||
                                     differentiable(value) || (mask && differentiable(*mask)));
  const auto fits = [&](const Tensor& t) {
    return t.dim() == 4 && t.scalar_type() == query.scalar_type() && !t.is_nested();
  };
  const bool number = query.scalar_type() == at::kFloat || is_16bit_float(query.scalar_type());
  const bool whole = fits(query) && fits(key) && fits(value) && query.sym_numel() != 0 &&
                     key.sym_numel() != 0 && value.sym_numel() != 0;
  return number && whole && !gradients && dropout == 0.0 ? kOverrideable : kMath;
}

namespace {

// Without gradients nobody reads what lies beside the result.
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
fused_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                const std::optional<Tensor>& bias, double dropout, bool causal, bool,
                std::optional<double> scale) {
  const bool grouped = query.sym_size(-3) != key.sym_size(-3);
  Tensor out;
  if (auto results = call_native("aten::scaled_dot_product_attention", "",
                                 {query, key, value, bias, dropout, causal, scale, grouped})) {
    out = (*results)[0].toTensor();
  } else {
    out = std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, bias, dropout,
                                                             causal, std::nullopt, scale, grouped));
  }
  return {out, {}, {}, {}, query.sym_size(-2), key.sym_size(-2), {}, {}, {}};
}

// A scale is one value, or one a row of `self` (a column of `mat2`).
Tensor scaled(const Tensor& values, const Tensor& scale, int64_t dim) {
  const Tensor wide = values.to(at::kFloat), factor = scale.to(at::kFloat);
  if (factor.numel() == 1) return wide * factor.reshape({});
  TORCH_CHECK(factor.numel() == values.size(dim),
              "aten::_scaled_mm on spyre takes one scale for "
              "the whole operand or one per row of self and column of mat2, but got ",
              describe(scale), " for ", describe(values));
  return wide * (dim == 0 ? factor.reshape({-1, 1}) : factor.reshape({1, -1}));
}

// (self x scale_a) @ (mat2 x scale_b) + bias in float32, then rounded to out_dtype.
Tensor scaled_mm(const Tensor& self, const Tensor& mat2, const Tensor& scale_a,
                 const Tensor& scale_b, const std::optional<Tensor>& bias,
                 const std::optional<Tensor>& scale_result, std::optional<at::ScalarType> out_dtype,
                 bool use_fast_accum) {
  constexpr const char* kOp = "aten::_scaled_mm";
  TORCH_CHECK(self.dim() == 2 && mat2.dim() == 2 && self.size(1) == mat2.size(0), kOp,
              ": the operands must be [M, K] and [K, N], but got ", describe(self), " and ",
              describe(mat2));
  TORCH_CHECK(c10::isFloat8Type(self.scalar_type()) && c10::isFloat8Type(mat2.scalar_type()), kOp,
              ": the operands must be float8, but got ", describe(self), " and ", describe(mat2));
  if (auto results = call_native(
          kOp, "", {self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum}))
    return (*results)[0].toTensor();
  FallbackScope scope(kOp, {self, mat2, scale_a, scale_b, bias.value_or(Tensor()),
                            scale_result.value_or(Tensor())});
  const HostCompute quiet({self}, kOp, scope);  // the host's work unseen by autograd and autocast
  const auto fetch = [&](const Tensor& tensor) {
    TORCH_CHECK(tensor.device() == self.device(),
                "Expected all tensors to be on the same device, "
                "but found at least two devices, ",
                self.device(), " and ", tensor.device(), "! (", kOp, ", ", describe(tensor), ")");
    return to_host(tensor);
  };
  Tensor product =
      at::mm(scaled(fetch(self), fetch(scale_a), 0), scaled(fetch(mat2), fetch(scale_b), 1));
  if (bias && bias->defined()) product = product + fetch(*bias).to(at::kFloat);
  if (scale_result && scale_result->defined()) {
    product = product * fetch(*scale_result).to(at::kFloat).reshape({});
  }
  const at::ScalarType type = out_dtype.value_or(self.scalar_type());
  const bool wide_copy = type == at::kFloat || is_16bit_float(type);
  Tensor result = to_device(wide_copy ? product : product.to(type), self.device(), type);
  scope.moved_to_device(result);
  return result;
}

// Zeros that own no memory; whoever reads them is given real ones by PyTorch (key ZeroTensor).
Tensor zero_tensor(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided && !pin_memory.value_or(false),
              "aten::_efficientzerotensor on spyre makes dense, unpinned tensors only");
  const c10::Device place(
      kSpyre, static_cast<c10::DeviceIndex>(checked_index(device.value_or(c10::Device(kSpyre)))));
  at::native::ZeroTensorAllocator allocator(place);
  const c10::DispatchKeySet keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) |
                                   c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return Tensor(at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype),
                                          std::nullopt));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", &choose_attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable", &fused_attention);
  m.impl("_scaled_mm", &scaled_mm);
  m.impl("_efficientzerotensor", &zero_tensor);
}

}  // namespace
}  // namespace openspyre::device

// Tracing asks the stub, which meets tensors without memory.
namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &openspyre::device::choose_attention);
}  // namespace at::native
