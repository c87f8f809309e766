// Sparse COO tensors of the device: two dense tensors (indices int64 [sparse_dim, nnz], values
// [nnz, ...]) that live on the card, and sizes. Compressed layouts (CSR, CSC, BSR, BSC) are
// refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace openspyre::device {

// A CPU twin of the sparse COO tensor `self`; `dtype` as in to_host().
at::Tensor sparse_to_host(const at::Tensor& self, std::optional<at::ScalarType> dtype);

// A new sparse COO tensor on `device` with the entries of `host`; `dtype` as in to_device().
at::Tensor sparse_to_device(const at::Tensor& host, c10::Device device,
                            std::optional<at::ScalarType> dtype);

// Gives `self` the sizes and entries of `host`. `old_values` are the values that the host's twin
// had before it was written: if `host` still holds that memory, self's values are changed in place,
// so that whoever holds self._values() sees it as on the CPU.
void sparse_from_host(const at::Tensor& host, const at::Tensor& old_values, const at::Tensor& self);

}  // namespace openspyre::device
