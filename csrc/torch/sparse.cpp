// Kernels of sparse COO tensors that need no arithmetic: making them, their metadata, copies. They
// are PyTorch's own, which work on the two dense tensors inside. All else is the boxed fallback's
// (fallback.cpp), which moves indices and values to the host and back with the helpers here.

#include "torch/sparse.h"

#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/permute_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/zero_native.h>
#include <torch/library.h>

#include <string>

#include "torch/copy.h"
#include "torch/fallback.h"

namespace openspyre::device {
namespace {

using at::Tensor;

Tensor make_sparse(const Tensor& like, Tensor indices, Tensor values) {
  const at::TensorOptions options = values.options().layout(c10::kSparse);
  return at::_sparse_coo_tensor_with_dims_and_tensors(like.sparse_dim(), like.dense_dim(),
                                                      like.sizes(), indices, values, options,
                                                      like.is_coalesced());
}

// Compressed layouts have no kernels here at all.
void refuse_compressed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::string tensors;
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) tensors += (tensors.empty() ? "" : ", ") + describe(value.toTensor());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.operator_name(), " with ", tensors,
      ": the spyre device holds dense and sparse COO tensors only, no compressed ones. "
      "Keep them on the CPU, or convert them there with .to_dense() or .to_sparse_coo().");
}

bool is_pinned(const Tensor&, std::optional<c10::Device>) { return false; }

}  // namespace

Tensor sparse_to_host(const Tensor& self, std::optional<at::ScalarType> dtype) {
  return make_sparse(self, to_host(self._indices()), to_host(self._values(), dtype));
}

Tensor sparse_to_device(const Tensor& host, c10::Device device,
                        std::optional<at::ScalarType> dtype) {
  return make_sparse(host, to_device(host._indices(), device),
                     to_device(host._values(), device, dtype));
}

void sparse_from_host(const Tensor& host, const Tensor& old_values, const Tensor& self) {
  const Tensor values = host._values(), mine = self._values();
  const bool in_place = values.is_alias_of(old_values) && values.sizes() == mine.sizes();
  // Both new tensors exist before the first change: on an error `self` is as it was.
  const Tensor new_indices = to_device(host._indices(), self.device());
  const Tensor new_values = in_place ? mine : to_device(values, self.device(), self.scalar_type());
  if (in_place) from_host(values, mine);
  auto* const impl = static_cast<at::SparseTensorImpl*>(self.unsafeGetTensorImpl());
  impl->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
  impl->set_indices_and_values_unsafe(new_indices, new_values);
  impl->set_coalesced(host.is_coalesced());
}

namespace {

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  // Making.
  m.impl("empty.memory_format", &at::native::empty_sparse);
  m.impl("empty_like", &at::native::empty_like_sparse_coo);
  m.impl("_sparse_coo_tensor_with_dims", &at::native::new_with_dims_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors",
         &at::native::new_with_dims_and_tensor_sparse_symint);
  // What a tensor holds.
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("indices", &at::native::indices_sparse);
  m.impl("values", &at::native::values_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("_dimI", &at::native::sparse_dim_sparse);
  m.impl("_dimV", &at::native::dense_dim_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("_coalesced_", &at::native::_coalesced_sparse_);
  m.impl("is_pinned", &is_pinned);
  // Changing its shape. The schemas of the last two promise views; they are none on the CPU either.
  m.impl("sparse_resize_", &at::native::sparse_resize_);
  m.impl("sparse_resize_and_clear_", &at::native::sparse_resize_and_clear_);
  m.impl("resize_as_sparse_", &at::native::resize_as_sparse_);
  m.impl("zero_", &at::native::zero_sparse_);
  m.impl("permute", &at::native::permute_sparse_coo);
  m.impl("unsqueeze", &at::native::unsqueeze_sparse);
  // Copies, from and to the host too.
  m.impl("clone", &at::native::clone_sparse);
  m.impl("copy_", &at::native::copy_sparse_wrapper_);
  m.impl("copy_sparse_to_sparse_", &at::native::copy_sparse_);
}

TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_compressed>());
}

}  // namespace
}  // namespace openspyre::device
