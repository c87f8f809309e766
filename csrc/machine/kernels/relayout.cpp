// MAP that only changes what lies on the stick: transposes of sticks, dense to sparse and back.
//
// A block of eps rows is transposed in registers, a square of one vector's lanes at a time, by
// log2(lanes) rounds of interleaving. Vectors of 16 bytes exist everywhere.
#include <utility>

#include "machine/kernels/index_cells.h"
#include "machine/kernels/index_kernels.h"

namespace openspyre::machine {

namespace {

template <class T>
struct Lanes {
  typedef T Type __attribute__((vector_size(16)));
};
template <class T>
using Square = typename Lanes<T>::Type;

template <class T, int... i>
Square<T> interleave(const Square<T>& a, const Square<T>& b, bool high,
                     std::integer_sequence<int, i...>) {
  constexpr int lanes = int(sizeof...(i));
  if (high) return __builtin_shufflevector(a, b, ((i & 1) * lanes + lanes / 2 + i / 2)...);
  return __builtin_shufflevector(a, b, ((i & 1) * lanes + i / 2)...);
}

template <class T>
Square<T> settled(Square<T> x, const Settle& settle) {
  const Square<T> bad = Square<T>((x & T(settle.mask)) > (Square<T>{} + T(settle.above)));
  return (x & ~bad) | (T(settle.nan) & bad);
}

struct Block {
  const std::byte* from;
  std::byte* to;
  int64_t from_row, to_row;  // bytes between rows; a row is a stick
  int64_t rows, columns;     // valid ones of `from`
};

template <class T, bool clean>
void transpose(const Block& block, const Settle& settle) {
  constexpr int lanes = 16 / int(sizeof(T));
  constexpr auto each = std::make_integer_sequence<int, lanes>{};
  for (int64_t c = 0; c < block.columns; c += lanes) {
    for (int64_t r = 0; r < block.rows; r += lanes) {
      Square<T> square[lanes], other[lanes];
#pragma GCC unroll 16
      for (int i = 0; i < lanes; ++i) {  // past the last row any will do
        const int64_t row = r + i < block.rows ? r + i : block.rows - 1;
        std::memcpy(&square[i], block.from + row * block.from_row + c * int64_t(sizeof(T)), 16);
        if constexpr (clean) square[i] = settled<T>(square[i], settle);
      }
#pragma GCC unroll 4
      for (int round = 1; round < lanes; round *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < lanes / 2; ++i) {
          other[2 * i] = interleave<T>(square[i], square[i + lanes / 2], false, each);
          other[2 * i + 1] = interleave<T>(square[i], square[i + lanes / 2], true, each);
        }
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) square[i] = other[i];
      }
      std::byte* to = block.to + c * block.to_row + r * int64_t(sizeof(T));
      const int64_t valid = block.columns - c < lanes ? block.columns - c : lanes;
      if (valid == lanes) {
#pragma GCC unroll 16
        for (int i = 0; i < lanes; ++i) std::memcpy(to + i * block.to_row, &square[i], 16);
      } else {
        for (int64_t i = 0; i < valid; ++i) std::memcpy(to + i * block.to_row, &square[i], 16);
      }
    }
  }
}

template <class T>
void transposes(const ComputeTask& task, const Settle& settle) {
  const View &in = task.input[0], &out = task.output[0];
  constexpr int64_t eps = kStickBytes / int64_t(sizeof(T));
  const int s = in.stick, t = out.stick;
  const Place from(in), to(out);
  Points points(task, 1u << s | 1u << t);
  do {
    const std::byte* read = in.base + points.offset(from);
    std::byte* write = out.base + points.offset(to);
    for (int64_t rows = 0; rows < task.size[t]; rows += eps) {
      for (int64_t columns = 0; columns < task.size[s]; columns += eps) {
        Block block;
        block.from = read + rows * in.stride[t] + columns / eps * in.stride[s];
        block.to = write + rows / eps * out.stride[t] + columns * out.stride[s];
        block.from_row = in.stride[t], block.to_row = out.stride[s];
        block.rows = task.size[t] - rows < eps ? task.size[t] - rows : eps;
        block.columns = task.size[s] - columns < eps ? task.size[s] - columns : eps;
        settle.idle() ? transpose<T, false>(block, settle) : transpose<T, true>(block, settle);
      }
    }
  } while (points.next());
}

// One side sparse: `line` is the label on the other side's stick.
template <class T>
void scatter_lanes(const ComputeTask& task, const Settle& settle) {
  const View &in = task.input[0], &out = task.output[0];
  constexpr int64_t eps = kStickBytes / int64_t(sizeof(T));
  const bool dense_in = in.stick >= 0;
  const int line = dense_in ? in.stick : out.stick;
  const int64_t size = task.size[line];
  const Place from(in), to(out);
  const T above = T(settle.above), nan = T(settle.nan), mask = T(settle.mask);
  const int64_t apart = dense_in ? out.stride[line] : in.stride[line];
  const int64_t dense_stride = dense_in ? in.stride[line] : out.stride[line];
  Points points(task, 1u << line);
  do {
    const std::byte* read = in.base + points.offset(from);
    std::byte* write = out.base + points.offset(to);
    for (int64_t start = 0; start < size; start += eps) {
      const int64_t n = size - start < eps ? size - start : eps;
      const std::byte* source = read + (dense_in ? start / eps * dense_stride : start * apart);
      std::byte* target = write + (dense_in ? start * apart : start / eps * dense_stride);
      const int64_t source_step = dense_in ? int64_t(sizeof(T)) : apart;
      const int64_t target_step = dense_in ? apart : int64_t(sizeof(T));
      for (int64_t i = 0; i < n; ++i, source += source_step, target += target_step) {
        const T code = read_as<T>(source);
        write_as(target, T(code & mask) > above ? nan : code);
      }
    }
  } while (points.next());
}

template <class T>
void relayout(const ComputeTask& task, const Settle& settle) {
  if (task.input[0].stick >= 0 && task.output[0].stick >= 0) {
    transposes<T>(task, settle);
  } else {
    scatter_lanes<T>(task, settle);
  }
}

}  // namespace

bool map_relayout(const ComputeTask& task) {
  if (task.inputs != 1 || task.outputs != 1) return false;
  const View &in = task.input[0], &out = task.output[0];
  if (in.format != out.format || in.stick == out.stick || in.lanes || out.lanes) return false;
  if (!is_float(in.format) && !is_integer(in.format)) return false;
  const Body& body = task.code->body;
  if (body.results.size() != 1 || body.nodes[size_t(body.results[0])].op != Op::Input) return false;
  const Settle settle(in.format, *task.numerics);
  switch (format_bytes(in.format)) {
    case 1:
      relayout<uint8_t>(task, settle);
      return true;
    case 2:
      relayout<uint16_t>(task, settle);
      return true;
    case 4:
      relayout<uint32_t>(task, settle);
      return true;
    case 8:
      relayout<uint64_t>(task, settle);
      return true;
    default:
      return false;
  }
}

}  // namespace openspyre::machine
