// Number formats of the card and the bulk conversions between them and the host's types.
//
// Torch-free. Every function here is pure: it touches only the memory it is given.
// Law: the bits are those of `openspyre/formats.py` (the slow, obvious reference), whatever
// instruction set runs them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace openspyre::machine {

inline constexpr int64_t kStickBytes = 128;

// How 16-bit host values live on the card.
enum class Mode : uint8_t {
  DL16,  // float16, bfloat16 and bool are DLFloat16 (1-6-9)
  IEEE,  // float16 and bfloat16 keep their IEEE bits; bool is IEEE half 1.0 / 0.0
};

// What an exact tie does when a value is rounded to DLFloat16. The card's rule is not public.
enum class TieRule : uint8_t { TowardPositive, AwayFromZero, ToEven, TowardZero, ToOdd };

struct Numerics {
  Mode mode = Mode::DL16;
  TieRule tie = TieRule::TowardPositive;
  bool merged_is_nan = false;  // decode magnitude 0x7FFF as NaN instead of infinity
  friend bool operator==(const Numerics&, const Numerics&) = default;
};

// Formats a storage may have on the card. HOST_* are host-format: raw little-endian items of
// that many bytes (float64, complex, and every dtype the card has no unit for, or untyped bytes).
enum class Format : uint8_t {
  SEN169_FP16,
  IEEE_FP16,
  BFLOAT16,
  IEEE_FP32,
  SEN143_FP8,
  SEN152_FP8,
  SENINT8,
  SENINT16,
  IEEE_INT32,
  IEEE_INT64,
  SENUINT8,
  HOST_1,
  HOST_2,
  HOST_4,
  HOST_8,
  HOST_16,
};
inline constexpr int kFormatCount = 16;

// Host element types. RAWn stands for every dtype of n bytes that is kept bit for bit.
enum class HostType : uint8_t {
  F16,
  BF16,
  F32,
  F8_E4M3FN,
  F8_E5M2,
  I8,
  I16,
  I32,
  I64,
  U8,
  BOOL,
  RAW1,
  RAW2,
  RAW4,
  RAW8,
  RAW16,
};

int format_bytes(Format format);  // bytes of one element on the card
int host_bytes(HostType type);    // bytes of one element on the host
inline int64_t elements_per_stick(Format f) { return kStickBytes / format_bytes(f); }
const char* format_name(Format format);  // the device enum's name, e.g. "SEN169_FP16"
const char* host_name(HostType type);    // the enumerator's name, e.g. "F8_E4M3FN"
bool is_host_format(Format format);

// The format in which a storage of `type` lives under `mode`.
Format format_for(HostType type, Mode mode);

// One DLFloat16 value. The float is taken as a computed value: overflow gives 0x7FFF with its
// sign, NaN gives 0x7FFF. (Host values saturate instead, and that is the bulk encode's affair:
// finite float16 at 65472 = 0x5DFF, finite bfloat16 at the largest finite code 0x7FFE.)
uint16_t dl16_encode(float value, const Numerics& numerics);
float dl16_decode(uint16_t code, const Numerics& numerics);

// Bulk conversion of `n` contiguous elements. `from`/`to` must be a supported pair:
//  - the pair (type, format_for(type, mode)) of either mode;
//  - F32 <-> SEN169_FP16, IEEE_FP16 and BFLOAT16 (a computed value: overflow gives Inf or 0x7FFF;
//    used by fallbacks that compute 16-bit tensors in float32);
//  - equal sizes with a RAWn or HOST_n side: a byte copy.
// Throws std::invalid_argument naming both sides otherwise. src and dst must not overlap.
void encode(HostType from, Format to, const void* src, void* dst, size_t n, const Numerics&);
void decode(Format from, HostType to, const void* src, void* dst, size_t n, const Numerics&);
bool can_convert(HostType type, Format format);

// The code that a debug run writes into pads, chosen so that a leak shows (NaN-like or extreme).
// Fills `bytes` bytes of card memory at `dst` with the poison pattern of `format`.
void poison(Format format, void* dst, size_t bytes);

// Instruction sets, chosen once at first use from the processor; tests force the others.
enum class Isa : uint8_t { Portable, AVX2, AVX512 };
Isa best_isa();
Isa current_isa();
void set_isa(Isa isa);  // throws std::invalid_argument when the processor lacks it
const char* isa_name(Isa isa);

}  // namespace openspyre::machine
