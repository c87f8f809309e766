// The innermost moves of strided copies: rows of bytes, transposes, strided runs. One thread,
// no conversion, sizes in bytes. Addresses need no alignment unless said.
#pragma once

#include <cstddef>
#include <cstdint>

namespace openspyre::machine {

// `n` rows of `bytes` bytes; pitches in bytes. `stream` writes past the cache and demands
// can_stream for dst; call stream_fence() before another thread may read.
void copy_rows(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch,
               int64_t bytes, int64_t n, bool stream);

// Whether rows of `bytes` at dst and at both pitches are whole cache lines.
bool can_stream(const std::byte* dst, int64_t bytes, int64_t pitch, int64_t other_pitch);
void stream_fence();

// dst[q * dst_pitch + p * width] = src[p * src_pitch + q * width] for p < np, q < nq;
// width is the element's bytes: 1, 2, 4, 8 or 16.
void transpose(const std::byte* src, int64_t src_pitch, std::byte* dst, int64_t dst_pitch,
               int64_t np, int64_t nq, int64_t width);

// n elements between a strided and a contiguous side; the pitch in bytes may be zero or negative.
void gather_strided(const std::byte* src, int64_t pitch, std::byte* run, int64_t n, int64_t width);
void scatter_strided(const std::byte* run, std::byte* dst, int64_t pitch, int64_t n, int64_t width);

}  // namespace openspyre::machine
