// The device guard: devices, streams and events as PyTorch's core asks for them.
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <atomic>

#include "torch/allocation.h"
#include "torch/current.h"
#include "torch/engine.h"
#include "torch/errors.h"
#include "torch/interrupt.h"

namespace openspyre::device {
namespace {

// What a torch.Event points at. Every record makes a new one-shot event of the card.
struct RecordedEvent {
  std::atomic<card::EventPtr> event;  // one thread may record again while another waits
  int device;
};

c10::Stream make_stream(int device, card::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, {kSpyre, static_cast<c10::DeviceIndex>(device)}, id);
}

card::DeviceStreams& streams_of(const c10::Stream& stream) {
  card::DeviceStreams& streams = *device_at(stream.device()).streams;
  TORCH_CHECK(streams.valid(static_cast<card::StreamId>(stream.id())), "spyre: ", stream.id(),
              " is not a stream id of ", stream.device(),
              " (0: default, 1-32: low, 33-64: high priority, 65 and up: host compute)");
  return streams;
}

card::StreamId id_of(const c10::Stream& stream) { return static_cast<card::StreamId>(stream.id()); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSpyre; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  c10::Device getDevice() const override {
    return {kSpyre, static_cast<c10::DeviceIndex>(current_device())};
  }
  void setDevice(c10::Device device) const override {
    if (device.index() == -1) return;  // "the current one"
    set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    unchecked_set_current_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(card::Runtime::get().device_count());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    // What the card has a format for (formats.h); the rest is held in host format only.
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_Half = has.has_BFloat16 = has.has_Float = 1;
    has.has_Float8_e4m3fn = has.has_Float8_e5m2 = 1;
    has.has_Char = has.has_Short = has.has_Int = has.has_Long = 1;
    has.has_Byte = has.has_Bool = 1;
    return capability;
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = checked_index(device);
    return make_stream(index, current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return make_stream(checked_index(device), card::kDefaultStream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getNewStream(device, high_priority ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    card::Device& on = device_at(device);
    return make_stream(on.index, guarded([&] { return on.streams->stream_from_pool(priority); }));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = checked_index(stream.device());
    streams_of(stream);
    return make_stream(index, exchange_current_stream(index, id_of(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    // The card has no host handle for a stream; its id is all there is.
    return reinterpret_cast<void*>(static_cast<uintptr_t>(stream.id()));
  }
  bool queryStream(const c10::Stream& stream) const override {
    return guarded([&] { return streams_of(stream).query(id_of(stream)); });
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    streams_of(stream);
    guarded([&] { wait_for_stream(device_at(stream.device()), id_of(stream)); });
  }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    card::Device& device = device_at(checked_index(index));
    guarded([&] {
      interruptible([&](const std::function<bool()>& interrupt) {
        device.streams->synchronize_all(interrupt);
      });
    });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    streams_of(stream);
    TORCH_CHECK(data.device() == stream.device(), "spyre: record_stream of memory on ",
                data.device(), " with a stream of ", stream.device(),
                "; a stream protects memory of its own device only");
    device_allocator()->recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    card::DeviceStreams& streams = streams_of(stream);
    auto* recorded = static_cast<RecordedEvent*>(*event);
    TORCH_CHECK(recorded == nullptr || recorded->device == streams.device(),
                "spyre: an event first recorded on spyre:", recorded ? recorded->device : 0,
                " cannot be recorded on ", stream.device(), "; make a new event for that device");
    guarded([&] {
      card::EventPtr fresh = streams.make_event();
      streams.signal(id_of(stream), fresh);
      if (recorded == nullptr) *event = recorded = new RecordedEvent{nullptr, streams.device()};
      recorded->event.store(std::move(fresh));
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;  // never recorded: nothing to wait for
    guarded(
        [&] { streams_of(stream).wait(id_of(stream), static_cast<RecordedEvent*>(event)->event); });
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    return card::DeviceStreams::query(static_cast<RecordedEvent*>(event)->event.load());
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto& recorded = *static_cast<RecordedEvent*>(event);
    const card::EventPtr waited = recorded.event.load();
    card::DeviceStreams& streams = *device_at(recorded.device).streams;
    guarded([&] {
      interruptible([&](const std::function<bool()>& interrupt) {
        streams.synchronize_event(waited, interrupt);
      });
    });
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr,
                "spyre: both events must be recorded before the time between them is asked for");
    const auto from =
        card::DeviceStreams::event_time_ns(static_cast<RecordedEvent*>(start)->event.load());
    const auto to =
        card::DeviceStreams::event_time_ns(static_cast<RecordedEvent*>(end)->event.load());
    TORCH_CHECK(from.has_value() && to.has_value(),
                "spyre: an event that waits for work not yet submitted has no time; synchronize it "
                "before asking for the elapsed (modelled) time");
    return static_cast<double>(*to - *from) / 1e6;  // modelled milliseconds of the virtual clock
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<RecordedEvent*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace openspyre::device
