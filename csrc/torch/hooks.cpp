// The hooks: what PyTorch's core asks a backend outside of kernels.
//
// isBuilt, isAvailable and deviceCount never throw and start nothing (PT7); hasPrimaryContext is
// true only once the runtime has started (PT9).
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "torch/allocation.h"
#include "torch/current.h"
#include "torch/errors.h"
#include "torch/generator.h"
#include "torch/host_allocator.h"

namespace openspyre::device {
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return card::Runtime::get().device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override {
    const card::Runtime& runtime = card::Runtime::get();
    return runtime.started() && index >= 0 && index < runtime.device_count();
  }
  void init() const override {
    guarded([] { card::Runtime::get().ensure_started(); });
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(card::Runtime::get().device_count());
  }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device());
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const auto previous = static_cast<c10::DeviceIndex>(current_device());
    set_current_device(index);
    return previous;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return exchangeDevice(index);
  }

  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return at::getHostAllocator(at::kPrivateUse1);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const card::Block* block = card::TokenSpace::get().find(data);
    TORCH_CHECK(block != nullptr, "spyre: ", data,
                " is not an address of the device (or its block was freed)");
    return {kSpyre, static_cast<c10::DeviceIndex>(block->device)};
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(static_cast<c10::DeviceIndex>(checked_index(index)));
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t new_bytes) const override {
    resize_storage(storage, static_cast<int64_t>(new_bytes));
  }
};

const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace
}  // namespace openspyre::device
