// Pinned host memory: PyTorch's caching host allocator over page-aligned, locked pages.
#pragma once

#include <ATen/core/Tensor.h>

#include "card/stream.h"

namespace openspyre::device {

bool is_pinned(const void* data);
inline bool is_pinned(const at::Tensor& host) { return is_pinned(host.storage().data()); }
// The pinned block behind `host` stays out of the cache until the stream's present work has ended.
// False when no block of the allocator backs the tensor's storage (memory wrapped by from_blob).
bool record_pinned_use(const at::Tensor& host, card::StreamId stream, int device);

}  // namespace openspyre::device
