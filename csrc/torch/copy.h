// Copies between the host and tensors of the device, as the kernels of csrc/torch use them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace openspyre::device {

// A CPU tensor with the values of `self` (a spyre tensor), same sizes. Strides keep the order of
// self's; an expanded or overlapping tensor stays expanded. `dtype` may ask for float32 where
// self is float16 or bfloat16: then the card's value is decoded exactly, without rounding to the
// 16-bit host type. Waits for the current stream. Counted in `traffic()`.
at::Tensor to_host(const at::Tensor& self, std::optional<at::ScalarType> dtype = std::nullopt);

// Writes `host` (CPU, same sizes; dtype self's, or float32 where self is 16-bit) into `self`.
void from_host(const at::Tensor& host, const at::Tensor& self);

// A new spyre tensor with the sizes, dense strides, dtype (or `dtype`) and values of `host`.
at::Tensor to_device(const at::Tensor& host, c10::Device device,
                     std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace openspyre::device
