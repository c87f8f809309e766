// Kernels that make tensors or change where a tensor's storage is: empty, set_, resize_.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include "torch/allocation.h"
#include "torch/current.h"

namespace openspyre::device {
namespace {

at::Tensor make_tensor(c10::DataPtr data, int64_t nbytes, c10::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       std::move(data), device_allocator(),
                                                       /*resizable=*/true);
  return at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided,
              "spyre: only strided tensors live on the card, not ", *layout,
              "; keep sparse tensors on the CPU and move .to_dense()");
  TORCH_CHECK(!pin_memory.value_or(false),
              "spyre: pin_memory=True is for CPU tensors only; a tensor of the card cannot be "
              "pinned. Use torch.empty(..., device=\"cpu\", pin_memory=True)");
}

c10::ScalarType dtype_or_global(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

card::Device& device_or_current(std::optional<c10::Device> device) {
  return device_at(checked_index(device.has_value() ? device->index() : c10::DeviceIndex{-1}));
}

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype_option,
                 std::optional<c10::Layout> layout, std::optional<c10::Device> device_option,
                 std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> memory_format) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  card::Device& device = device_or_current(device_option);
  const c10::ScalarType dtype = dtype_or_global(dtype_option);
  const auto nbytes = static_cast<int64_t>(
      at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype)));
  const c10::MemoryFormat format = memory_format.value_or(c10::MemoryFormat::Contiguous);
  TORCH_CHECK(format != c10::MemoryFormat::Preserve,
              "memory_format torch.preserve_format is only for functions that take a tensor");
  if (format == c10::MemoryFormat::Contiguous) {
    at::Tensor self = make_tensor(allocate_typed(device, sizes, {}, dtype, nbytes), nbytes, dtype);
    if (sizes.size() != 1 || sizes[0] != 0) self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    return self;
  }
  // channels_last: the strides first, then a layout that follows them.
  at::Tensor self = make_tensor(
      c10::DataPtr(nullptr, {kSpyre, static_cast<c10::DeviceIndex>(device.index)}), 0, dtype);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  impl->empty_tensor_restride(format);
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(allocate_typed(device, sizes, impl->strides(), dtype, nbytes));
  storage->set_nbytes(static_cast<size_t>(nbytes));
  return self;
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> dtype_option,
                         std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device_option, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  at::detail::check_size_nonnegative(sizes);
  TORCH_CHECK(sizes.size() == strides.size(), "empty_strided: sizes ", sizes, " and strides ",
              strides, " have different lengths");
  for (const int64_t stride : strides) {
    TORCH_CHECK(stride >= 0, "empty_strided: negative stride in ", strides,
                "; PyTorch has no tensors with negative strides");
  }
  card::Device& device = device_or_current(device_option);
  const c10::ScalarType dtype = dtype_or_global(dtype_option);
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const auto nbytes =
      static_cast<int64_t>(at::detail::computeStorageNbytes(sizes, strides, itemsize));
  at::Tensor self = make_tensor(
      c10::DataPtr(nullptr, {kSpyre, static_cast<c10::DeviceIndex>(device.index)}), 0, dtype);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(sizes, strides);
  c10::DataPtr data;
  if (impl->is_contiguous()) {
    data = allocate_typed(device, sizes, {}, dtype, nbytes);
  } else if (impl->is_non_overlapping_and_dense()) {
    data = allocate_typed(device, sizes, strides, dtype, nbytes);
  } else {
    // Gaps or overlap: the storage's linear space is one dimension.
    data = allocate_typed(device, {nbytes / itemsize}, {}, dtype, nbytes);
  }
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(static_cast<size_t>(nbytes));
  return self;
}

void grow_storage(const at::Tensor& self) {
  const auto needed = static_cast<int64_t>(at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.itemsize(), self.storage_offset()));
  if (self.numel() != 0 && needed > static_cast<int64_t>(self.storage().nbytes())) {
    resize_storage(self.storage(), needed);
  }
}

const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef sizes,
                         std::optional<c10::MemoryFormat> memory_format) {
  at::detail::check_size_nonnegative(sizes);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    const c10::SmallVector<int64_t, 6> old_sizes(self.sizes()), old_strides(self.strides());
    impl->set_sizes_contiguous(sizes);
    try {
      grow_storage(self);
    } catch (...) {
      impl->set_sizes_and_strides(old_sizes, old_strides);  // out of memory: nothing has changed
      throw;
    }
  }
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != c10::MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    impl->empty_tensor_restride(*memory_format);
  }
  return self;
}

at::Tensor& set_source_storage_offset(at::Tensor& self, at::Storage source, int64_t offset,
                                      c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  TORCH_CHECK(source.device() == self.device() || source.device().type() == kSpyre,
              "spyre: set_ needs a storage of the device, got one of ", source.device());
  at::native::checkSetStorage(self, source, offset, sizes, strides);
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  if (strides.data() != nullptr) {
    impl->set_sizes_and_strides(sizes, strides);
  } else {
    impl->set_sizes_contiguous(sizes);
  }
  grow_storage(self);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  const auto numel = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_source_storage_offset(self, std::move(source), 0, {numel}, {});
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_source_storage_offset(self, source.storage(), source.storage_offset(), source.sizes(),
                                   source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                       c10::DataPtr(nullptr, self.device()),
                                                       device_allocator(), true);
  return set_source_storage_offset(self, c10::Storage(std::move(storage)), 0, {0}, {});
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == kSpyre, "spyre: record_stream needs a stream of the device");
  TORCH_CHECK(stream.device() == self.device(), "spyre: record_stream of a tensor on ",
              self.device(), " with a stream of ", stream.device(),
              "; a stream protects memory of its own device only");
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

bool is_set_to(const at::Tensor& self, const at::Tensor& src) {
  return self.storage().unsafeGetStorageImpl() == src.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == src.storage_offset() && self.sizes() == src.sizes() &&
         self.strides() == src.strides();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &set_source_storage);
  m.impl("set_.source_Storage_storage_offset", &set_source_storage_offset);
  m.impl("set_.source_Tensor", &set_source_tensor);
  m.impl("set_", &set_empty);
  m.impl("record_stream", &record_stream);
  m.impl("is_set_to", &is_set_to);
}

}  // namespace
}  // namespace openspyre::device
