// Copy loops between two strided memories, with an optional bulk conversion on the way.
//
// Torch-free. The layout is gone here: both sides are affine. Knows the machine's caches and
// nothing else; work above a size is split over Pool::get().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "machine/formats.h"

namespace openspyre::machine {

// What happens to elements on the way. `Copy` moves `src_bytes` == `dst_bytes` unchanged.
struct Convert {
  enum class Kind : uint8_t { Copy, Encode, Decode };
  Kind kind = Kind::Copy;
  HostType host = HostType::RAW1;
  Format card = Format::HOST_1;
  const Numerics* numerics = nullptr;
  int64_t src_bytes = 1, dst_bytes = 1;

  static Convert copy(int64_t bytes);
  // Throw std::invalid_argument when the card has no conversion between the two.
  static Convert to_card(HostType type, Format format, const Numerics& numerics);
  static Convert to_host(Format format, HostType type, const Numerics& numerics);

  // `n` contiguous elements.
  void operator()(const std::byte* src, std::byte* dst, int64_t n) const;
};

// One loop; strides in elements of each side.
struct StridedDim {
  int64_t size, src, dst;
};

// Every combination of indices: dst[sum index * dst] = convert(src[sum index * src]).
// `dims` is used as scratch. The sides must not overlap and no two indices may share a place in
// dst. At most kMaxStridedRank loops.
inline constexpr size_t kMaxStridedRank = 64;
void strided_copy(const std::byte* src, std::byte* dst, std::span<StridedDim> dims,
                  const Convert& convert);

// Writes the `bytes` bytes of `code` to every place (the src strides are not used).
void strided_fill(std::byte* dst, std::span<StridedDim> dims, const void* code, int64_t bytes);

// Elements at byte offsets <-> a contiguous run, one thread. For views that are not affine.
void gather(const std::byte* src, const int64_t* offsets, int64_t n, int64_t bytes, std::byte* run);
void scatter(const std::byte* run, const int64_t* offsets, int64_t n, int64_t bytes,
             std::byte* dst);

// Calls body(begin, end) over [0, n), on the pool when `bytes` (moved in all) is worth it.
// A template, so that small work pays for no std::function.
void parallel_on_pool(int64_t n, int64_t grain, const void* body,
                      void (*call)(const void*, int64_t, int64_t));

inline constexpr int64_t kParallelBytes = int64_t{1} << 19;  // below: a wake-up costs more
inline constexpr int64_t kGrainBytes = int64_t{1} << 18;

template <class Body>
void parallel_bytes(int64_t n, int64_t bytes, const Body& body) {
  if (n <= 0) return;
  if (bytes < kParallelBytes || n == 1) {
    body(int64_t{0}, n);
    return;
  }
  const int64_t chunks = bytes / kGrainBytes;
  const int64_t grain = n / chunks > 0 ? n / chunks : 1;
  parallel_on_pool(n, grain, &body, [](const void* b, int64_t begin, int64_t end) {
    (*static_cast<const Body*>(b))(begin, end);
  });
}

}  // namespace openspyre::machine
