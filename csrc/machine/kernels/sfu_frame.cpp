// Blocks of an iteration box and the way of tiles into registers and back. See sfu_frame.h.
#include "machine/kernels/sfu_frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <new>

namespace openspyre::machine::sfu {
namespace {

int64_t padded(int64_t n) { return (n + kPad - 1) / kPad * kPad; }

struct Free {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(64)); }
};

// Raw elements from places `step` bytes apart. T: an unsigned integer of the element's size.
template <class T>
void gather(const std::byte* from, int64_t step, int64_t n, void* to) {
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < n; ++i) std::memcpy(out + i, from + i * step, sizeof(T));
}
template <class T>
void scatter(const void* from, int64_t n, std::byte* to, int64_t step) {
  const T* in = static_cast<const T*>(from);
  for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * step, in + i, sizeof(T));
}
void gather(int bytes, const std::byte* from, int64_t step, int64_t n, void* to) {
  switch (bytes) {
    case 1:
      return gather<uint8_t>(from, step, n, to);
    case 2:
      return gather<uint16_t>(from, step, n, to);
    case 4:
      return gather<uint32_t>(from, step, n, to);
    default:
      return gather<uint64_t>(from, step, n, to);
  }
}
void scatter(int bytes, const void* from, int64_t n, std::byte* to, int64_t step) {
  switch (bytes) {
    case 1:
      return scatter<uint8_t>(from, n, to, step);
    case 2:
      return scatter<uint16_t>(from, n, to, step);
    case 4:
      return scatter<uint32_t>(from, n, to, step);
    default:
      return scatter<uint64_t>(from, n, to, step);
  }
}
// Each of `rows` elements `group` times.
template <class T>
void spread(const T* from, int64_t rows, int64_t group, T* to) {
  for (int64_t r = 0; r < rows; ++r) std::fill_n(to + r * group, group, from[r]);
}

uint64_t code_of_one(Format format) {
  switch (format) {
    case Format::SEN169_FP16:
      return 0x3E00;
    case Format::IEEE_FP16:
      return 0x3C00;
    case Format::BFLOAT16:
      return 0x3F80;
    case Format::IEEE_FP32:
      return 0x3F800000;
    case Format::SEN143_FP8:
      return 0x38;
    case Format::SEN152_FP8:
      return 0x3C;
    default:
      return 1;
  }
}

}  // namespace

std::byte* scratch(size_t bytes) {
  thread_local std::unique_ptr<std::byte[], Free> memory;
  thread_local size_t size = 0;
  if (size < bytes) {
    memory.reset();
    size = 0;
    const size_t wanted = std::max<size_t>(bytes, size_t(1) << 16);
    memory.reset(static_cast<std::byte*>(::operator new[](wanted, std::align_val_t(64))));
    size = wanted;
    std::memset(memory.get(), 0, size);
  }
  return memory.get();
}

Register register_of_format(Format format) {
  switch (format) {
    case Format::SENINT8:
    case Format::SENINT16:
    case Format::IEEE_INT32:
    case Format::SENUINT8:
      return Register::I32;
    case Format::IEEE_INT64:
      return Register::I64;
    default:
      return Register::F32;
  }
}

Frame::Frame(const Isa& isa, const ComputeTask& task, int lane, int64_t group)
    : isa_(isa),
      task_(task),
      lane_(lane),
      group_(group),
      context_{0, task.numerics->tie, task.numerics->merged_is_nan} {
  for (int l = 0; l < task.labels; ++l) {
    extent_[l] = l == lane ? (task.size[l] + group - 1) / group : task.size[l];
  }
}

int64_t Frame::group_of(const ComputeTask& task, int lane) {
  if (lane < 0) return 1;
  int64_t group = kPad;
  const auto look = [&](const View& view) {
    if (view.stick == lane) group = std::max(group, elements_per_stick(view.format));
  };
  for (int i = 0; i < task.inputs; ++i) look(task.input[i]);
  for (int i = 0; i < task.outputs; ++i) look(task.output[i]);
  return group;
}

Block Frame::block(int64_t rows) const {
  Block b{1, lane_ < 0 ? 1 : std::min(group_, task_.size[lane_] - at[lane_] * group_)};
  if (inner_ < 0) return b;
  const int64_t left = extent_[inner_] - at[inner_];
  if (inner_ != lane_) {
    b.rows = std::min(rows, left);
  } else if (b.valid == group_) {  // a last group may be incomplete
    b.rows = std::clamp<int64_t>((task_.size[lane_] - at[lane_] * group_) / group_, 1, rows);
  }
  return b;
}

int64_t Frame::offset(const View& view, int label, int64_t steps) const {
  if (label != view.stick) return steps * unit(label) * view.stride[label];
  const int bytes = format_bytes(view.format);
  const int shift = std::countr_zero(unsigned(kStickBytes / bytes));
  const int64_t element = steps * unit(label);
  return (element >> shift) * view.stride[label] + (element & ((1 << shift) - 1)) * bytes;
}

std::byte* Frame::base(const View& view) const {
  std::byte* p = view.base;
  for (int l = 0; l < task_.labels; ++l) {
    if (at[l] != 0) p += offset(view, l, at[l]);
  }
  return p;
}

bool Frame::steady(const View& view, int64_t* step) const {
  *step = 0;
  if (inner_ < 0) return true;
  if (inner_ == view.stick && inner_ != lane_) return false;
  *step = offset(view, inner_, 1);
  return true;
}

std::byte* Frame::row(const View& view, std::byte* base, int64_t row) const {
  if (inner_ < 0) return base;
  return base + (offset(view, inner_, at[inner_] + row) - offset(view, inner_, at[inner_]));
}

// A tile with the lane label on its stick.
void Frame::load_sticks(const View& view, const Block& block, char* to, size_t width) const {
  const CodeLoop decode = isa_.decode[int(view.format)];
  const int64_t eps = elements_per_stick(view.format);
  std::byte* const from = base(view);
  int64_t step;
  steady(view, &step);
  if (eps == group_ && (step == kStickBytes || block.rows == 1)) {
    return decode(from, to, block.rows * group_, context_);
  }
  const int64_t sticks = (block.valid + eps - 1) / eps, stride = view.stride[lane_];
  const int64_t distinct = step == 0 ? 1 : block.rows;
  for (int64_t s = 0; s < sticks; ++s) {
    const std::byte* p = from + s * stride;
    char* out = to + size_t(s * eps) * width;
    for (int64_t r = 0; r < distinct; ++r) {
      decode(p + r * step, out + size_t(r * group_) * width, eps, context_);
    }
  }
  for (int64_t r = distinct; r < block.rows; ++r) {
    std::memcpy(to + size_t(r * group_) * width, to, size_t(group_) * width);
  }
}

void Frame::load(const View& view, const Block& block, void* to) const {
  const Register type = register_of_format(view.format);
  const size_t width = type == Register::I64 ? 8 : 4;
  if (lane_ >= 0 && view.stick == lane_) {
    return load_sticks(view, block, static_cast<char*>(to), width);
  }
  const int bytes = format_bytes(view.format);
  const CodeLoop decode = isa_.decode[int(view.format)];
  std::byte* const from = base(view);
  int64_t step;
  const bool even = steady(view, &step);
  const int64_t lane_step = lane_ < 0 ? 0 : view.stride[lane_];
  alignas(64) std::byte codes[kBlock * 8];
  if (lane_step != 0 && block.valid > 1) {  // an element per lane, each in its own place
    for (int64_t r = 0; r < block.rows; ++r) {
      const std::byte* p = even ? from + r * step : row(view, from, r);
      gather(bytes, p, lane_step, block.valid, codes + r * group_ * bytes);
    }
    return decode(codes, to, padded(block.rows * group_), context_);
  }
  // An element per row.
  const int64_t distinct = even && step == 0 ? 1 : block.rows;
  if (even) {
    gather(bytes, from, step, distinct, codes);
  } else {
    for (int64_t r = 0; r < distinct; ++r) {
      gather(bytes, row(view, from, r), 0, 1, codes + r * bytes);
    }
  }
  if (group_ == 1 && distinct == block.rows) return decode(codes, to, padded(distinct), context_);
  alignas(64) std::byte values[kBlock * 8];
  decode(codes, values, padded(distinct), context_);
  const int64_t each = distinct == 1 ? block.rows * group_ : group_;
  if (width == 8) {
    spread(reinterpret_cast<const int64_t*>(values), distinct, each, static_cast<int64_t*>(to));
  } else {
    spread(reinterpret_cast<const int32_t*>(values), distinct, each, static_cast<int32_t*>(to));
  }
}

void Frame::encode(const View& view, Register type, const void* from, void* to, int64_t n) const {
  if (type == Register::Bool) {
    const int size = std::countr_zero(unsigned(format_bytes(view.format)));
    return isa_.truth[size](from, to, n, code_of_one(view.format));
  }
  isa_.encode[int(view.format)](from, to, n, context_);
}

void Frame::store(const View& view, const Block& block, Register type, const void* from) const {
  const size_t width = type == Register::I64 ? 8 : 4;
  const char* in = static_cast<const char*>(from);
  const int bytes = format_bytes(view.format);
  std::byte* const to = base(view);
  int64_t step;
  const bool even = steady(view, &step);
  if (lane_ >= 0 && view.stick == lane_) {
    const int64_t eps = elements_per_stick(view.format);
    if (eps == group_ && (step == kStickBytes || block.rows == 1)) {
      return encode(view, type, in, to, block.rows * group_);
    }
    const int64_t sticks = (block.valid + eps - 1) / eps, stride = view.stride[lane_];
    for (int64_t s = 0; s < sticks; ++s) {
      for (int64_t r = 0; r < block.rows; ++r) {
        encode(view, type, in + size_t(r * group_ + s * eps) * width, to + s * stride + r * step,
               eps);
      }
    }
    return;
  }
  alignas(64) std::byte codes[kBlock * 8];
  encode(view, type, in, codes, padded(block.rows * group_));
  const int64_t lane_step = lane_ < 0 ? 0 : view.stride[lane_];
  if (group_ == 1 && even) return scatter(bytes, codes, block.rows, to, step);
  for (int64_t r = 0; r < block.rows; ++r) {
    std::byte* p = even ? to + r * step : row(view, to, r);
    scatter(bytes, codes + r * group_ * bytes, block.valid, p, lane_step);
  }
}

void Frame::index(int label, const Block& block, int64_t* to) const {
  const int64_t first = task_.start[label] + at[label] * unit(label);
  const int64_t per_row = label == inner_ ? unit(label) : 0, per_lane = label == lane_ ? 1 : 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t j = 0; j < group_; ++j) to[r * group_ + j] = first + r * per_row + j * per_lane;
  }
}

bool advance(Frame& frame, const int* order, const int64_t* step, int count) {
  for (int i = count - 1; i >= 0; --i) {
    int64_t& at = frame.at[order[i]];
    at += step[i];
    if (at < frame.extent(order[i])) return true;
    at = 0;
  }
  return false;
}

}  // namespace openspyre::machine::sfu
