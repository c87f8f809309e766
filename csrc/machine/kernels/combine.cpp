// RING reduce and the adding STORE: what arrives is joined to what is there.
//
// Whole sticks at a time: beyond a tile's valid extent their content is don't-care.
#include <stdexcept>

#include "machine/kernels/float_control.h"
#include "machine/kernels/index_cells.h"
#include "machine/kernels/index_kernels.h"

namespace openspyre::machine {

namespace {

// The registers of one format in memory: how they add, compare and are written.
struct Floats {
  using Type = uint32_t;
  static Type settled(float x) { return x != x ? detail::kFloatNan : std::bit_cast<uint32_t>(x); }
  static Type sum(Type a, Type b) { return settled(value(a) + value(b)); }
  static Type prod(Type a, Type b) { return settled(value(a) * value(b)); }
  static Type max(Type a, Type b) {  // NaN wins; of equal zeros the first stays
    return settled(value(b) > value(a) || value(b) != value(b) ? value(b) : value(a));
  }
  static Type min(Type a, Type b) {
    return settled(value(b) < value(a) || value(b) != value(b) ? value(b) : value(a));
  }
  static bool truth(Type a) { return value(a) != 0; }
  static Type one() { return 0x3F800000u; }
  static float value(Type a) { return std::bit_cast<float>(a); }
};
template <class Unsigned, class Signed>
struct Integers {
  using Type = Unsigned;
  static Type sum(Type a, Type b) { return a + b; }
  static Type prod(Type a, Type b) { return a * b; }
  static Type max(Type a, Type b) { return Signed(b) > Signed(a) ? b : a; }
  static Type min(Type a, Type b) { return Signed(b) < Signed(a) ? b : a; }
  static bool truth(Type a) { return a != 0; }
  static Type one() { return 1; }
};

template <class N, class Join>
void run(std::byte* target, const std::byte* source, int64_t bytes, Join join) {
  using Type = typename N::Type;
  for (int64_t i = 0; i < bytes; i += int64_t(sizeof(Type))) {
    write_as(target + i, join(read_as<Type>(target + i), read_as<Type>(source + i)));
  }
}

template <class N>
void join_run(Combine op, std::byte* target, const std::byte* source, int64_t bytes) {
  using Type = typename N::Type;
  switch (op) {
    case Combine::Sum:
      return run<N>(target, source, bytes, [](Type a, Type b) { return N::sum(a, b); });
    case Combine::Prod:
      return run<N>(target, source, bytes, [](Type a, Type b) { return N::prod(a, b); });
    case Combine::Max:
      return run<N>(target, source, bytes, [](Type a, Type b) { return N::max(a, b); });
    case Combine::Min:
      return run<N>(target, source, bytes, [](Type a, Type b) { return N::min(a, b); });
    case Combine::Any:
      return run<N>(target, source, bytes,
                    [](Type a, Type b) { return N::truth(a) | N::truth(b) ? N::one() : Type(0); });
    default:
      return run<N>(target, source, bytes,
                    [](Type a, Type b) { return N::truth(a) & N::truth(b) ? N::one() : Type(0); });
  }
}

constexpr int64_t kChunk = 256;  // elements that are added in float32 at a time

void add_floats(Format format, std::byte* target, const std::byte* source, int64_t n,
                const Numerics& numerics) {
  alignas(64) float held[kChunk], more[kChunk];
  decode(format, HostType::F32, target, held, size_t(n), numerics);
  decode(format, HostType::F32, source, more, size_t(n), numerics);
  for (int64_t i = 0; i < n; ++i) {
    held[i] = std::bit_cast<float>(Floats::settled(held[i] + more[i]));
  }
  encode(HostType::F32, format, held, target, size_t(n), numerics);
}

}  // namespace

void combine(Combine op, int labels, const int64_t* size, const View& target, const View& source) {
  const Format format = target.format;
  if (op > Combine::All || source.format != format || source.stick != target.stick ||
      source.lanes != target.lanes ||
      (format != Format::IEEE_FP32 && format != Format::IEEE_INT32 &&
       format != Format::IEEE_INT64)) {
    throw std::invalid_argument(
        "ring: it combines by sum, prod, max, min, any or all, tiles of one format of IEEE_FP32, "
        "IEEE_INT32, IEEE_INT64 with the same label on the stick");
  }
  const int64_t bytes = format_bytes(format), eps = kStickBytes / bytes;
  int64_t unit = target.lanes ? kLaneAccumulators * bytes : kStickBytes;
  int64_t count[kMaxLabels] = {};
  for (int label = 0; label < labels; ++label) {
    const bool moved = target.stride[label] != 0 || source.stride[label] != 0;
    count[label] = label == target.stick ? (size[label] + eps - 1) / eps : moved ? size[label] : 1;
  }
  for (int label = 0; label < labels; ++label) {  // contiguous in both: one long run
    if (count[label] > 1 && target.stride[label] == unit && source.stride[label] == unit) {
      unit *= count[label];
      count[label] = 1;
      label = -1;
    }
  }
  int64_t at[kMaxLabels] = {}, to = 0, from = 0;
  for (;;) {
    if (format == Format::IEEE_FP32) {
      join_run<Floats>(op, target.base + to, source.base + from, unit);
    } else if (format == Format::IEEE_INT32) {
      join_run<Integers<uint32_t, int32_t>>(op, target.base + to, source.base + from, unit);
    } else {
      join_run<Integers<uint64_t, int64_t>>(op, target.base + to, source.base + from, unit);
    }
    int label = labels - 1;
    for (; label >= 0; --label) {
      to += target.stride[label], from += source.stride[label];
      if (++at[label] < count[label]) break;
      to -= target.stride[label] * count[label], from -= source.stride[label] * count[label];
      at[label] = 0;
    }
    if (label < 0) return;
  }
}

void add_elements(Format format, void* target, const void* source, int64_t n,
                  const Numerics& numerics) {
  const FloatControl control;  // the other kernels are called through tables that see to it
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  const int64_t bytes = format_bytes(format);
  switch (format) {
    case Format::IEEE_FP32:
      return join_run<Floats>(Combine::Sum, to, from, n * 4);
    case Format::IEEE_INT32:
      return join_run<Integers<uint32_t, int32_t>>(Combine::Sum, to, from, n * 4);
    case Format::IEEE_INT64:
      return join_run<Integers<uint64_t, int64_t>>(Combine::Sum, to, from, n * 8);
    case Format::SENINT16:  // the low bits of a wrapping sum
      return run<Integers<uint16_t, int16_t>>(
          to, from, n * 2, [](uint16_t a, uint16_t b) { return uint16_t(a + b); });
    case Format::SENINT8:
    case Format::SENUINT8:
      return run<Integers<uint8_t, int8_t>>(to, from, n,
                                            [](uint8_t a, uint8_t b) { return uint8_t(a + b); });
    case Format::SEN169_FP16:
    case Format::IEEE_FP16:
    case Format::BFLOAT16:
      for (int64_t i = 0; i < n; i += kChunk) {
        const int64_t part = n - i < kChunk ? n - i : kChunk;
        add_floats(format, to + i * bytes, from + i * bytes, part, numerics);
      }
      return;
    default:
      for (int64_t i = 0; i < n; ++i, to += bytes, from += bytes) {
        const float sum =
            as_float(load_cell(format, to, numerics)) + as_float(load_cell(format, from, numerics));
        store_cell(format, to, of_float(sum), numerics);
      }
  }
}

}  // namespace openspyre::machine
