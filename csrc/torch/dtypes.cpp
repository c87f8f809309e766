#include "torch/dtypes.h"

#include <c10/util/Exception.h>

namespace openspyre::device {

using machine::HostType;

HostType host_type_of(c10::ScalarType type) {
  switch (type) {
    case c10::kHalf:
      return HostType::F16;
    case c10::kBFloat16:
      return HostType::BF16;
    case c10::kFloat:
      return HostType::F32;
    case c10::kFloat8_e4m3fn:
      return HostType::F8_E4M3FN;
    case c10::kFloat8_e5m2:
      return HostType::F8_E5M2;
    case c10::kChar:
      return HostType::I8;
    case c10::kShort:
      return HostType::I16;
    case c10::kInt:
      return HostType::I32;
    case c10::kLong:
      return HostType::I64;
    case c10::kByte:
      return HostType::U8;
    case c10::kBool:
      return HostType::BOOL;
    default:
      break;
  }
  switch (c10::elementSize(type)) {
    case 1:
      return HostType::RAW1;
    case 2:
      return HostType::RAW2;
    case 4:
      return HostType::RAW4;
    case 8:
      return HostType::RAW8;
    case 16:
      return HostType::RAW16;
    default:
      TORCH_CHECK(false, "spyre: dtype ", type, " has no element size the card can hold");
  }
}

bool same_bits(c10::ScalarType a, c10::ScalarType b, machine::Mode mode) {
  if (a == b) return true;
  if (c10::elementSize(a) != c10::elementSize(b)) return false;
  const auto keeps_bits = [mode](c10::ScalarType type) {
    if (type == c10::kBool) return false;
    return mode == machine::Mode::IEEE || !is_16bit_float(type);
  };
  return keeps_bits(a) && keeps_bits(b);
}

}  // namespace openspyre::device
