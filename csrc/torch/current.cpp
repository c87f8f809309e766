#include "torch/current.h"

#include <array>

#include "torch/errors.h"

namespace openspyre::device {
namespace {

constexpr int kMaxDevices = 128;  // c10::DeviceIndex is an int8_t

thread_local int tls_device = 0;
thread_local std::array<uint8_t, kMaxDevices> tls_streams{};  // ids go up to 72

}  // namespace

int current_device() noexcept { return tls_device; }

void set_current_device(int index) {
  if (index < 0 || index >= card::Runtime::get().device_count()) throw_bad_device(index);
  tls_device = index;
}

void unchecked_set_current_device(int index) noexcept {
  if (index >= 0 && index < kMaxDevices) tls_device = index;
}

int checked_index(c10::DeviceIndex index) {
  const int wanted = index == -1 ? tls_device : index;
  if (wanted < 0 || wanted >= card::Runtime::get().device_count()) {
    // A configuration error or a forked child has its own, better text.
    guarded([] { card::Runtime::get().ensure_started(); });
    throw_bad_device(wanted);
  }
  return wanted;
}

card::Device& device_at(int index) {
  try {
    return card::Runtime::get().device(index);
  } catch (const std::out_of_range&) {
    throw_bad_device(index);
  } catch (...) {
    rethrow_for_torch();
  }
}

card::StreamId current_stream(int device) noexcept {
  return tls_streams[static_cast<size_t>(device)];
}

card::StreamId exchange_current_stream(int device, card::StreamId stream) noexcept {
  const card::StreamId previous = tls_streams[static_cast<size_t>(device)];
  tls_streams[static_cast<size_t>(device)] = static_cast<uint8_t>(stream);
  return previous;
}

}  // namespace openspyre::device
