#include "torch/allocation.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "machine/transfer.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/engine.h"
#include "torch/errors.h"
#include "torch/footprint.h"
#include "torch/interrupt.h"

namespace openspyre::device {
namespace {

using machine::Layout;

// Pinning and building layouts is rare; a few shared locks keep Allocation small. Recursive: a new
// home may need the garbage collector, whose finalizers may use other tensors of the same stripe.
std::recursive_mutex& stripe(const Allocation& allocation) {
  static auto* locks = new std::array<std::recursive_mutex, 16>();
  return (*locks)[(reinterpret_cast<uintptr_t>(&allocation) >> 6) % locks->size()];
}

// Whoever holds a stripe may wait for a stream, and that wait asks Python for signals: a thread
// that waits for the stripe must not keep the GIL meanwhile.
std::unique_lock<std::recursive_mutex> lock_stripe(const Allocation& allocation) {
  std::unique_lock<std::recursive_mutex> lock(stripe(allocation), std::try_to_lock);
  if (!lock.owns_lock()) {
    WithoutGil released;
    lock.lock();
  }
  return lock;
}

void report_usage(const Allocation& allocation, int64_t bytes) {
  if (C10_LIKELY(!c10::memoryProfilingEnabled())) return;
  const card::MemoryStats stats = allocation.device->memory->stats();
  c10::reportMemoryUsageToProfiler(
      allocation.block->token, bytes,
      static_cast<size_t>(stats.allocated_bytes[card::kAggregate].current),
      static_cast<size_t>(stats.reserved_bytes[card::kAggregate].current),
      c10::Device(kSpyre, static_cast<c10::DeviceIndex>(allocation.device->index)));
}

// Held shared while a reference is taken from a storage, alone while a storage gets another
// allocation: who reads the pointer finds it alive.
std::shared_mutex& swaps() {
  static auto* lock = new std::shared_mutex();
  return *lock;
}

// Puts `data` of `nbytes` into the storage; the old allocation goes when nobody holds it.
void exchange_data(c10::StorageImpl& storage, c10::DataPtr data, int64_t nbytes) {
  c10::DataPtr old;  // released behind the lock
  const std::unique_lock<std::shared_mutex> lock(swaps());
  old = std::move(storage._mutable_data_ptr_no_checks());
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(static_cast<size_t>(nbytes));
}

void release(void* context) {
  auto* allocation = static_cast<Allocation*>(context);
  if (allocation->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // In a forked child the parent's locks may be held for ever: the card is not ours any more.
  if (!card::Runtime::get().in_forked_child()) {
    report_usage(*allocation, -static_cast<int64_t>(allocation->block->size));
    allocation->device->streams->forget_block(allocation->block->token);
    allocation->device->memory->free(allocation->block);
  }
  delete allocation;
}

std::unique_ptr<Allocation> take_block(card::Device& device, int64_t card_bytes,
                                       int64_t token_span) {
  auto allocation = std::make_unique<Allocation>();
  allocation->device = &device;
  const auto bytes = static_cast<uint64_t>(std::max<int64_t>(card_bytes, 1));
  try {
    allocation->block = device.memory->allocate(
        bytes, std::max(bytes, static_cast<uint64_t>(token_span)), current_stream(device.index));
  } catch (const card::OutOfMemory&) {
    const card::MemoryStats stats = device.memory->stats();
    c10::reportOutOfMemoryToProfiler(
        static_cast<int64_t>(bytes),
        static_cast<size_t>(stats.allocated_bytes[card::kAggregate].current),
        static_cast<size_t>(stats.reserved_bytes[card::kAggregate].current),
        c10::Device(kSpyre, static_cast<c10::DeviceIndex>(device.index)));
    rethrow_for_torch();
  } catch (...) {
    rethrow_for_torch();
  }
  return allocation;
}

c10::DataPtr wrap(std::unique_ptr<Allocation> allocation) {
  report_usage(*allocation, static_cast<int64_t>(allocation->block->size));
  const c10::Device device(kSpyre, static_cast<c10::DeviceIndex>(allocation->device->index));
  void* token = allocation->block->token;
  allocation->block->owner = allocation.get();
  return {token, allocation.release(), &release, device};
}

void poison_if_asked(Allocation& allocation) {
  if (!card::Runtime::get().config().poison_pads || allocation.block->host == nullptr) return;
  std::shared_ptr<const Layout> layout = layout_of(allocation);
  run_on_card(*allocation.device, card::Engine::Compute, "poison pads", 0,
              [base = allocation.block->host, layout = std::move(layout)] {
                machine::poison_pads(base, *layout);
              });
}

c10::DataPtr no_bytes(const card::Device& device) {
  return {nullptr, c10::Device(kSpyre, static_cast<c10::DeviceIndex>(device.index))};
}

Layout build_layout(const Allocation& allocation) {
  if (!allocation.typed) return Layout::linear(allocation.host_nbytes, machine::Format::HOST_1);
  if (allocation.strides.empty()) return Layout::make(allocation.sizes, allocation.format);
  return Layout::for_strided(allocation.sizes, allocation.strides, allocation.format);
}

// Bytes behind the last whole element of a storage that was made untyped; kept in one more stick.
int64_t tail_bytes(const Allocation& allocation) {
  return allocation.host_nbytes % static_cast<int64_t>(c10::elementSize(allocation.dtype));
}

}  // namespace

std::shared_ptr<const Layout> layout_of(Allocation& allocation) {
  const std::unique_lock<std::recursive_mutex> lock = lock_stripe(allocation);
  if (!allocation.layout) allocation.layout = std::make_shared<Layout>(build_layout(allocation));
  return allocation.layout;
}

c10::DataPtr allocate_typed(card::Device& device, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                            c10::ScalarType dtype, int64_t host_nbytes) {
  if (host_nbytes == 0) return no_bytes(device);
  const machine::Format format =
      machine::format_for(host_type_of(dtype), card::Runtime::get().numerics().mode);
  int64_t card_bytes = 0;
  std::shared_ptr<const Layout> layout;
  if (strides.empty()) {
    card_bytes = Layout::default_nbytes({sizes.data(), sizes.size()}, format);
  } else {
    layout = guarded([&] {
      return std::make_shared<Layout>(Layout::for_strided(
          {sizes.data(), sizes.size()}, {strides.data(), strides.size()}, format));
    });
    card_bytes = layout->nbytes();
  }
  std::unique_ptr<Allocation> allocation = take_block(device, card_bytes, host_nbytes);
  allocation->host_nbytes = host_nbytes;
  allocation->typed = true;
  allocation->dtype = dtype;
  allocation->format = format;
  allocation->sizes.assign(sizes.begin(), sizes.end());
  allocation->strides.assign(strides.begin(), strides.end());
  allocation->layout = std::move(layout);
  c10::DataPtr data = wrap(std::move(allocation));
  poison_if_asked(*static_cast<Allocation*>(data.get_context()));
  return data;
}

c10::DataPtr allocate_with_layout(card::Device& device, c10::ScalarType dtype, int64_t host_nbytes,
                                  std::shared_ptr<const Layout> layout) {
  if (host_nbytes == 0) return no_bytes(device);
  std::unique_ptr<Allocation> allocation = take_block(device, layout->nbytes(), host_nbytes);
  allocation->host_nbytes = host_nbytes;
  allocation->typed = true;
  allocation->dtype = dtype;
  allocation->format = layout->format();
  allocation->layout = std::move(layout);
  c10::DataPtr data = wrap(std::move(allocation));
  poison_if_asked(*static_cast<Allocation*>(data.get_context()));
  return data;
}

c10::DataPtr allocate_raw(card::Device& device, int64_t host_nbytes) {
  if (host_nbytes == 0) return no_bytes(device);
  // Twice the host bytes of token: a raw storage of bools takes two bytes each once it is pinned.
  std::unique_ptr<Allocation> allocation =
      take_block(device, host_nbytes, 2 * host_nbytes + 2 * machine::kStickBytes);
  allocation->host_nbytes = host_nbytes;
  return wrap(std::move(allocation));
}

Allocation* allocation_of(const c10::DataPtr& data, int64_t* host_offset) {
  if (data.get() == nullptr) return nullptr;
  if (C10_LIKELY(data.get_deleter() == &release)) {
    return static_cast<Allocation*>(data.get_context());
  }
  const card::Block* block = card::TokenSpace::get().find(data.get());
  TORCH_CHECK(block != nullptr && block->owner != nullptr, "spyre: ", data.get(),
              " is not an address of the card, or its storage has been freed; only tensors made on "
              "the device can be used");
  const int64_t offset =
      static_cast<const char*>(data.get()) - static_cast<const char*>(block->token);
  TORCH_CHECK(host_offset != nullptr || offset == 0, "spyre: ", data.get(),
              " points into the middle of a storage; this operation needs its start");
  if (host_offset != nullptr) *host_offset = offset;
  return static_cast<Allocation*>(block->owner);
}

Allocation* allocation_of(const at::TensorBase& tensor, int64_t* host_offset) {
  return allocation_of(tensor.unsafeGetTensorImpl()->unsafe_storage().data_ptr(), host_offset);
}

AllocationRef::AllocationRef(const at::TensorBase& tensor, int64_t* host_offset) {
  const std::shared_lock<std::shared_mutex> lock(swaps());
  allocation_ = allocation_of(tensor, host_offset);
  if (allocation_ != nullptr) allocation_->references.fetch_add(1, std::memory_order_relaxed);
}

AllocationRef::~AllocationRef() {
  if (allocation_ != nullptr) release(allocation_);
}

void read_image(const Allocation& allocation, const Layout& layout, std::byte* image) {
  const std::byte* base = allocation.block->host;
  if (base == nullptr) return;  // execute=off moves no bytes
  const machine::Numerics numerics = card::Runtime::get().numerics();
  const int64_t sizes[] = {allocation.typed ? allocation.numel() : allocation.host_nbytes};
  const int64_t strides[] = {1};
  const machine::HostType type =
      allocation.typed ? host_type_of(allocation.dtype) : machine::HostType::RAW1;
  run_on_card(
      *allocation.device, card::Engine::D2H, "host image", allocation.host_nbytes,
      [&] {
        machine::card_to_host(base, layout, {0, strides}, image, type, sizes, strides, numerics);
        if (const int64_t tail = allocation.typed ? tail_bytes(allocation) : 0) {
          std::memcpy(image + allocation.host_nbytes - tail, base + layout.nbytes(), tail);
        }
      },
      touches_all(allocation, false));
}

void write_image(const Allocation& allocation, const Layout& layout, const std::byte* image) {
  std::byte* base = allocation.block->host;
  if (base == nullptr) return;
  const machine::Numerics numerics = card::Runtime::get().numerics();
  const int64_t sizes[] = {allocation.typed ? allocation.numel() : allocation.host_nbytes};
  const int64_t strides[] = {1};
  const machine::HostType type =
      allocation.typed ? host_type_of(allocation.dtype) : machine::HostType::RAW1;
  run_on_card(
      *allocation.device, card::Engine::H2D, "host image", allocation.host_nbytes,
      [&] {
        machine::host_to_card(image, type, sizes, strides, base, layout, {0, strides}, numerics);
        if (const int64_t tail = allocation.typed ? tail_bytes(allocation) : 0) {
          std::memcpy(base + layout.nbytes(), image + allocation.host_nbytes - tail, tail);
        }
      },
      touches_all(allocation, true));
}

namespace {

std::vector<std::byte> image_of(const Allocation& allocation, const Layout& layout) {
  std::vector<std::byte> image(static_cast<size_t>(allocation.host_nbytes));
  read_image(allocation, layout, image.data());
  return image;
}

// Gives `allocation` a new layout (and block size) and the same host image. The lock is held.
void rehome(Allocation& allocation, std::shared_ptr<const Layout> old_layout, bool typed,
            c10::ScalarType dtype, std::shared_ptr<const Layout> layout) {
  const std::vector<std::byte> image = image_of(allocation, *old_layout);
  const int64_t tail = allocation.host_nbytes % static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t bytes = layout->nbytes() + (tail != 0 ? machine::kStickBytes : 0);
  record_use(allocation, current_stream(allocation.device->index));
  guarded([&] {
    allocation.device->memory->rehome(allocation.block,
                                      static_cast<uint64_t>(std::max<int64_t>(bytes, 1)));
  });
  allocation.typed = typed;
  allocation.dtype = dtype;
  allocation.format = layout->format();
  allocation.layout = std::move(layout);
  allocation.sizes.clear();
  allocation.strides.clear();
  write_image(allocation, *allocation.layout, image.data());
}

}  // namespace

void pin(Allocation& allocation, const at::TensorBase& tensor) {
  const c10::ScalarType dtype = tensor.scalar_type();
  const std::unique_lock<std::recursive_mutex> lock = lock_stripe(allocation);
  if (allocation.typed) return;
  // uint8 is the dtype of byte views: it reads raw bytes as they are and decides nothing.
  if (dtype == c10::kByte) return;
  const machine::Format format =
      machine::format_for(host_type_of(dtype), card::Runtime::get().numerics().mode);
  const int64_t numel = allocation.host_nbytes / static_cast<int64_t>(c10::elementSize(dtype));
  if (numel == 0) return;
  auto layout = std::make_shared<Layout>();
  const bool whole = tensor.storage_offset() == 0 && tensor.numel() == numel && tensor.dim() > 0 &&
                     tensor.is_non_overlapping_and_dense();
  if (whole) {
    const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
    *layout = tensor.is_contiguous()
                  ? Layout::make({sizes.data(), sizes.size()}, format)
                  : Layout::for_strided({sizes.data(), sizes.size()},
                                        {strides.data(), strides.size()}, format);
  }
  // The token stays, so the block must fit in its span; one dimension always does.
  if (!whole || static_cast<uint64_t>(layout->nbytes() + machine::kStickBytes) >
                    allocation.block->token_span) {
    *layout = Layout::linear(numel, format);
  }
  auto raw =
      std::make_shared<Layout>(Layout::linear(allocation.host_nbytes, machine::Format::HOST_1));
  rehome(allocation, std::move(raw), true, dtype, std::move(layout));
}

namespace {

// The allocation of a storage while this thread waits for its bytes, as AllocationRef for a tensor.
struct HeldStorage {
  explicit HeldStorage(const c10::StorageImpl& storage) {
    const std::shared_lock<std::shared_mutex> lock(swaps());
    allocation = allocation_of(storage.data_ptr());
    if (allocation != nullptr) allocation->references.fetch_add(1, std::memory_order_relaxed);
  }
  ~HeldStorage() {
    if (allocation != nullptr) release(allocation);
  }
  HeldStorage(const HeldStorage&) = delete;
  HeldStorage& operator=(const HeldStorage&) = delete;
  Allocation* allocation = nullptr;
};

}  // namespace

void relayout_storage(const c10::Storage& storage, std::shared_ptr<const Layout> layout) {
  const HeldStorage held(*storage.unsafeGetStorageImpl());
  Allocation* old = held.allocation;
  if (old == nullptr) return;
  // A copy on the card: codes stay as they are, which the host's dtype could not hold; and the old
  // block is freed in the order of the stream.
  const at::AutoDispatchBelowADInplaceOrView below;
  const int64_t nbytes = old->host_nbytes;
  const c10::Storage fresh(
      c10::Storage::use_byte_size_t(), nbytes,
      allocate_with_layout(*old->device, old->dtype, nbytes, std::move(layout)));
  const auto whole = [&](const c10::Storage& of) {
    const auto options = at::TensorOptions().dtype(old->dtype).device(storage.device());
    return at::empty({0}, options).set_(of, 0, {old->numel()}, {1});
  };
  whole(fresh).copy_(whole(storage), /*non_blocking=*/true);
  exchange_data(*storage.unsafeGetStorageImpl(),
                std::move(fresh.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()), nbytes);
}

void resize_storage(const c10::Storage& storage, int64_t new_nbytes) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "Trying to resize storage that is not resizable");
  const auto old_nbytes = static_cast<int64_t>(impl->nbytes());
  if (old_nbytes == new_nbytes) return;
  card::Device& device = device_at(impl->device());
  const HeldStorage held(*impl);
  Allocation* old = held.allocation;
  if (old == nullptr || new_nbytes == 0) {
    exchange_data(*impl, allocate_raw(device, new_nbytes), new_nbytes);
    return;
  }
  std::vector<std::byte> image = image_of(*old, *layout_of(*old));
  image.resize(static_cast<size_t>(new_nbytes));
  const auto itemsize = static_cast<int64_t>(c10::elementSize(old->dtype));
  c10::DataPtr data;
  if (old->typed && new_nbytes % itemsize == 0) {
    const int64_t numel = new_nbytes / itemsize;
    data = allocate_typed(device, {numel}, {}, old->dtype, new_nbytes);
  } else {
    data = allocate_raw(device, new_nbytes);
  }
  Allocation& fresh = *allocation_of(data);
  write_image(fresh, *layout_of(fresh), image.data());
  exchange_data(*impl, std::move(data), new_nbytes);
}

// ---------------------------------------------------------------------------------------------

namespace {

c10::CachingAllocator::StatArray convert(const std::array<card::Stat, card::kStatPools>& from) {
  c10::CachingAllocator::StatArray to;
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].current = from[i].current;
    to[i].peak = from[i].peak;
    to[i].allocated = from[i].allocated;
    to[i].freed = from[i].freed;
  }
  return to;
}

// The adapter that PyTorch sees. It holds no state: card::DeviceMemory does.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    return allocate_raw(device_at(current_device()), static_cast<int64_t>(n));
  }
  // Data and context differ, so raw_allocate is refused by the base class.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false,
                "spyre: Allocator::clone copies without a stream or a layout; use Tensor.clone()");
  }
  bool initialized() override { return card::Runtime::get().started(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!initialized()) return;
    for (int i = 0; i < card::Runtime::get().device_count(); ++i) {
      card::Device& device = device_at(i);
      // Queued work may still touch freed places of its own stream: their regions must not go to
      // another function of the card before it has ended. A failed stream keeps its error.
      try {
        interruptible([&](const std::function<bool()>& interrupt) {
          device.streams->synchronize_all(interrupt);
        });
      } catch (const card::StreamFailure&) {
      }
      guarded([&] { device.memory->empty_cache(); });
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Allocation* allocation = allocation_of(data);
    if (allocation == nullptr) return;
    allocation->device->memory->record_use(allocation->block, static_cast<int>(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    const card::MemoryStats from = memory(index).stats();
    c10::CachingDeviceAllocator::DeviceStats to;
    to.allocation = convert(from.allocation);
    to.segment = convert(from.segment);
    to.active = convert(from.active);
    to.inactive_split = convert(from.inactive_split);
    to.allocated_bytes = convert(from.allocated_bytes);
    to.reserved_bytes = convert(from.reserved_bytes);
    to.active_bytes = convert(from.active_bytes);
    to.inactive_split_bytes = convert(from.inactive_split_bytes);
    to.requested_bytes = convert(from.requested_bytes);
    to.num_alloc_retries = from.num_alloc_retries;
    to.num_ooms = from.num_ooms;
    to.num_sync_all_streams = from.num_sync_all_streams;
    to.num_device_alloc = from.num_device_alloc;
    to.num_device_free = from.num_device_free;
    return to;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    memory(index).reset_accumulated_stats();
  }
  void resetPeakStats(c10::DeviceIndex index) override { memory(index).reset_peak_stats(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const card::MemoryInfo info = memory(index).info();
    return {info.free, info.total};
  }

 private:
  static card::DeviceMemory& memory(c10::DeviceIndex index) {
    return *device_at(checked_index(index)).memory;
  }
};

c10::intrusive_ptr<c10::StorageImpl> make_storage(c10::StorageImpl::use_byte_size_t tag,
                                                  c10::SymInt size_bytes, c10::DataPtr data_ptr,
                                                  c10::Allocator* allocator, bool resizable) {
  // make_storage_impl hands over an empty DataPtr when nothing was allocated yet.
  if (data_ptr.get() == nullptr) {
    const int64_t nbytes = size_bytes.expect_int();
    data_ptr = allocator->allocate(static_cast<size_t>(nbytes));
  }
  return c10::make_intrusive<c10::StorageImpl>(tag, std::move(size_bytes), std::move(data_ptr),
                                               allocator, resizable);
}

const bool registered = [] {
  c10::SetAllocator(kSpyre, device_allocator(), 1);
  c10::SetStorageImplCreate(kSpyre, &make_storage);
  return true;
}();

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new DeviceAllocator();
  return allocator;
}

}  // namespace openspyre::device
