// Number formats: the table of formats, the portable kernels, and the choice of instruction set.
//
// Torch-free; touches only the memory it is given. The bits are those of openspyre/formats.py.
#include "machine/formats.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "machine/formats_internal.h"

static_assert(std::endian::native == std::endian::little,
              "the card's memory image is little-endian; a big-endian host needs byte swaps");

namespace openspyre::machine {

using detail::Kernels;

namespace {

struct FormatInfo {
  const char* name;
  int bytes;
  uint64_t poison;  // little-endian code of `bytes` bytes, repeated
};

// Poison: a NaN where the format has one, else the largest value, whose sum over a stick does not
// wrap to zero as the smallest value's would.
constexpr FormatInfo kFormats[kFormatCount] = {
    {"SEN169_FP16", 2, 0x7FFF},
    {"IEEE_FP16", 2, 0x7FFF},
    {"BFLOAT16", 2, 0x7FFF},
    {"IEEE_FP32", 4, 0x7FFFFFFF},
    {"SEN143_FP8", 1, 0x7F},
    {"SEN152_FP8", 1, 0x7F},
    {"SENINT8", 1, 0x7F},
    {"SENINT16", 2, 0x7FFF},
    {"IEEE_INT32", 4, 0x7FFFFFFF},
    {"IEEE_INT64", 8, 0x7FFFFFFFFFFFFFFF},
    {"SENUINT8", 1, 0xFF},
    {"HOST_1", 1, 0xFF},
    {"HOST_2", 2, 0xFFFF},
    {"HOST_4", 4, 0xFFFFFFFF},
    {"HOST_8", 8, 0xFFFFFFFFFFFFFFFF},
    {"HOST_16", 16, 0xFFFFFFFFFFFFFFFF},
};

struct HostInfo {
  const char* name;
  int bytes;
  Format dl16, ieee;  // format_for in either mode
};

constexpr HostInfo kHosts[] = {
    {"F16", 2, Format::SEN169_FP16, Format::IEEE_FP16},
    {"BF16", 2, Format::SEN169_FP16, Format::BFLOAT16},
    {"F32", 4, Format::IEEE_FP32, Format::IEEE_FP32},
    {"F8_E4M3FN", 1, Format::SEN143_FP8, Format::SEN143_FP8},
    {"F8_E5M2", 1, Format::SEN152_FP8, Format::SEN152_FP8},
    {"I8", 1, Format::SENINT8, Format::SENINT8},
    {"I16", 2, Format::SENINT16, Format::SENINT16},
    {"I32", 4, Format::IEEE_INT32, Format::IEEE_INT32},
    {"I64", 8, Format::IEEE_INT64, Format::IEEE_INT64},
    {"U8", 1, Format::SENUINT8, Format::SENUINT8},
    {"BOOL", 1, Format::SEN169_FP16, Format::IEEE_FP16},
    {"RAW1", 1, Format::HOST_1, Format::HOST_1},
    {"RAW2", 2, Format::HOST_2, Format::HOST_2},
    {"RAW4", 4, Format::HOST_4, Format::HOST_4},
    {"RAW8", 8, Format::HOST_8, Format::HOST_8},
    {"RAW16", 16, Format::HOST_16, Format::HOST_16},
};
constexpr int kHostCount = int(sizeof(kHosts) / sizeof(kHosts[0]));
static_assert(kHostCount == int(HostType::RAW16) + 1);
static_assert(kFormatCount == int(Format::HOST_16) + 1);

const FormatInfo& info(Format format) {
  if (int(format) >= kFormatCount) {
    throw std::invalid_argument("number formats: " + std::to_string(int(format)) +
                                " is no Format; use one of the 16 values of the enum");
  }
  return kFormats[int(format)];
}

const HostInfo& info(HostType type) {
  if (int(type) >= kHostCount) {
    throw std::invalid_argument("number formats: " + std::to_string(int(type)) +
                                " is no HostType; use one of the 16 values of the enum");
  }
  return kHosts[int(type)];
}

bool is_raw(HostType type) { return type >= HostType::RAW1; }

// What a pair needs. The same value serves both directions.
enum class Path : uint8_t {
  None,
  Copy,
  HalfDl,
  Bf16Dl,
  FloatDl,
  FloatHalf,
  FloatBf16,
  BoolDl,
  BoolHalf,
};

Path path_of(HostType type, Format format) {
  const HostInfo& host = info(type);
  const FormatInfo& card = info(format);
  if (is_raw(type) || is_host_format(format)) {
    return host.bytes == card.bytes ? Path::Copy : Path::None;
  }
  switch (format) {
    case Format::SEN169_FP16:
      if (type == HostType::F16) return Path::HalfDl;
      if (type == HostType::BF16) return Path::Bf16Dl;
      if (type == HostType::F32) return Path::FloatDl;
      if (type == HostType::BOOL) return Path::BoolDl;
      return Path::None;
    case Format::IEEE_FP16:
      if (type == HostType::F16) return Path::Copy;
      if (type == HostType::F32) return Path::FloatHalf;
      if (type == HostType::BOOL) return Path::BoolHalf;
      return Path::None;
    case Format::BFLOAT16:
      if (type == HostType::BF16) return Path::Copy;
      if (type == HostType::F32) return Path::FloatBf16;
      return Path::None;
    default:
      return host.dl16 == format ? Path::Copy : Path::None;
  }
}

[[noreturn]] void refuse(const char* what, const char* from, const char* to) {
  throw std::invalid_argument(std::string("number formats: cannot ") + what + " " + from + " as " +
                              to +
                              ". The rule: a host type converts to its own card format of either "
                              "mode, F32 also to the 16-bit float formats, and RAW/HOST sides only "
                              "at equal size. Convert to one of these first.");
}

template <class In, class Out, class F>
inline void each(const void* src, void* dst, size_t n, F convert) {
  const char* in = static_cast<const char*>(src);
  char* out = static_cast<char*>(dst);
  for (size_t i = 0; i < n; ++i) {  // memcpy: neither side need be aligned
    In value;
    std::memcpy(&value, in + i * sizeof(In), sizeof(In));
    const Out result = convert(value);
    std::memcpy(out + i * sizeof(Out), &result, sizeof(Out));
  }
}

template <TieRule tie>
void half_to_dl16_all(const void* src, void* dst, size_t n) {
  each<uint16_t, uint16_t>(src, dst, n, [](uint16_t x) { return detail::half_to_dl16(x, tie); });
}
template <TieRule tie>
void float_to_dl16_all(const void* src, void* dst, size_t n) {
  each<uint32_t, uint16_t>(src, dst, n, [](uint32_t x) { return detail::float_to_dl16(x, tie); });
}

void half_to_dl16_any(const void* src, void* dst, size_t n, TieRule tie) {
  OPENSPYRE_FOR_TIE(tie, half_to_dl16_all, src, dst, n)
}
void float_to_dl16_any(const void* src, void* dst, size_t n, TieRule tie) {
  OPENSPYRE_FOR_TIE(tie, float_to_dl16_all, src, dst, n)
}
void bf16_to_dl16_all(const void* src, void* dst, size_t n) {
  each<uint16_t, uint16_t>(src, dst, n, detail::bf16_to_dl16);
}
void dl16_to_half_all(const void* src, void* dst, size_t n, bool nan) {
  each<uint16_t, uint16_t>(src, dst, n, [=](uint16_t x) { return detail::dl16_to_half(x, nan); });
}
void dl16_to_bf16_all(const void* src, void* dst, size_t n, bool nan) {
  each<uint16_t, uint16_t>(src, dst, n, [=](uint16_t x) { return detail::dl16_to_bf16(x, nan); });
}
void dl16_to_float_all(const void* src, void* dst, size_t n, bool nan) {
  each<uint16_t, uint32_t>(src, dst, n, [=](uint16_t x) { return detail::dl16_to_float(x, nan); });
}
void float_to_half_all(const void* src, void* dst, size_t n) {
  each<uint32_t, uint16_t>(src, dst, n, detail::float_to_half);
}
void half_to_float_all(const void* src, void* dst, size_t n) {
  each<uint16_t, uint32_t>(src, dst, n, detail::half_to_float);
}
void float_to_bf16_all(const void* src, void* dst, size_t n) {
  each<uint32_t, uint16_t>(src, dst, n, detail::float_to_bf16);
}
void bf16_to_float_all(const void* src, void* dst, size_t n) {
  each<uint16_t, uint32_t>(src, dst, n, detail::bf16_to_float);
}
void bool_to_code_all(const void* src, void* dst, size_t n, uint16_t one) {
  each<uint8_t, uint16_t>(src, dst, n, [=](uint8_t x) { return x ? one : uint16_t(0); });
}
void code_to_bool_all(const void* src, void* dst, size_t n) {
  each<uint16_t, uint8_t>(src, dst, n,
                          [](uint16_t x) { return uint8_t((x & detail::kMagnitude16) != 0); });
}

bool has_isa(Isa isa) {
  switch (isa) {
    case Isa::Portable:
      return true;
#ifdef OPENSPYRE_X86
    case Isa::AVX2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
             __builtin_cpu_supports("fma");
    case Isa::AVX512:
      return has_isa(Isa::AVX2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
#endif
    default:
      return false;
  }
}

const Kernels* kernels_of(Isa isa) {
  switch (isa) {
#ifdef OPENSPYRE_X86
    case Isa::AVX2:
      return &detail::kAvx2Kernels;
    case Isa::AVX512:
      return &detail::kAvx512Kernels;
#endif
    default:
      return &detail::kPortableKernels;
  }
}

constexpr int kUnset = -1;
std::atomic<int> g_isa{kUnset};

const Kernels& kernels() { return *kernels_of(current_isa()); }

}  // namespace

const Kernels detail::kPortableKernels = {
    half_to_dl16_any,  bf16_to_dl16_all,  float_to_dl16_any, dl16_to_half_all,
    dl16_to_bf16_all,  dl16_to_float_all, float_to_half_all, half_to_float_all,
    float_to_bf16_all, bf16_to_float_all, bool_to_code_all,  code_to_bool_all,
};

int format_bytes(Format format) { return info(format).bytes; }
int host_bytes(HostType type) { return info(type).bytes; }
const char* format_name(Format format) { return info(format).name; }
const char* host_name(HostType type) { return info(type).name; }
bool is_host_format(Format format) { return format >= Format::HOST_1; }

Format format_for(HostType type, Mode mode) {
  return mode == Mode::IEEE ? info(type).ieee : info(type).dl16;
}

bool can_convert(HostType type, Format format) { return path_of(type, format) != Path::None; }

uint16_t dl16_encode(float value, const Numerics& numerics) {
  return detail::float_to_dl16(std::bit_cast<uint32_t>(value), numerics.tie);
}

float dl16_decode(uint16_t code, const Numerics& numerics) {
  return std::bit_cast<float>(detail::dl16_to_float(code, numerics.merged_is_nan));
}

void encode(HostType from, Format to, const void* src, void* dst, size_t n,
            const Numerics& numerics) {
  const Path path = path_of(from, to);
  if (path == Path::None) refuse("encode", host_name(from), format_name(to));
  if (n == 0) return;
  const Kernels& k = kernels();
  switch (path) {
    case Path::HalfDl:
      return k.half_to_dl16(src, dst, n, numerics.tie);
    case Path::Bf16Dl:
      return k.bf16_to_dl16(src, dst, n);
    case Path::FloatDl:
      return k.float_to_dl16(src, dst, n, numerics.tie);
    case Path::FloatHalf:
      return k.float_to_half(src, dst, n);
    case Path::FloatBf16:
      return k.float_to_bf16(src, dst, n);
    case Path::BoolDl:
      return k.bool_to_code(src, dst, n, detail::kDlOne);
    case Path::BoolHalf:
      return k.bool_to_code(src, dst, n, detail::kHalfOne);
    case Path::Copy:
    case Path::None:
      std::memcpy(dst, src, n * size_t(format_bytes(to)));
  }
}

void decode(Format from, HostType to, const void* src, void* dst, size_t n,
            const Numerics& numerics) {
  const Path path = path_of(to, from);
  if (path == Path::None) refuse("decode", format_name(from), host_name(to));
  if (n == 0) return;
  const Kernels& k = kernels();
  switch (path) {
    case Path::HalfDl:
      return k.dl16_to_half(src, dst, n, numerics.merged_is_nan);
    case Path::Bf16Dl:
      return k.dl16_to_bf16(src, dst, n, numerics.merged_is_nan);
    case Path::FloatDl:
      return k.dl16_to_float(src, dst, n, numerics.merged_is_nan);
    case Path::FloatHalf:
      return k.half_to_float(src, dst, n);
    case Path::FloatBf16:
      return k.bf16_to_float(src, dst, n);
    case Path::BoolDl:
    case Path::BoolHalf:
      return k.code_to_bool(src, dst, n);
    case Path::Copy:
    case Path::None:
      std::memcpy(dst, src, n * size_t(format_bytes(from)));
  }
}

void poison(Format format, void* dst, size_t bytes) {
  const FormatInfo& row = info(format);
  char* out = static_cast<char*>(dst);
  if (row.bytes == 1 || row.poison == ~uint64_t(0) || row.poison == 0xFFFF ||
      row.poison == 0xFFFFFFFF) {
    if (bytes) std::memset(out, int(row.poison & 0xFF), bytes);
    return;
  }
  for (size_t i = 0; i < bytes;) {  // a last incomplete code gets its low bytes
    const size_t part = bytes - i < size_t(row.bytes) ? bytes - i : size_t(row.bytes);
    std::memcpy(out + i, &row.poison, part);
    i += part;
  }
}

Isa best_isa() {
  static const Isa best = has_isa(Isa::AVX512) ? Isa::AVX512
                          : has_isa(Isa::AVX2) ? Isa::AVX2
                                               : Isa::Portable;
  return best;
}

Isa current_isa() {
  const int forced = g_isa.load(std::memory_order_relaxed);
  return forced == kUnset ? best_isa() : Isa(forced);
}

void set_isa(Isa isa) {
  if (!has_isa(isa)) {
    throw std::invalid_argument(std::string("number formats: this processor has no ") +
                                isa_name(isa) + "; the best it has is " + isa_name(best_isa()));
  }
  g_isa.store(int(isa), std::memory_order_relaxed);
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::Portable:
      return "portable";
    case Isa::AVX2:
      return "avx2";
    case Isa::AVX512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace openspyre::machine
