// Convolution: the forms that PyTorch leaves to a private backend, which no boxed fallback reaches
// (pytorch.md PT2). Computed by the CPU, in float32 for 16-bit operands.

#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <array>
#include <tuple>

#include "torch/copy.h"
#include "torch/fallback.h"
#include "torch/host_compute.h"
#include "torch/native_ops.h"

namespace openspyre::device {
namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  if (auto results = call_native(
          "aten::convolution_overrideable", "",
          {input, weight, bias, stride, padding, dilation, transposed, output_padding, groups}))
    return (*results)[0].toTensor();
  const Tensor offset = bias.value_or(Tensor());
  FallbackScope scope("aten::convolution_overrideable", {input, weight, offset});
  const HostCompute host({input, weight, offset}, "aten::convolution_overrideable", scope);
  const Tensor result = at::convolution(host.in(input), host.in(weight), host.in(offset), stride,
                                        padding, dilation, transposed, output_padding, groups);
  return host.out(result, scope);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& input,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed, IntArrayRef output_padding,
                                                        int64_t groups,
                                                        std::array<bool, 3> output_mask) {
  if (auto results = call_native("aten::convolution_backward_overrideable", "",
                                 {gradient, input, weight, stride, padding, dilation, transposed,
                                  output_padding, groups, output_mask}))
    return {(*results)[0].toTensor(), (*results)[1].toTensor(), (*results)[2].toTensor()};
  FallbackScope scope("aten::convolution_backward_overrideable", {gradient, input, weight});
  const HostCompute host({gradient, input, weight}, "aten::convolution_backward_overrideable",
                         scope);
  // The bias has one element an output channel.
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const auto [for_input, for_weight, for_bias] = at::convolution_backward(
      host.in(gradient), host.in(input), host.in(weight), IntArrayRef{channels}, stride, padding,
      dilation, transposed, output_padding, groups, output_mask);
  return {host.out(for_input, scope), host.out(for_weight, scope), host.out(for_bias, scope)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);
  m.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace
}  // namespace openspyre::device
