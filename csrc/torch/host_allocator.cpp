#include "torch/host_allocator.h"

#include <ATen/core/CachingHostAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "torch/current.h"
#include "torch/errors.h"

namespace openspyre::device {
namespace {

// Every live pinned range, so that an interior pointer (a view) counts as pinned too (RT45).
class Ranges {
 public:
  void add(void* start, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_[start] = static_cast<char*>(start) + size;
  }
  void remove(void* start) {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_.erase(start);
  }
  bool contains(const void* pointer) const {
    std::lock_guard<std::mutex> lock(mutex_);
    auto after = ends_.upper_bound(const_cast<void*>(pointer));
    if (after == ends_.begin()) return false;
    return pointer < std::prev(after)->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<void*, void*> ends_;
};
Ranges& ranges() {
  static auto* all = new Ranges();
  return *all;
}

struct PinnedImpl : at::CachingHostAllocatorImpl<c10::Stream, card::EventPtr> {
 private:
  void allocate_host_memory(size_t size, void** pointer) override {
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, pages != MAP_FAILED, "spyre: the host has no ", size,
                     " bytes for pinned memory");
    if (mlock(pages, size) != 0) {
      TORCH_WARN_ONCE(
          "spyre: mlock of pinned memory was refused (see `ulimit -l`); pinned tensors work, but "
          "their pages may be swapped");
    }
    ranges().add(pages, size);
    *pointer = pages;
  }
  void free_block(at::HostBlock<c10::Stream>* block) override {
    ranges().remove(block->ptr_);
    munmap(block->ptr_, block->size_);
  }
  void record_stream(std::optional<std::vector<card::EventPtr>>& events,
                     c10::Stream stream) override {
    card::DeviceStreams& streams = *device_at(stream.device()).streams;
    card::EventPtr event = streams.make_event();
    streams.signal(static_cast<card::StreamId>(stream.id()), event);
    events->push_back(std::move(event));
  }
  bool query_event(card::EventPtr& event) override { return card::DeviceStreams::query(event); }
  c10::Stream get_current_stream() const override {
    const int device = current_device();
    return c10::Stream(c10::Stream::UNSAFE, {kSpyre, static_cast<c10::DeviceIndex>(device)},
                       current_stream(device));
  }
};

// Leaked: pinned tensors may outlive every static object.
struct PinnedAllocator;
PinnedAllocator& pinned_allocator();
void free_pinned(void* context);
struct PinnedAllocator final : at::CachingHostAllocatorInterface<PinnedImpl, &free_pinned> {};
PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return *allocator;
}
void free_pinned(void* context) { pinned_allocator().free(context); }

const bool registered = [] {
  at::setHostAllocator(at::kPrivateUse1, &pinned_allocator());
  return true;
}();

}  // namespace

bool is_pinned(const void* data) { return data != nullptr && ranges().contains(data); }

bool record_pinned_use(const at::Tensor& host, card::StreamId stream, int device) {
  const c10::DataPtr& data = host.storage().data_ptr();
  return pinned_allocator().record_event(
      const_cast<void*>(data.get()), data.get_context(),
      c10::Stream(c10::Stream::UNSAFE, {kSpyre, static_cast<c10::DeviceIndex>(device)}, stream));
}

}  // namespace openspyre::device
