// See strided.h. Four shapes of the innermost work, chosen by where the strides of 1 are:
//   rows       one loop is contiguous on both sides (sticks of a default layout)
//   transpose  each side has its own contiguous loop
//   generic    steps: gather into a staging run, convert in bulk, scatter
// Staging lives on the stack and in the first-level cache; conversions always see long runs.
#include "machine/strided.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "machine/block_copy.h"
#include "machine/pool.h"

namespace openspyre::machine {
namespace {

constexpr int64_t kStaging = 32 * 1024;             // bytes of one staging buffer
constexpr int64_t kLongRow = 4096;                  // bytes; from here a row needs no blocking
constexpr int64_t kStreamBytes = int64_t{1} << 23;  // from here results will not stay in cache

struct alignas(kStickBytes) Staging {
  std::byte bytes[kStaging];
};

// A loop nest without inner loops, walked by a flat index.
struct Outer {
  int64_t total = 1;
  size_t rank = 0;
  StridedDim dims[kMaxStridedRank + 2];

  void add(int64_t size, int64_t src, int64_t dst) {
    if (size == 1) return;
    dims[rank++] = {size, src, dst};
    total *= size;
  }
  // Offsets of flat index `flat` (the last loop runs fastest).
  void locate(int64_t flat, int64_t& src, int64_t& dst) const {
    src = dst = 0;
    for (size_t i = rank; i-- > 0;) {
      const int64_t index = flat % dims[i].size;
      flat /= dims[i].size;
      src += index * dims[i].src;
      dst += index * dims[i].dst;
    }
  }
};

// Drops loops of size 1, sorts by descending dst stride, joins loops that continue each other.
size_t normalise(std::span<StridedDim> dims) {
  size_t rank = 0;
  for (const StridedDim& dim : dims)
    if (dim.size != 1) dims[rank++] = dim;
  std::sort(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(rank),
            [](const StridedDim& a, const StridedDim& b) {
              return a.dst != b.dst ? a.dst > b.dst : a.src > b.src;
            });
  size_t kept = 0;
  for (size_t i = 0; i < rank; ++i) {
    if (kept > 0) {
      StridedDim& last = dims[kept - 1];
      if (last.dst == dims[i].size * dims[i].dst && last.src == dims[i].size * dims[i].src) {
        last = {last.size * dims[i].size, dims[i].src, dims[i].dst};
        continue;
      }
    }
    dims[kept++] = dims[i];
  }
  return kept;
}

int64_t total_of(std::span<const StridedDim> dims) {
  int64_t total = 1;
  for (const StridedDim& dim : dims) total *= dim.size;
  return total;
}

// --- rows ---------------------------------------------------------------------------------

// Rows long enough to be converted where they lie; cut along the row so that one row of many
// megabytes still uses all threads.
void copy_long_rows(const std::byte* src, std::byte* dst, const Outer& rows, int64_t length,
                    const Convert& convert) {
  const int64_t width = std::max(convert.src_bytes, convert.dst_bytes);
  const int64_t piece = std::min(length, std::max<int64_t>(kGrainBytes / width, 64));
  const int64_t pieces = (length + piece - 1) / piece;
  const int64_t bytes = rows.total * length * (convert.src_bytes + convert.dst_bytes);
  parallel_bytes(rows.total * pieces, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t from, to;
      rows.locate(i / pieces, from, to);
      const int64_t start = i % pieces * piece, n = std::min(piece, length - start);
      convert(src + (from + start) * convert.src_bytes, dst + (to + start) * convert.dst_bytes, n);
    }
  });
}

struct RowBlock {
  int64_t length;           // elements of a row
  StridedDim across, down;  // loops of rows: `across` is dst's next loop, `down` is src's next
};

// One block: rows[x of across][y of down].
void copy_row_block(const std::byte* src, std::byte* dst, const RowBlock& block,
                    const Convert& convert, bool stream) {
  const int64_t sb = convert.src_bytes, db = convert.dst_bytes, length = block.length;
  const int64_t row_in = length * sb, row_out = length * db;
  const int64_t nx = block.across.size, ny = block.down.size;
  if (convert.kind == Convert::Kind::Copy) {
    for (int64_t y = 0; y < ny; ++y)
      copy_rows(src + y * block.down.src * sb, block.across.src * sb, dst + y * block.down.dst * db,
                block.across.dst * db, row_in, nx, stream);
    return;
  }
  Staging converted;
  const bool src_runs = ny == 1 || block.down.src == length;
  const bool src_whole = src_runs && (nx == 1 || block.across.src == ny * length);
  if (src_whole) {
    convert(src, converted.bytes, nx * ny * length);
  } else if (src_runs && ny * length >= 256) {
    for (int64_t x = 0; x < nx; ++x)
      convert(src + x * block.across.src * sb, converted.bytes + x * ny * row_out, ny * length);
  } else {
    Staging raw;
    for (int64_t x = 0; x < nx; ++x)
      copy_rows(src + x * block.across.src * sb, block.down.src * sb, raw.bytes + x * ny * row_in,
                row_in, row_in, ny, false);
    convert(raw.bytes, converted.bytes, nx * ny * length);
  }
  for (int64_t y = 0; y < ny; ++y)
    copy_rows(converted.bytes + y * row_out, ny * row_out, dst + y * block.down.dst * db,
              block.across.dst * db, row_out, nx, stream);
}

void copy_rows_blocked(const std::byte* src, std::byte* dst, std::span<const StridedDim> dims,
                       size_t lane, const Convert& convert) {
  const int64_t length = dims[lane].size;
  const int64_t sb = convert.src_bytes, db = convert.dst_bytes;
  size_t across = dims.size(), down = dims.size();
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i == lane) continue;
    if (across == dims.size() || dims[i].dst < dims[across].dst) across = i;
    if (down == dims.size() || dims[i].src < dims[down].src) down = i;
  }
  Outer outer;
  for (size_t i = 0; i < dims.size(); ++i)
    if (i != lane && i != across && i != down) outer.add(dims[i].size, dims[i].src, dims[i].dst);
  if (length * std::max(sb, db) >= kLongRow || across == dims.size()) {
    if (down != across) outer.add(dims[down].size, dims[down].src, dims[down].dst);
    if (across != dims.size()) outer.add(dims[across].size, dims[across].src, dims[across].dst);
    copy_long_rows(src, dst, outer, length, convert);
    return;
  }
  const StridedDim a = dims[across];
  const StridedDim b = down == across ? StridedDim{1, 0, 0} : dims[down];
  // A block fills half a staging buffer: 2 KB read in a run, the rest of it written in a run.
  // Blocks follow the source's rows, so that it is read as one stream and each written page is
  // visited few times (measured; the other order costs a third and more in TLB misses). A
  // conversion passes through two buffers that must lie in the first-level cache side by side: a
  // quarter (to the host, float16 gains two fifths and bool nine tenths).
  const int64_t share = convert.kind == Convert::Kind::Copy ? 2 : 4;
  const int64_t capacity = kStaging / share / (length * std::max(sb, db));
  const int64_t ny = std::clamp<int64_t>(2048 / (length * sb), 1, std::min(b.size, capacity));
  const int64_t nx = std::clamp<int64_t>(capacity / ny, 1, a.size);
  const int64_t x_blocks = (a.size + nx - 1) / nx, y_blocks = (b.size + ny - 1) / ny;
  const int64_t bytes = total_of(dims) * (sb + db);
  const bool stream =
      total_of(dims) * db >= kStreamBytes && can_stream(dst, length * db, a.dst * db, b.dst * db) &&
      std::all_of(outer.dims, outer.dims + outer.rank,
                  [&](const StridedDim& d) { return can_stream(nullptr, 0, d.dst * db, 0); });
  parallel_bytes(outer.total * y_blocks * x_blocks, bytes, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t y = i % y_blocks * ny, x = i / y_blocks % x_blocks * nx;
      int64_t from, to;
      outer.locate(i / (x_blocks * y_blocks), from, to);
      RowBlock block{length, a, b};
      block.across.size = std::min(nx, a.size - x);
      block.down.size = std::min(ny, b.size - y);
      copy_row_block(src + (from + x * a.src + y * b.src) * sb,
                     dst + (to + x * a.dst + y * b.dst) * db, block, convert, stream);
    }
    if (stream) stream_fence();
  });
}

// --- transpose ------------------------------------------------------------------------------

// `p` is contiguous in dst, `q` in src.
void copy_transposed(const std::byte* src, std::byte* dst, std::span<const StridedDim> dims,
                     size_t p_dim, size_t q_dim, const Convert& convert) {
  const int64_t sb = convert.src_bytes, db = convert.dst_bytes;
  const StridedDim p = dims[p_dim], q = dims[q_dim];
  const int64_t width = std::max(sb, db), tile = width <= 2 ? 128 : width <= 8 ? 64 : 32;
  static_assert(128 * 128 * 2 <= kStaging && 64 * 64 * 8 <= kStaging && 32 * 32 * 16 <= kStaging);
  Outer outer;
  for (size_t i = 0; i < dims.size(); ++i)
    if (i != p_dim && i != q_dim) outer.add(dims[i].size, dims[i].src, dims[i].dst);
  const int64_t p_tiles = (p.size + tile - 1) / tile, q_tiles = (q.size + tile - 1) / tile;
  parallel_bytes(
      outer.total * p_tiles * q_tiles, total_of(dims) * (sb + db), [&](int64_t begin, int64_t end) {
        Staging raw, converted;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t q0 = i % q_tiles * tile, p0 = i / q_tiles % p_tiles * tile;
          int64_t from, to;
          outer.locate(i / (q_tiles * p_tiles), from, to);
          const int64_t np = std::min(tile, p.size - p0), nq = std::min(tile, q.size - q0);
          const std::byte* in = src + (from + p0 * p.src + q0) * sb;
          std::byte* out = dst + (to + p0 + q0 * q.dst) * db;
          int64_t pitch = p.src * sb;
          // The tile is packed first: rows a power of two apart would fight for the same cache
          // sets.
          if (p.src != nq) {
            copy_rows(in, pitch, raw.bytes, nq * sb, nq * sb, np, false);
            in = raw.bytes;
            pitch = nq * sb;
          }
          if (convert.kind != Convert::Kind::Copy) {
            convert(in, converted.bytes, np * nq);
            in = converted.bytes;
            pitch = nq * db;
          }
          transpose(in, pitch, out, q.dst * db, np, nq, db);
        }
      });
}

// --- generic --------------------------------------------------------------------------------

void copy_generic(const std::byte* src, std::byte* dst, std::span<const StridedDim> dims,
                  const Convert& convert) {
  const int64_t sb = convert.src_bytes, db = convert.dst_bytes;
  size_t inner = dims.size() - 1;
  if (dims[inner].size < 8)
    for (size_t i = 0; i < dims.size(); ++i)
      if (dims[i].size > dims[inner].size) inner = i;
  const StridedDim lane = dims[inner];
  Outer rows;
  for (size_t i = 0; i < dims.size(); ++i)
    if (i != inner) rows.add(dims[i].size, dims[i].src, dims[i].dst);

  constexpr int64_t kChunk = 2048, kPieces = 1024;
  static_assert(kChunk * 16 <= kStaging);
  struct Piece {
    int64_t dst, size;
  };
  const int64_t total = rows.total * lane.size;
  parallel_bytes(total, total * (sb + db), [&](int64_t begin, int64_t end) {
    Staging raw, converted;
    Piece pieces[kPieces];
    while (begin < end) {
      int64_t filled = 0, count = 0;
      while (begin < end && filled < kChunk && count < kPieces) {
        int64_t from, to;
        rows.locate(begin / lane.size, from, to);
        const int64_t at = begin % lane.size;
        const int64_t n = std::min({lane.size - at, end - begin, kChunk - filled});
        gather_strided(src + (from + at * lane.src) * sb, lane.src * sb, raw.bytes + filled * sb, n,
                       sb);
        pieces[count++] = {to + at * lane.dst, n};
        filled += n;
        begin += n;
      }
      const std::byte* run = raw.bytes;
      if (convert.kind != Convert::Kind::Copy) {
        convert(raw.bytes, converted.bytes, filled);
        run = converted.bytes;
      }
      for (int64_t i = 0; i < count; ++i) {
        scatter_strided(run, dst + pieces[i].dst * db, lane.dst * db, pieces[i].size, db);
        run += pieces[i].size * db;
      }
    }
  });
}

bool same_bits(HostType type, Format format) {
  if (host_bytes(type) != format_bytes(format)) return false;
  if (is_host_format(format) || (type >= HostType::RAW1 && type <= HostType::RAW16)) return true;
  switch (type) {
    case HostType::F16:
      return format == Format::IEEE_FP16;
    case HostType::BF16:
      return format == Format::BFLOAT16;
    case HostType::F32:
      return format == Format::IEEE_FP32;
    case HostType::I8:
      return format == Format::SENINT8;
    case HostType::I16:
      return format == Format::SENINT16;
    case HostType::I32:
      return format == Format::IEEE_INT32;
    case HostType::I64:
      return format == Format::IEEE_INT64;
    case HostType::U8:
      return format == Format::SENUINT8;
    default:
      return false;  // bool and fp8 pass through the tables of formats.cpp
  }
}

void require_conversion(HostType type, Format format) {
  if (!can_convert(type, format))
    throw std::invalid_argument("the card's format " + std::string(format_name(format)) +
                                " has no conversion with host type " +
                                std::to_string(static_cast<int>(type)) + " of " +
                                std::to_string(host_bytes(type)) + " bytes");
}

}  // namespace

Convert Convert::copy(int64_t bytes) {
  Convert convert;
  convert.src_bytes = convert.dst_bytes = bytes;
  return convert;
}

Convert Convert::to_card(HostType type, Format format, const Numerics& numerics) {
  require_conversion(type, format);
  if (same_bits(type, format)) return copy(host_bytes(type));
  return {Kind::Encode, type, format, &numerics, host_bytes(type), format_bytes(format)};
}

Convert Convert::to_host(Format format, HostType type, const Numerics& numerics) {
  require_conversion(type, format);
  if (same_bits(type, format)) return copy(host_bytes(type));
  return {Kind::Decode, type, format, &numerics, format_bytes(format), host_bytes(type)};
}

void Convert::operator()(const std::byte* src, std::byte* dst, int64_t n) const {
  switch (kind) {
    case Kind::Copy:
      std::memcpy(dst, src, static_cast<size_t>(n * src_bytes));
      return;
    case Kind::Encode:
      encode(host, card, src, dst, static_cast<size_t>(n), *numerics);
      return;
    case Kind::Decode:
      decode(card, host, src, dst, static_cast<size_t>(n), *numerics);
      return;
  }
}

void parallel_on_pool(int64_t n, int64_t grain, const void* body,
                      void (*call)(const void*, int64_t, int64_t)) {
  Pool::get().parallel_for(n, grain, [=](int64_t begin, int64_t end) { call(body, begin, end); });
}

void strided_copy(const std::byte* src, std::byte* dst, std::span<StridedDim> dims,
                  const Convert& convert) {
  if (dims.size() > kMaxStridedRank)
    throw std::invalid_argument("a strided copy has at most 64 loops");
  const std::span<const StridedDim> nest = dims.first(normalise(dims));
  if (nest.empty()) {
    convert(src, dst, 1);
    return;
  }
  size_t p = nest.size(), q = nest.size();
  for (size_t i = 0; i < nest.size(); ++i) {
    if (nest[i].dst == 1) p = i;
    if (nest[i].src == 1 && q == nest.size()) q = i;
    if (nest[i].dst == 1 && nest[i].src == 1) q = i;
  }
  if (p < nest.size() && p == q)
    copy_rows_blocked(src, dst, nest, p, convert);
  else if (p < nest.size() && q < nest.size() && nest[p].size >= 4 && nest[q].size >= 4)
    copy_transposed(src, dst, nest, p, q, convert);
  else
    copy_generic(src, dst, nest, convert);
}

void strided_fill(std::byte* dst, std::span<StridedDim> dims, const void* code, int64_t bytes) {
  if (dims.size() > kMaxStridedRank)
    throw std::invalid_argument("a strided fill has at most 64 loops");
  for (StridedDim& dim : dims) dim.src = 0;
  std::span<const StridedDim> nest = dims.first(normalise(dims));
  StridedDim lane{1, 0, 1};
  if (!nest.empty()) {
    lane = nest.back();
    nest = nest.first(nest.size() - 1);
  }
  // Loops join on the src side only when their src strides chain; zeros do, so this is exact.
  alignas(kStickBytes) std::byte pattern[4096];
  for (int64_t at = 0; at < 4096; at += bytes)
    std::memcpy(pattern + at, code, static_cast<size_t>(bytes));
  Outer rows;
  for (const StridedDim& dim : nest) rows.add(dim.size, 0, dim.dst);
  const int64_t total = rows.total * lane.size;
  parallel_bytes(total, total * bytes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      int64_t from, to;
      rows.locate(begin / lane.size, from, to);
      const int64_t at = begin % lane.size, n = std::min(lane.size - at, end - begin);
      std::byte* out = dst + (to + at * lane.dst) * bytes;
      if (lane.dst == 1) {
        for (int64_t done = 0; done < n * bytes; done += 4096)
          std::memcpy(out + done, pattern,
                      static_cast<size_t>(std::min<int64_t>(4096, n * bytes - done)));
      } else {
        for (int64_t i = 0; i < n; ++i)
          std::memcpy(out + i * lane.dst * bytes, code, static_cast<size_t>(bytes));
      }
      begin += n;
    }
  });
}

}  // namespace openspyre::machine
