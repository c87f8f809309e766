// See block_copy.h. Vector moves use SSE2, which every x86-64 processor has; other processors
// take the plain loops.
#include "machine/block_copy.h"

#include <algorithm>
#include <cstring>

#include "machine/strided.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#define OPENSPYRE_SSE2 1
#else
#define OPENSPYRE_SSE2 0
#endif

namespace openspyre::machine {
namespace {

struct alignas(16) Wide {
  uint64_t half[2];
};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Calls f with a value of the unsigned type of `width` bytes.
template <class F>
void by_width(int64_t width, const F& f) {
  switch (width) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Wide{});
  }
}

template <int64_t Bytes>
void copy_fixed_rows(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch,
                     int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(dst + i * dst_pitch, src + i * src_pitch, static_cast<size_t>(Bytes));
}

#if OPENSPYRE_SSE2
__m128i load128(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
void store128(std::byte* at, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(at), value);
}

void transpose8x8_16(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch) {
  __m128i r[8], s[8];
  for (int i = 0; i < 8; ++i) r[i] = load128(src + i * src_pitch);
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm_unpacklo_epi32(s[4 * i], s[4 * i + 2]);
    r[4 * i + 1] = _mm_unpackhi_epi32(s[4 * i], s[4 * i + 2]);
    r[4 * i + 2] = _mm_unpacklo_epi32(s[4 * i + 1], s[4 * i + 3]);
    r[4 * i + 3] = _mm_unpackhi_epi32(s[4 * i + 1], s[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    store128(dst + 2 * i * dst_pitch, _mm_unpacklo_epi64(r[i], r[i + 4]));
    store128(dst + (2 * i + 1) * dst_pitch, _mm_unpackhi_epi64(r[i], r[i + 4]));
  }
}

__m128i load64(const std::byte* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}
void store_halves(std::byte* low, std::byte* high, __m128i value) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low), value);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_unpackhi_epi64(value, value));
}

void transpose8x8_8(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch) {
  __m128i r[4], s[4];
  for (int i = 0; i < 4; ++i)
    r[i] =
        _mm_unpacklo_epi8(load64(src + 2 * i * src_pitch), load64(src + (2 * i + 1) * src_pitch));
  for (int i = 0; i < 2; ++i) {
    s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    std::byte* to = dst + 4 * i * dst_pitch;
    store_halves(to, to + dst_pitch, _mm_unpacklo_epi32(s[i], s[i + 2]));
    store_halves(to + 2 * dst_pitch, to + 3 * dst_pitch, _mm_unpackhi_epi32(s[i], s[i + 2]));
  }
}

void transpose4x4_32(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch) {
  __m128i r[4], s[4];
  for (int i = 0; i < 4; ++i) r[i] = load128(src + i * src_pitch);
  s[0] = _mm_unpacklo_epi32(r[0], r[1]);
  s[1] = _mm_unpackhi_epi32(r[0], r[1]);
  s[2] = _mm_unpacklo_epi32(r[2], r[3]);
  s[3] = _mm_unpackhi_epi32(r[2], r[3]);
  for (int i = 0; i < 2; ++i) {
    store128(dst + 2 * i * dst_pitch, _mm_unpacklo_epi64(s[i], s[i + 2]));
    store128(dst + (2 * i + 1) * dst_pitch, _mm_unpackhi_epi64(s[i], s[i + 2]));
  }
}
#endif

}  // namespace

void copy_rows(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch,
               int64_t bytes, int64_t n, bool stream) {
#if OPENSPYRE_SSE2
  if (stream) {
    for (int64_t i = 0; i < n; ++i) {
      const std::byte* from = src + i * src_pitch;
      auto* to = reinterpret_cast<__m128i*>(dst + i * dst_pitch);
      for (int64_t at = 0; at < bytes; at += 64, to += 4) {
        const __m128i a = load128(from + at), b = load128(from + at + 16);
        const __m128i c = load128(from + at + 32), d = load128(from + at + 48);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
      }
    }
    return;
  }
#else
  (void)stream;
#endif
  if (src_pitch == bytes && dst_pitch == bytes) {
    std::memcpy(dst, src, static_cast<size_t>(bytes * n));
    return;
  }
  if (bytes == 128) return copy_fixed_rows<128>(src, src_pitch, dst, dst_pitch, n);
  if (bytes == 64) return copy_fixed_rows<64>(src, src_pitch, dst, dst_pitch, n);
  if (bytes == 256) return copy_fixed_rows<256>(src, src_pitch, dst, dst_pitch, n);
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(dst + i * dst_pitch, src + i * src_pitch, static_cast<size_t>(bytes));
}

bool can_stream(const std::byte* dst, int64_t bytes, int64_t pitch, int64_t other_pitch) {
  constexpr int64_t kLine = 64;
  return OPENSPYRE_SSE2 && reinterpret_cast<uintptr_t>(dst) % kLine == 0 && bytes % kLine == 0 &&
         pitch % kLine == 0 && other_pitch % kLine == 0;
}

void stream_fence() {
#if OPENSPYRE_SSE2
  _mm_sfence();
#endif
}

void transpose(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch,
               int64_t np, int64_t nq, int64_t width) {
  // Whole blocks with vectors, what is left over (right, then below) element by element.
  int64_t p_done = 0, q_done = 0;
#if OPENSPYRE_SSE2
  if (width <= 4) {
    const int64_t block = width == 4 ? 4 : 8;
    p_done = np / block * block;
    q_done = nq / block * block;
    for (int64_t q = 0; q < q_done; q += block) {
      for (int64_t p = 0; p < p_done; p += block) {
        const std::byte* from = src + p * src_pitch + q * width;
        std::byte* to = dst + q * dst_pitch + p * width;
        if (width == 1)
          transpose8x8_8(from, src_pitch, to, dst_pitch);
        else if (width == 2)
          transpose8x8_16(from, src_pitch, to, dst_pitch);
        else
          transpose4x4_32(from, src_pitch, to, dst_pitch);
      }
    }
  }
#endif
  by_width(width, [&](auto element) {
    using T = decltype(element);
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    for (int64_t q = 0; q < nq; ++q) {
      const std::byte* from = src + q * kWidth;
      std::byte* to = dst + q * dst_pitch;
      for (int64_t p = q < q_done ? p_done : 0; p < np; ++p)
        store<T>(to + p * kWidth, load<T>(from + p * src_pitch));
    }
  });
}

void gather_strided(const std::byte* src, int64_t pitch, std::byte* run, int64_t n, int64_t width) {
  if (pitch == width) {
    std::memcpy(run, src, static_cast<size_t>(n * width));
    return;
  }
  by_width(width, [&](auto element) {
    using T = decltype(element);
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < n; ++i) store<T>(run + i * kWidth, load<T>(src + i * pitch));
  });
}

void scatter_strided(const std::byte* run, std::byte* dst, int64_t pitch, int64_t n,
                     int64_t width) {
  if (pitch == width) {
    std::memcpy(dst, run, static_cast<size_t>(n * width));
    return;
  }
  by_width(width, [&](auto element) {
    using T = decltype(element);
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < n; ++i) store<T>(dst + i * pitch, load<T>(run + i * kWidth));
  });
}

void gather(const std::byte* src, const int64_t* offsets, int64_t n, int64_t bytes,
            std::byte* run) {
  by_width(bytes, [&](auto element) {
    using T = decltype(element);
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < n; ++i) store<T>(run + i * kWidth, load<T>(src + offsets[i]));
  });
}

void scatter(const std::byte* run, const int64_t* offsets, int64_t n, int64_t bytes,
             std::byte* dst) {
  by_width(bytes, [&](auto element) {
    using T = decltype(element);
    constexpr auto kWidth = static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < n; ++i) store<T>(dst + offsets[i], load<T>(run + i * kWidth));
  });
}

}  // namespace openspyre::machine
