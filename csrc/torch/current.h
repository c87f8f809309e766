// The calling thread's current device and, per device, current stream.
//
// Thread-local, like CUDA's: autograd's device threads set theirs through the guard. Indices are
// checked here, since PyTorch's core does not (pytorch.md PT8).
#pragma once

#include <c10/core/Device.h>

#include "card/runtime.h"

namespace openspyre::device {

inline constexpr c10::DeviceType kSpyre = c10::DeviceType::PrivateUse1;

int current_device() noexcept;
void set_current_device(int index);  // checked
void unchecked_set_current_device(int index) noexcept;

// `index` or, for -1, the current device; checked against the configured devices.
int checked_index(c10::DeviceIndex index);
inline int checked_index(c10::Device device) { return checked_index(device.index()); }

// The started device. Throws torch errors: bad index, bad configuration, forked child.
card::Device& device_at(int index);
inline card::Device& device_at(c10::Device device) { return device_at(checked_index(device)); }

card::StreamId current_stream(int device) noexcept;
card::StreamId exchange_current_stream(int device, card::StreamId stream) noexcept;

}  // namespace openspyre::device
