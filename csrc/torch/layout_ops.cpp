// torch.ops.openspyre.*: what Python needs to know of a tensor's place on the card.
//
// Private operators behind torch.spyre.layout_of, torch.spyre.empty and the tests.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/jit/serialization/pickler_helper.h>
#include <torch/library.h>

#include <cstring>
#include <sstream>

#include "torch/allocation.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/engine.h"
#include "torch/errors.h"
#include "torch/footprint.h"

namespace openspyre::device {
namespace {

using machine::Layout;

// Held, because what follows may wait for the card without the GIL.
AllocationRef checked(const at::Tensor& self, const char* what) {
  TORCH_CHECK_VALUE(self.is_privateuseone(), what, ": expected a spyre tensor, got one on ",
                    self.device());
  AllocationRef allocation(self);
  TORCH_CHECK_VALUE(allocation, what, ": a tensor of shape ", self.sizes(),
                    " with an empty storage has no place on the card");
  return allocation;
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, std::string, bool>
layout_of_op(const at::Tensor& self) {
  TORCH_CHECK_VALUE(self.is_privateuseone(), "layout_of: expected a spyre tensor, got one on ",
                    self.device());
  const Allocation* empty = allocation_of(self);
  if (empty == nullptr) {
    const Layout layout = guarded([&] {
      return Layout::make({self.sizes().data(), self.sizes().size()},
                          machine::format_for(host_type_of(self.scalar_type()),
                                              card::Runtime::get().numerics().mode));
    });
    return {layout.host_size(), layout.device_size(), layout.stride_map(),
            machine::format_name(layout.format()), false};
  }
  const AllocationRef held = checked(self, "layout_of");
  Allocation& allocation = *held;
  pin(allocation, self);
  const std::shared_ptr<const Layout> layout = layout_of(allocation);
  return {layout->host_size(), layout->device_size(), layout->stride_map(),
          machine::format_name(layout->format()), !allocation.typed};
}

at::Tensor empty_with_layout(c10::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device,
                             c10::IntArrayRef host_size, c10::IntArrayRef device_size,
                             c10::IntArrayRef stride_map) {
  card::Device& on = device_at(device);
  const machine::Format format =
      machine::format_for(host_type_of(dtype), card::Runtime::get().numerics().mode);
  auto layout = guarded([&] {
    return std::make_shared<Layout>(Layout::explicit_map(
        {host_size.data(), host_size.size()}, {device_size.data(), device_size.size()},
        {stride_map.data(), stride_map.size()}, format));
  });
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  TORCH_CHECK_VALUE(numel == layout->numel(), "empty: a layout of ", layout->numel(),
                    " elements (host size ", host_size, ") cannot hold a tensor of ", sizes);
  const auto nbytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes,
      allocate_with_layout(on, dtype, nbytes, std::move(layout)), device_allocator(), true);
  at::Tensor self = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return self;
}

std::vector<int64_t> block_of(const at::Tensor& self) {
  const AllocationRef held = checked(self, "block_of");
  const card::Block& block = *held->block;
  return {block.device,
          static_cast<int64_t>(block.region),
          static_cast<int64_t>(block.offset),
          static_cast<int64_t>(block.size),
          static_cast<int64_t>(block.requested),
          static_cast<int64_t>(block.generation),
          static_cast<int64_t>(block.token_span)};
}

at::Tensor raw_read(const at::Tensor& self) {
  const AllocationRef held = checked(self, "raw_read");
  const Allocation& allocation = *held;
  const card::Block& block = *allocation.block;
  if (block.host == nullptr) {
    guarded(
        [] { throw card::NoBacking("raw_read: the card holds no data (OPENSPYRE_EXECUTE=off)"); });
  }
  at::Tensor bytes = at::empty({static_cast<int64_t>(block.size)}, at::kByte);
  auto* to = static_cast<std::byte*>(bytes.data_ptr());
  run_on_card(
      *allocation.device, card::Engine::D2H, "raw read", bytes.numel(),
      [&] { std::memcpy(to, block.host, block.size); }, touches_all(allocation, false));
  return bytes;
}

// For replaying a recording: the block's bytes as raw_read gave them.
void raw_write(const at::Tensor& self, const at::Tensor& bytes) {
  const AllocationRef held = checked(self, "raw_write");
  const Allocation& allocation = *held;
  const card::Block& block = *allocation.block;
  TORCH_CHECK_VALUE(bytes.device().is_cpu() && bytes.scalar_type() == at::kByte &&
                        bytes.is_contiguous() && bytes.numel() <= static_cast<int64_t>(block.size),
                    "raw_write: wants at most ", block.size, " contiguous uint8 on the CPU, got ",
                    bytes.numel(), " ", bytes.scalar_type(), " on ", bytes.device());
  if (block.host == nullptr) {
    guarded(
        [] { throw card::NoBacking("raw_write: the card holds no data (OPENSPYRE_EXECUTE=off)"); });
  }
  const auto* from = static_cast<const std::byte*>(bytes.const_data_ptr());
  const auto n = static_cast<size_t>(bytes.numel());
  run_on_card(
      *allocation.device, card::Engine::H2D, "raw write", bytes.numel(),
      [&] { std::memcpy(block.host, from, n); }, touches_all(allocation, true));
}

// The whole storage in another layout, in place: all its views see the same values.
void relayout_op(const at::Tensor& self, c10::IntArrayRef host_size, c10::IntArrayRef device_size,
                 c10::IntArrayRef stride_map) {
  const AllocationRef held = checked(self, "relayout_");
  pin(*held, self);
  auto layout = guarded([&] {
    return std::make_shared<Layout>(Layout::explicit_map(
        {host_size.data(), host_size.size()}, {device_size.data(), device_size.size()},
        {stride_map.data(), stride_map.size()}, held->format));
  });
  TORCH_CHECK_VALUE(layout->numel() == held->numel(), "relayout_: a layout of ", layout->numel(),
                    " elements for a storage of ", held->numel());
  relayout_storage(self.storage(), std::move(layout));
}

// PT26: torch.save carries only names of booleans for a backend's metadata, so a layout that is
// not the default one travels inside a name.
constexpr const char* kLayoutKey = "spyre.layout:";

std::string join(const std::vector<int64_t>& values) {
  std::ostringstream out;
  for (size_t i = 0; i < values.size(); ++i) out << (i != 0 ? "," : "") << values[i];
  return out.str();
}

std::vector<int64_t> split(const std::string& text) {
  std::vector<int64_t> values;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) values.push_back(std::stoll(item));
  return values;
}

void save_layout(const at::Tensor& self, std::unordered_map<std::string, bool>& metadata) {
  Allocation* allocation = allocation_of(self);
  if (allocation == nullptr || !allocation->typed) return;
  const std::shared_ptr<const Layout> layout = layout_of(*allocation);
  if (layout->is_default()) return;
  metadata[kLayoutKey + join(layout->host_size()) + "|" + join(layout->device_size()) + "|" +
           join(layout->stride_map())] = true;
}

void load_layout(const at::Tensor& self, std::unordered_map<std::string, bool>& metadata) {
  const size_t prefix = std::strlen(kLayoutKey);
  for (const auto& [key, value] : metadata) {
    if (key.compare(0, prefix, kLayoutKey) != 0) continue;
    const AllocationRef allocation(self);
    if (!allocation) return;
    pin(*allocation, self);
    std::istringstream in(key.substr(prefix));
    std::string host, device, map;
    std::getline(in, host, '|');
    std::getline(in, device, '|');
    std::getline(in, map, '|');
    auto layout = guarded([&] {
      return std::make_shared<Layout>(
          Layout::explicit_map(split(host), split(device), split(map), allocation->format));
    });
    if (layout->numel() == allocation->numel()) relayout_storage(self.storage(), layout);
    return;
  }
}

const bool registered = [] {
  torch::jit::TensorBackendMetaRegistry(kSpyre, &save_layout, &load_layout);
  return true;
}();

TORCH_LIBRARY(openspyre, m) {
  m.def("_layout_of(Tensor self) -> (int[], int[], int[], str, bool)");
  m.def(
      "_empty_with_layout(int[] size, ScalarType dtype, Device device, int[] host_size, "
      "int[] device_size, int[] stride_map) -> Tensor");
  m.def("_block_of(Tensor self) -> int[]");
  m.def("_relayout_(Tensor self, int[] host_size, int[] device_size, int[] stride_map) -> ()");
  m.def("_raw_read(Tensor self) -> Tensor");
  m.def("_raw_write(Tensor(a!) self, Tensor bytes) -> ()");
}
TORCH_LIBRARY_IMPL(openspyre, CompositeExplicitAutograd, m) {
  m.impl("_layout_of", &layout_of_op);
  m.impl("_empty_with_layout", &empty_with_layout);
  m.impl("_block_of", &block_of);
  m.impl("_relayout_", &relayout_op);
  m.impl("_raw_read", &raw_read);
  m.impl("_raw_write", &raw_write);
}

}  // namespace
}  // namespace openspyre::device
