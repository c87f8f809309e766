#include "torch/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Storage.h>
#include <torch/library.h>

#include <vector>

#include "machine/transfer.h"
#include "torch/allocation.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/engine.h"
#include "torch/errors.h"
#include "torch/fallback.h"
#include "torch/footprint.h"
#include "torch/host_allocator.h"
#include "torch/native_ops.h"
#include "torch/op_scope.h"

// Three kinds of access to a storage:
//  - in place: the tensor's dtype has the bits of the storage's, or is float32 on a 16-bit storage;
//  - raw: the storage has no dtype yet; a typed access pins one, a byte access does not;
//  - through the host image: any other dtype. The whole storage is decoded to host bytes, viewed,
//    and written back when it was written to.

namespace openspyre::device {
namespace {

using machine::Dims;
using machine::HostType;
using machine::Layout;

Dims dims(c10::IntArrayRef array) { return {array.data(), array.size()}; }

std::vector<int64_t> contiguous_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= sizes[d];
  }
  return strides;
}

struct Place {
  AllocationRef allocation;
  std::shared_ptr<const Layout> layout;
  int64_t offset;  // of the tensor's first element in the storage's linear element space
  bool through_image;
};

// A storage may have been shrunk below its tensors. Checked before anything is submitted: an error
// of the stream itself would refuse all its later work.
void check_inside(const Allocation& allocation, const at::Tensor& tensor, int64_t offset) {
  int64_t end = offset;
  bool fits = offset >= 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    int64_t span = 0;
    fits &= !__builtin_mul_overflow(tensor.size(d) - 1, tensor.stride(d), &span) &&
            !__builtin_add_overflow(end, span, &end);
  }
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  TORCH_CHECK(fits && end < allocation.host_nbytes / itemsize, "spyre: a tensor of shape ",
              tensor.sizes(), ", strides ", tensor.strides(), ", offset ", offset, " and dtype ",
              tensor.scalar_type(), " reaches outside its storage of ", allocation.host_nbytes,
              " bytes; was the storage resized?");
}

// Where a non-empty spyre tensor lies, for an access as `dtype`.
Place place_of(const at::Tensor& tensor) {
  if (C10_UNLIKELY(card::Runtime::get().in_forked_child())) {
    device_at(tensor.device());  // raises: the card belongs to the parent
  }
  int64_t host_offset = 0;
  AllocationRef allocation(tensor, &host_offset);
  TORCH_CHECK(allocation, "spyre: a tensor of ", tensor.sizes(), " ", tensor.scalar_type(),
              " has a storage of zero bytes");
  const c10::ScalarType dtype = tensor.scalar_type();
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(host_offset % itemsize == 0, "spyre: a tensor of ", dtype, " at byte ", host_offset,
              " of its storage is not aligned to its elements");
  const int64_t offset = tensor.storage_offset() + host_offset / itemsize;
  check_inside(*allocation, tensor, offset);
  pin(*allocation, tensor);
  const bool in_place =
      allocation->typed ? same_bits(dtype, allocation->dtype, card::Runtime::get().numerics().mode)
                        : c10::elementSize(dtype) == 1;
  record_use(*allocation, current_stream(allocation->device->index));
  std::shared_ptr<const Layout> layout = layout_of(*allocation);
  return {std::move(allocation), std::move(layout), offset, !in_place};
}

HostType access_type(const Place& place, c10::ScalarType dtype) {
  if (!place.allocation->typed) return HostType::RAW1;
  // An access with another dtype of the same bits moves them as they are.
  return host_type_of(dtype == place.allocation->dtype ? dtype : place.allocation->dtype);
}

int64_t card_bytes(const at::Tensor& tensor, const Layout& layout) {
  return tensor.numel() * machine::format_bytes(layout.format());
}

Accesses touches(const Place& place, const at::Tensor& tensor, bool write) {
  return touches(*place.allocation, *place.layout, place.offset, tensor.sizes(), tensor.strides(),
                 write);
}

void check_readable(const Place& place, const at::Tensor& tensor) {
  if (place.allocation->block->host != nullptr) return;
  guarded([&] {
    throw card::NoBacking(
        std::string(OpScope::current()) +
        ": the card holds no data to read for a tensor of shape " +
        c10::str(tensor.sizes(), " ", tensor.scalar_type()) +
        ", because execution is off (OPENSPYRE_EXECUTE=off gives addresses and times only). "
        "Set OPENSPYRE_EXECUTE=on to compute.");
  });
}

// A CPU view with the geometry of `tensor` on an image of its storage.
at::Tensor view_of_image(const at::Tensor& image, const at::Tensor& tensor, int64_t offset) {
  auto* data = static_cast<char*>(image.data_ptr()) + offset * tensor.itemsize();
  return at::from_blob(data, tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor byte_image(const Place& place) {
  return at::empty({place.allocation->host_nbytes}, at::TensorOptions().dtype(at::kByte));
}

std::byte* bytes_of(const at::Tensor& image) { return static_cast<std::byte*>(image.data_ptr()); }

// Card -> host. `host` is a CPU tensor of the same sizes, of the tensor's dtype or float32.
void read(const at::Tensor& self, const at::Tensor& host, bool non_blocking) {
  if (self.numel() == 0) return;
  const Place place = place_of(self);
  check_readable(place, self);
  if (host.scalar_type() != self.scalar_type() && place.allocation->dtype != self.scalar_type()) {
    // A 16-bit view of a storage of another dtype is decoded as what it is first.
    const_cast<at::Tensor&>(host).copy_(to_host(self));
    return;
  }
  if (place.through_image) {
    const at::Tensor image = byte_image(place);
    read_image(*place.allocation, *place.layout, bytes_of(image));
    const_cast<at::Tensor&>(host).copy_(view_of_image(image, self, place.offset));
    return;
  }
  const Allocation& allocation = *place.allocation;
  card::Device& device = *allocation.device;
  const HostType type = host.scalar_type() == self.scalar_type()
                            ? access_type(place, self.scalar_type())
                            : host_type_of(host.scalar_type());
  const machine::Numerics numerics = card::Runtime::get().numerics();
  const int64_t bytes = card_bytes(self, *place.layout);
  void* destination = host.data_ptr();
  // The host allocator keeps the pinned block until this stream has passed: no reference needed.
  if (non_blocking && is_pinned(host) &&
      record_pinned_use(host, current_stream(device.index), device.index)) {
    submit_to_card(
        device, card::Engine::D2H, "to host", bytes,
        [base = allocation.block->host, layout = place.layout, numerics, destination, type,
         offset = place.offset, sizes = self.sizes().vec(), strides = self.strides().vec(),
         host_strides = host.strides().vec()] {
          machine::card_to_host(base, *layout, {offset, strides}, destination, type, sizes,
                                host_strides, numerics);
        },
        touches(place, self, false));
    return;
  }
  run_on_card(
      device, card::Engine::D2H, "to host", bytes,
      [&] {
        machine::card_to_host(allocation.block->host, *place.layout,
                              {place.offset, dims(self.strides())}, destination, type,
                              dims(self.sizes()), dims(host.strides()), numerics);
      },
      touches(place, self, false));
}

// Host -> card. `host` is a CPU tensor of the same sizes, of the tensor's dtype or float32.
void write(const at::Tensor& host, const at::Tensor& self, bool non_blocking) {
  if (self.numel() == 0) return;
  at::assert_no_internal_overlap(self);
  const Place place = place_of(self);
  if (host.scalar_type() != self.scalar_type() && place.allocation->dtype != self.scalar_type()) {
    write(host.to(self.scalar_type()), self, non_blocking);
    return;
  }
  const Allocation& allocation = *place.allocation;
  card::Device& device = *allocation.device;
  const machine::Numerics numerics = card::Runtime::get().numerics();
  const int64_t bytes = card_bytes(self, *place.layout);
  if (allocation.block->host == nullptr) {  // execute=off: the time passes, no byte moves
    submit_to_card(device, card::Engine::H2D, "to card", bytes, {}, touches(place, self, true));
    return;
  }
  if (place.through_image) {
    const at::Tensor image = byte_image(place);
    read_image(allocation, *place.layout, bytes_of(image));
    view_of_image(image, self, place.offset).copy_(host);
    write_image(allocation, *place.layout, bytes_of(image));
    return;
  }
  const HostType type = host.scalar_type() == self.scalar_type()
                            ? access_type(place, self.scalar_type())
                            : host_type_of(host.scalar_type());
  const void* source = host.data_ptr();
  if (non_blocking) {
    // The caller converts into staging, so that the source may be reused at once; the engine only
    // moves codes into the layout.
    auto staging = std::make_shared<std::vector<std::byte>>();
    auto linear = std::make_shared<Layout>(Layout::linear(self.numel(), place.layout->format()));
    staging->resize(static_cast<size_t>(linear->nbytes()));
    const std::vector<int64_t> dense = contiguous_strides(self.sizes());
    machine::host_to_card(source, type, dims(host.sizes()), dims(host.strides()), staging->data(),
                          *linear, {0, dense}, numerics);
    submit_to_card(
        device, card::Engine::H2D, "to card", bytes,
        [base = allocation.block->host, layout = place.layout, staging, linear, dense,
         offset = place.offset, sizes = self.sizes().vec(), strides = self.strides().vec()] {
          machine::card_to_card(staging->data(), *linear, {0, dense}, base, *layout,
                                {offset, strides}, sizes);
        },
        touches(place, self, true));
    return;
  }
  run_on_card(
      device, card::Engine::H2D, "to card", bytes,
      [&] {
        machine::host_to_card(source, type, dims(host.sizes()), dims(host.strides()),
                              allocation.block->host, *place.layout,
                              {place.offset, dims(self.strides())}, numerics);
      },
      touches(place, self, true));
}

// Card -> card on one device, same dtype.
void move(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return;
  at::assert_no_internal_overlap(dst);
  const Place from = place_of(src), to = place_of(dst);
  const bool whole_codes =
      !from.through_image && !to.through_image && from.layout->format() == to.layout->format();
  const bool other_card = from.allocation->device != to.allocation->device;
  // Overlapping regions of one storage, two devices and host images go through the host, in order.
  const bool shared = from.allocation.get() == to.allocation.get();
  if (!whole_codes || other_card || shared) {
    const bool readable = from.allocation->block->host != nullptr;
    const at::Tensor host = at::empty(src.sizes(), src.options().device(at::kCPU));
    if (readable) read(src, host, false);
    write(host, dst, false);
    return;
  }
  card::Device& device = *to.allocation->device;
  const int64_t bytes = card_bytes(dst, *to.layout);
  std::function<void()> work;
  if (to.allocation->block->host != nullptr) {
    work = [source = from.allocation->block->host, source_layout = from.layout,
            source_offset = from.offset, source_strides = src.strides().vec(),
            base = to.allocation->block->host, layout = to.layout, offset = to.offset,
            strides = dst.strides().vec(), sizes = dst.sizes().vec()] {
      machine::card_to_card(source, *source_layout, {source_offset, source_strides}, base, *layout,
                            {offset, strides}, sizes);
    };
  }
  // On one stream the order is kept without waiting, as on any accelerator.
  (void)non_blocking;
  submit_to_card(device, card::Engine::Compute, "card to card", bytes, std::move(work),
                 both(touches(from, src, false), touches(to, dst, true)));
}

// Same sizes; one side or both on the device.
void copy_same_dtype(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (src.is_cpu()) {
    write(src, dst, non_blocking);
  } else if (dst.is_cpu()) {
    at::assert_no_internal_overlap(dst);
    read(src, dst, non_blocking);
  } else {
    move(src, dst, non_blocking);
  }
}

// `tensor` with its expanded dimensions narrowed to one element, and whether there were any.
std::pair<at::Tensor, bool> without_expansion(const at::Tensor& tensor) {
  c10::SmallVector<int64_t, 6> narrow(tensor.sizes().begin(), tensor.sizes().end());
  bool expanded = false;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) == 0 && tensor.size(d) > 1) {
      narrow[d] = 1;
      expanded = true;
    }
  }
  if (!expanded) return {tensor, false};
  return {tensor.as_strided(narrow, tensor.strides(), tensor.storage_offset()), true};
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.is_cpu() || self.is_privateuseone(), "spyre: cannot copy from ", self.device(),
              " to ", dst.device(), "; copy through the CPU: tensor.cpu().to(\"", dst.device(),
              "\")");
  TORCH_CHECK(dst.is_cpu() || dst.is_privateuseone(), "spyre: cannot copy from ", self.device(),
              " to ", dst.device(), "; copy through the CPU");
  at::Tensor src = self.sizes() == dst.sizes() ? self : self.expand(dst.sizes());
  if (dst.numel() == 0) return dst;
  // Lazy conjugates and negatives are resolved on the host: the card has no complex unit.
  const bool lazy = src.is_conj() || src.is_neg() || dst.is_conj() || dst.is_neg();
  if (!lazy && src.scalar_type() == dst.scalar_type()) {
    copy_same_dtype(src, dst, non_blocking);
    return dst;
  }
  if (src.is_privateuseone() && dst.is_privateuseone()) {
    // A cast on the card is a computation.
    if (!lazy && call_native("aten::copy_", "", {dst, src, non_blocking})) return dst;
    FallbackScope scope("aten::copy_", {src});
    scope.moved_to_device(dst);
    const at::Tensor host = to_host(src).resolve_conj().resolve_neg().to(dst.scalar_type());
    from_host(host, dst);
    return dst;
  }
  if (src.is_privateuseone()) {
    const_cast<at::Tensor&>(dst).copy_(to_host(src));
    return dst;
  }
  from_host(src.to(dst.scalar_type()), dst);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(),
              " elements cannot be converted to Scalar");
  return to_host(self).item();
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) return self;
  // As on the CPU, an expanded tensor may be filled: its elements are written once.
  if (const auto [source, expanded] = without_expansion(self); expanded) {
    at::Tensor narrow = source;
    fill_scalar(narrow, value);
    return self;
  }
  const at::Tensor one = at::empty({}, self.options().device(at::kCPU)).fill_(value);
  const Place place = place_of(self);
  const Allocation& allocation = *place.allocation;
  if (place.through_image) {
    from_host(one.expand(self.sizes()), self);
    return self;
  }
  // The DMA's memset: one code, written to every element of the view.
  std::array<std::byte, 16> code{};
  machine::encode(access_type(place, self.scalar_type()), place.layout->format(), one.data_ptr(),
                  code.data(), 1, card::Runtime::get().numerics());
  std::function<void()> work;
  if (allocation.block->host != nullptr) {
    work = [base = allocation.block->host, layout = place.layout, code, offset = place.offset,
            sizes = self.sizes().vec(), strides = self.strides().vec()] {
      machine::fill(base, *layout, {offset, strides}, sizes, code.data());
    };
  }
  OpScope scope("aten::fill_");
  submit_to_card(*allocation.device, card::Engine::H2D, "memset", card_bytes(self, *place.layout),
                 std::move(work), touches(place, self, true));
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  return fill_scalar(self, value.item());
}

at::Tensor& zero(at::Tensor& self) { return fill_scalar(self, 0); }

}  // namespace

at::Tensor to_host(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  const auto options = at::TensorOptions().dtype(type);
  const auto [source, expanded] = without_expansion(self);  // expanded dimensions are read once
  at::Tensor host =
      source.is_contiguous()
          ? at::empty(source.sizes(), options)
          : at::empty_strided(source.sizes(),
                              source.is_non_overlapping_and_dense()
                                  ? source.strides().vec()
                                  : at::infer_dense_strides(source.sizes(), source.strides()),
                              options);
  read(source, host, false);
  if (expanded) host = host.expand(self.sizes());
  if (self.is_conj()) host._set_conj(true);
  if (self.is_neg()) host._set_neg(true);
  return host;
}

void from_host(const at::Tensor& host, const at::Tensor& self) {
  at::Tensor source = host.resolve_conj().resolve_neg();
  if (self.is_conj()) source = source.conj().resolve_conj();
  if (self.is_neg()) source = source.neg();
  write(source, self, false);
}

at::Tensor to_device(const at::Tensor& host, c10::Device device,
                     std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(host.scalar_type());
  const auto options = at::TensorOptions().dtype(type).device(device);
  at::Tensor self =
      host.is_contiguous()
          ? at::empty(host.sizes(), options)
          : at::empty_strided(host.sizes(),
                              host.is_non_overlapping_and_dense()
                                  ? host.strides().vec()
                                  : at::infer_dense_strides(host.sizes(), host.strides()),
                              options);
  from_host(host, self);
  return self;
}

}  // namespace openspyre::device

namespace {

using namespace openspyre::device;

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero);
}

// PT1: without these two a copy of a conjugate or negative tensor recurses until the stack ends.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
