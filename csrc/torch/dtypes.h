// torch dtypes on the card: the one table between c10::ScalarType and machine::HostType.
#pragma once

#include <c10/core/ScalarType.h>

#include "machine/formats.h"

namespace openspyre::device {

// Every dtype has a host type; those the card has no format for are RAWn (host-format).
machine::HostType host_type_of(c10::ScalarType type);

// Two dtypes whose elements have the same bytes on the card, so that either may read the other's
// storage in place (float32 and int32, but not float16 in dl16 mode and int16).
bool same_bits(c10::ScalarType a, c10::ScalarType b, machine::Mode mode);

inline bool is_16bit_float(c10::ScalarType type) {
  return type == c10::kHalf || type == c10::kBFloat16;
}

}  // namespace openspyre::device
