// What a storage of the device owns: the context of its DataPtr.
//
// Note [Layout lives in the allocation]
// A storage has one layout. It is kept in the context of the storage's DataPtr, not in a
// StorageImpl subclass, so that everything that moves a DataPtr between storages (swap_tensors,
// set_data, load_state_dict(assign=True), resize) moves the layout with the bytes that it
// describes.
//
// An allocation is *raw* (its card bytes are the host's bytes) until its first typed use pins a
// dtype and a layout: torch.load, deepcopy and pickle first make dtype-less storages and copy
// through byte views. An access with a dtype of other bits goes through the host image (see
// copy.cpp).
#pragma once

#include <ATen/core/TensorBase.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <memory>
#include <utility>

#include "card/runtime.h"
#include "machine/layout.h"

namespace openspyre::device {

struct Allocation {
  card::Device* device = nullptr;
  card::Block* block = nullptr;
  int64_t host_nbytes = 0;  // storage.nbytes(): the host-linear size
  bool typed = false;
  c10::ScalarType dtype = c10::kByte;
  machine::Format format = machine::Format::HOST_1;
  // Dense shape of the linear element space, kept until the layout is first needed.
  c10::SmallVector<int64_t, 6> sizes, strides;  // no strides: contiguous
  std::shared_ptr<const machine::Layout> layout;
  std::atomic<int> references{1};  // the storage's, and one of each AllocationRef

  int64_t numel() const { return host_nbytes / static_cast<int64_t>(c10::elementSize(dtype)); }
};

// A new typed allocation for a tensor of dense sizes and strides (strides empty: contiguous).
c10::DataPtr allocate_typed(card::Device& device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            c10::ScalarType dtype, int64_t host_nbytes);
// The same with a layout of the caller's choice.
c10::DataPtr allocate_with_layout(card::Device& device, c10::ScalarType dtype, int64_t host_nbytes,
                                  std::shared_ptr<const machine::Layout> layout);
c10::DataPtr allocate_raw(card::Device& device, int64_t host_nbytes);

// The allocation behind a storage; null for a storage of zero bytes. PyTorch also wraps a token as
// an external pointer (storage pickling, DLPack): then `host_offset`, if given, gets the host bytes
// between the allocation's start and the pointer. Anything else raises.
Allocation* allocation_of(const c10::DataPtr& data, int64_t* host_offset = nullptr);
Allocation* allocation_of(const at::TensorBase& tensor, int64_t* host_offset = nullptr);

// Keeps an allocation while a thread works with it: storage.resize_ of another thread then frees it
// later. Work that is already submitted needs no reference: freed blocks rest until the streams
// that were recorded have passed.
class AllocationRef {
 public:
  AllocationRef() = default;
  // The allocation behind a tensor's storage, as allocation_of gives it; empty for zero bytes.
  explicit AllocationRef(const at::TensorBase& tensor, int64_t* host_offset = nullptr);
  AllocationRef(AllocationRef&& other) noexcept
      : allocation_(std::exchange(other.allocation_, nullptr)) {}
  AllocationRef& operator=(AllocationRef&& other) noexcept {
    std::swap(allocation_, other.allocation_);
    return *this;
  }
  AllocationRef(const AllocationRef&) = delete;
  AllocationRef& operator=(const AllocationRef&) = delete;
  ~AllocationRef();
  Allocation* get() const { return allocation_; }
  Allocation* operator->() const { return allocation_; }
  Allocation& operator*() const { return *allocation_; }
  explicit operator bool() const { return allocation_ != nullptr; }

 private:
  Allocation* allocation_ = nullptr;
};

// The layout, built and kept at first need. Thread-safe.
std::shared_ptr<const machine::Layout> layout_of(Allocation& allocation);

// Pins a raw allocation to the dtype (and, where it covers the storage densely, the shape) of
// `tensor`, converting its bytes. No effect on a typed one. Thread-safe.
void pin(Allocation& allocation, const at::TensorBase& tensor);

// The whole storage as host bytes (host_nbytes of them), through the current stream, waited for.
// `layout` is layout_of(allocation), which these two must not take: pin() holds its lock.
void read_image(const Allocation& allocation, const machine::Layout& layout, std::byte* image);
void write_image(const Allocation& allocation, const machine::Layout& layout,
                 const std::byte* image);

// Gives `storage` a new allocation of the same dtype in `layout`, keeping every element. The token
// changes. A copy on the current stream.
void relayout_storage(const c10::Storage& storage, std::shared_ptr<const machine::Layout> layout);

// Steps of the current stream use the block: keeps it from other streams until they ended.
inline void record_use(const Allocation& allocation, card::StreamId stream) {
  if (allocation.block->stream != stream) {
    allocation.device->memory->record_use(allocation.block, stream);
  }
}

// storage.resize_(n) and tensors that grow: keeps the first min(old, new) host bytes.
void resize_storage(const c10::Storage& storage, int64_t new_nbytes);

c10::DeviceAllocator* device_allocator();

}  // namespace openspyre::device
