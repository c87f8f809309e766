// What the instructions of a core do to bytes: LOAD, STORE, RING, COMPUTE.
//
// Every address is checked here, before a byte of it is touched; kernels get tiles that are good.
#include <algorithm>
#include <cstring>

#include "machine/program/check.h"
#include "machine/program/core.h"

namespace openspyre::machine {

namespace {

using FaultKind = LaunchFault::Kind;

// Sticks or points that count as one step of a launch's limit.
constexpr int64_t kSticksPerStep = 64, kPointsPerStep = 4096;

int64_t saturating(int64_t a, int64_t b) {
  int64_t out;
  return __builtin_mul_overflow(a, b, &out) ? INT64_MAX : out;
}

std::string label_name(const Instruction& code, int label) {
  return code.over[static_cast<size_t>(label)].name;
}

}  // namespace

void Core::evaluate_over(const Instruction& code, const int64_t* env) {
  over_.labels = static_cast<int>(code.over.size());
  over_.empty = false;
  for (int i = 0; i < over_.labels; ++i) {
    const Label& label = code.over[static_cast<size_t>(i)];
    over_.start[i] = evaluate(label.start, env);
    const int64_t size = over_.size[i] = evaluate(label.size, env);
    if (size < 0) {
      throw Fault{FaultKind::Number,
                  "the size of label " + label.name + " is " + std::to_string(size)};
    }
    over_.empty = over_.empty || size == 0;
  }
}

void Core::resolve(const Access& access, const int64_t* env, Tile* tile, int label, int64_t extent,
                   int64_t first) const {
  tile->access = &access;
  const int labels = tile->labels = over_.labels;
  for (int i = 0; i < labels; ++i) tile->stride[i] = 0;
  for (const Stride& stride : access.strides)
    tile->stride[stride.label] = evaluate(stride.bytes, env);
  tile->address = evaluate(access.offset, env);
  std::string where;
  int64_t limit = 0;
  if (access.buffer >= 0) {
    const Buffer& buffer = shared_.program.buffers[static_cast<size_t>(access.buffer)];
    const int64_t slot = evaluate(access.slot, env);
    if (slot < 0 || slot >= buffer.slots) {
      throw Fault{FaultKind::Index, "buffer " + buffer.name + " has slots 0.." +
                                        std::to_string(buffer.slots - 1) + ", not " +
                                        std::to_string(slot)};
    }
    tile->address = openspyre::machine::add(tile->address, buffer.base + slot * buffer.slot_bytes);
    limit = shared_.program.card_lx_bytes;
  } else {
    limit = static_cast<int64_t>(std::min<uint64_t>(
        shared_.launch.operands[static_cast<size_t>(access.operand)].bytes, INT64_MAX));
  }
  const int64_t bytes = format_bytes(access.format), eps = kStickBytes / bytes;
  tile->point_bytes = access.lanes ? kLaneAccumulators * bytes : kStickBytes;
  tile->sticks = tile->point_bytes / kStickBytes;
  int64_t low = tile->address, high = tile->address, odd = tile->address;
  for (int i = 0; i < labels; ++i) {
    const int64_t size = i == label ? extent : over_.size[i];
    const int64_t stride = tile->stride[i];
    const int64_t count = i == access.stick ? (size - 1) / eps + 1 : stride == 0 ? 1 : size;
    tile->count[i] = count;
    tile->sticks = saturating(tile->sticks, count);
    odd |= stride;
    if (i == label && first != 0) {
      const int64_t skipped = multiply(first, stride);
      low = openspyre::machine::add(low, skipped);
      high = openspyre::machine::add(high, skipped);
    }
    const int64_t reach = multiply(count - 1, stride);
    if (reach > 0) high = openspyre::machine::add(high, reach);
    if (reach < 0) low = openspyre::machine::add(low, reach);
  }
  high = openspyre::machine::add(high, tile->point_bytes);
  tile->low = low;
  tile->high = high;
  if (low >= 0 && high <= limit && odd % kStickBytes == 0) return;
  const std::string name =
      access.buffer >= 0
          ? "buffer " + shared_.program.buffers[static_cast<size_t>(access.buffer)].name
          : "operand " + shared_.program.operands[static_cast<size_t>(access.operand)].name;
  if (odd % kStickBytes != 0) {
    throw Fault{FaultKind::Address, name + ": address " + std::to_string(tile->address) +
                                        " or a stride of the tile is no multiple of 128"};
  }
  throw Fault{FaultKind::Address, name + ": bytes " + std::to_string(low) + ".." +
                                      std::to_string(high) + " leave the " + std::to_string(limit) +
                                      " bytes of " + (access.buffer >= 0 ? "LX" : "the operand")};
}

// The dims of a copy to `to`. `from`: the source's strides; `without`: a label left out, or -1.
// Steps along a label are those of the tile that has more of them: a label that moves one side only
// repeats the other.
StickBox Core::pair(const int64_t* from, const Tile& source, const Tile& to, int without) const {
  StickBox box;
  for (int i = 0; i < over_.labels; ++i) {
    if (i != without) box.add(std::max(source.count[i], to.count[i]), from[i], to.stride[i]);
  }
  return box;
}

int64_t Core::index_at(const Instruction& code, const Tile& tile, int64_t t, int64_t limit) const {
  const Access& access = *tile.access;
  const int label = code.index_label;
  const int64_t bytes = format_bytes(access.format), eps = kStickBytes / bytes;
  const std::byte* at = lx_ + tile.address;
  at += access.stick == label ? t / eps * tile.stride[label] + t % eps * bytes
                              : t * tile.stride[label];
  int64_t index;
  if (access.format == Format::IEEE_INT32) {
    int32_t narrow;
    std::memcpy(&narrow, at, sizeof narrow);
    index = narrow;
  } else {
    std::memcpy(&index, at, sizeof index);
  }
  if (index < 0 || index >= limit) {
    throw Fault{FaultKind::Index, "index " + std::to_string(index) + " at " +
                                      label_name(code, label) + " = " + std::to_string(t) +
                                      " is outside 0.." + std::to_string(limit - 1)};
  }
  return index;
}

void Core::load(const Instruction& code, const int64_t* env) {
  evaluate_over(code, env);
  if (over_.empty) return;
  const bool indexed = code.index_label >= 0;
  const int64_t limit = indexed ? std::max<int64_t>(evaluate(code.limit, env), 0) : 0;
  Tile from, to;
  resolve(code.inputs[0], env, &from, code.index_label, std::max<int64_t>(limit, 1));
  resolve(code.outputs[0], env, &to);
  if (indexed) return gather(code, env, from, to);
  const StickBox box = pair(from.stride, from, to, -1);
  charge(box.points() / kSticksPerStep);
  counts_.bytes_read += box.points() * kStickBytes;
  const std::byte* source = memory(code.inputs[0]) + from.address;
  const auto guard = lock_lx();
  if (shared_.deferrable[static_cast<size_t>(code.inputs[0].operand)]) {
    if (lazy_.defer(to, box, source)) return;
  } else {
    lazy_.before_write(to);
  }
  copy_sticks(lx_ + to.address, source, box, kStickBytes);
  counts_.bytes_copied += to.sticks * kStickBytes;
}

void Core::gather(const Instruction& code, const int64_t* env, const Tile& from, const Tile& to) {
  const int label = code.index_label;
  const int64_t limit = evaluate(code.limit, env), n = over_.size[label];
  Tile index;
  resolve(code.index_tile[0], env, &index);
  const StickBox box = pair(from.stride, from, to, label);
  charge(saturating(n, box.points()) / kSticksPerStep + n / kSticksPerStep);
  counts_.bytes_read += saturating(n, box.points()) * kStickBytes;
  const auto guard = lock_lx();
  lazy_.before_read(index.low, index.high);
  lazy_.before_read(to.low, to.high);
  const std::byte* source = memory(code.inputs[0]) + from.address;
  for (int64_t t = 0; t < n; ++t) {
    copy_sticks(lx_ + to.address + t * to.stride[label],
                source + index_at(code, index, t, limit) * from.stride[label], box, kStickBytes);
  }
  counts_.bytes_copied += saturating(n, box.points()) * kStickBytes;
}

void Core::store(const Instruction& code, const int64_t* env) {
  evaluate_over(code, env);
  if (over_.empty) return;
  Tile from, to{};
  resolve(code.inputs[0], env, &from);
  const bool indexed = code.index_label >= 0;
  Rows rows;
  if (indexed) {
    rows.limit = evaluate(code.limit, env);
    const int64_t first = evaluate(code.first, env), count = evaluate(code.window, env);
    int64_t end;
    if (__builtin_add_overflow(first, count, &end)) end = INT64_MAX;
    rows.first = std::max<int64_t>(first, 0);
    rows.end = std::min(end, rows.limit);
    // Only what may be stored must lie inside the operand.
    const int64_t extent = std::max<int64_t>(rows.end - rows.first, 1);
    if (rows.first < rows.end) {
      resolve(code.outputs[0], env, &to, code.index_label, extent, rows.first);
    }
  } else {
    resolve(code.outputs[0], env, &to);
  }
  const std::byte* source = nullptr;
  int64_t stride[kMaxLabels];
  {
    const auto guard = lock_lx();
    if (!lazy_.find(from, &source, stride)) {
      source = lx_ + from.address;
      std::copy_n(from.stride, over_.labels, stride);
    }
  }
  if (indexed) return scatter(code, env, rows, from, source, stride, to);
  const StickBox box = pair(stride, from, to, -1);
  charge(box.points() / kSticksPerStep);
  copy_sticks(memory(code.outputs[0]) + to.address, source, box, kStickBytes);
  counts_.bytes_written += to.sticks * kStickBytes;
}

void Core::scatter(const Instruction& code, const int64_t* env, const Rows& rows, const Tile& from,
                   const std::byte* source, const int64_t* source_stride, const Tile& to) {
  const int label = code.index_label;
  const int64_t n = over_.size[label];
  Tile index;
  resolve(code.index_tile[0], env, &index);
  {
    const auto guard = lock_lx();
    lazy_.before_read(index.low, index.high);
  }
  charge(n / kSticksPerStep);
  if (rows.first >= rows.end) {  // nothing is this core's; the indices must be good all the same
    for (int64_t t = 0; t < n; ++t) index_at(code, index, t, rows.limit);
    return;
  }
  const StickBox box = pair(source_stride, from, to, label);
  charge(saturating(n, box.points()) / kSticksPerStep);
  std::byte* const base = memory(code.outputs[0]);
  for (int64_t t = 0; t < n; ++t) {
    const int64_t at = index_at(code, index, t, rows.limit);
    if (at < rows.first || at >= rows.end) continue;
    const std::byte* const one = source + t * source_stride[label];
    std::byte* const there = base + (to.address + at * to.stride[label]);
    counts_.bytes_written += box.points() * kStickBytes;
    if (code.add) {
      add_sticks(code, there, one, from, source_stride, to);
    } else {
      copy_sticks(there, one, box, kStickBytes);
    }
  }
}

// Adds the sticks of one index, in label order; of the last stick only the valid elements.
void Core::add_sticks(const Instruction& code, std::byte* to, const std::byte* from,
                      const Tile& source, const int64_t* source_stride, const Tile& target) const {
  const Format format = code.outputs[0].format;
  const int64_t eps = elements_per_stick(format);
  const int stick = code.outputs[0].stick;
  int64_t step[kMaxLabels] = {};
  for (;;) {
    int64_t from_at = 0, to_at = 0, valid = 1;
    for (int i = 0; i < over_.labels; ++i) {
      from_at += step[i] * source_stride[i];
      to_at += step[i] * target.stride[i];
      if (i == stick) valid = std::min(eps, over_.size[i] - step[i] * eps);
    }
    add_elements(format, to + to_at, from + from_at, valid, shared_.launch.numerics);
    int i = over_.labels - 1;
    for (; i >= 0; --i) {
      if (i == code.index_label) continue;
      if (++step[i] < std::max(source.count[i], target.count[i])) break;
      step[i] = 0;
    }
    if (i < 0) return;
  }
}

void Core::ring(const Instruction& code, int64_t* env) {
  const int64_t count = evaluate(code.count, env);
  if (count < 0) throw Fault{FaultKind::Number, "the ring's count is " + std::to_string(count)};
  int64_t taken = 0;
  Tile to{};  // with a combine that of the first source
  View target{}, source{};
  for (int64_t i = 0; i < count; ++i) {
    env[code.variable] = i;
    charge(1);
    const int64_t number = evaluate(code.core, env);
    evaluate_over(code, env);
    if (over_.empty) continue;
    if (number < 0 || number >= shared_.program.cores) {
      throw Fault{FaultKind::Index, "there is no core " + std::to_string(number) + " among " +
                                        std::to_string(shared_.program.cores)};
    }
    Tile from;
    resolve(code.inputs[0], env, &from);
    if (taken == 0 || !code.has_combine) resolve(code.outputs[0], env, &to);
    const StickBox box = pair(from.stride, from, to, -1);
    charge(saturating(box.points(), to.point_bytes / kStickBytes) / kSticksPerStep);
    Core& other = *shared_.cores[static_cast<size_t>(number)];
    {
      std::lock_guard guard(other.lx_mutex_);
      other.lazy_.before_read(from.low, from.high);
    }
    {
      std::lock_guard guard(lx_mutex_);
      lazy_.before_read(to.low, to.high);
    }
    const std::byte* const there = other.lx_ + from.address;
    if (!code.has_combine || taken++ == 0) {
      copy_sticks(lx_ + to.address, there, box, to.point_bytes, number == number_);
      continue;
    }
    view_of(to, lx_ + to.address, to.stride, &target);
    view_of(from, const_cast<std::byte*>(there), from.stride, &source);
    shared_.kernels.combine(code.combine, over_.labels, over_.size, target, source);
  }
  if (taken != 1 || !code.has_combine) return;
  // What is written is written as every result is, one source or many: truth as 1 or 0, a NaN as
  // the one NaN. The value joined with itself is the value.
  const bool truth = code.combine >= Combine::Any;
  if (!truth && code.outputs[0].format != Format::IEEE_FP32) return;
  view_of(to, lx_ + to.address, to.stride, &target);
  shared_.kernels.combine(truth ? code.combine : Combine::Max, over_.labels, over_.size, target,
                          target);
}

void Core::view_of(const Tile& tile, std::byte* base, const int64_t* stride, View* view) const {
  view->base = base;
  std::copy_n(stride, over_.labels, view->stride);
  view->stick = tile.access->stick;
  view->format = tile.access->format;
  view->lanes = tile.access->lanes;
}

// What a kernel takes for granted about sizes and movement, beyond addresses that are good.
void Core::check_box(const Instruction& code, const Tile* inputs, const Tile* outputs) {
  int64_t eps[kMaxLabels] = {}, points = 1;
  const auto look = [&](const Tile& tile) {
    const int stick = tile.access->stick;
    if (stick >= 0) eps[stick] = std::max(eps[stick], elements_per_stick(tile.access->format));
  };
  const auto n_in = static_cast<int>(code.inputs.size());
  const auto n_out = static_cast<int>(code.outputs.size());
  for (int i = 0; i < n_in; ++i) look(inputs[i]);
  for (int i = 0; i < n_out; ++i) look(outputs[i]);
  const bool whole = code.kind == Kind::Map || code.kind == Kind::Fold;
  for (int l = 0; l < over_.labels; ++l) {
    points = saturating(points, over_.size[l]);
    if (eps[l] != 0 && over_.start[l] % eps[l] != 0) {
      throw Fault{FaultKind::Address, "label " + label_name(code, l) +
                                          " lies on a stick and starts at " +
                                          std::to_string(over_.start[l]) +
                                          ", which is no multiple of " + std::to_string(eps[l])};
    }
    if (!whole || over_.size[l] == 1) continue;
    for (int i = 0; i < n_out; ++i) {
      if (outputs[i].stride[l] == 0 && (outputs[i].access->stick != l || outputs[i].count[l] > 1)) {
        throw Fault{FaultKind::Address, "an output is not moved by label " + label_name(code, l)};
      }
    }
  }
  charge(points / kPointsPerStep);
}

void Core::compute(const Instruction& code, const int64_t* env) {
  evaluate_over(code, env);
  if (over_.empty) return;
  ComputeTask& task = task_;
  task.code = &code;
  task.labels = over_.labels;
  std::copy_n(over_.start, over_.labels, task.start);
  std::copy_n(over_.size, over_.labels, task.size);
  task.inputs = static_cast<int>(code.inputs.size());
  task.outputs = static_cast<int>(code.outputs.size());
  task.accumulate = evaluate(code.accumulate, env) != 0;
  task.limit = evaluate(code.limit, env);
  task.symbols = shared_.launch.symbols;
  task.numerics = &shared_.launch.numerics;
  const Kind kind = code.kind;
  const bool by_limit = kind == Kind::Gather || kind == Kind::Scatter || kind == Kind::TopK;
  if (by_limit && task.limit < 1) {
    throw Fault{FaultKind::Index,
                "the limit is " + std::to_string(task.limit) + " and must be at least 1"};
  }

  Tile *const inputs = tiles_[0], *const outputs = tiles_[1];
  for (int i = 0; i < task.inputs; ++i) {
    const int label = kind == Kind::Gather && i == 0 ? code.index_label : -1;
    resolve(code.inputs[static_cast<size_t>(i)], env, &inputs[i], label, task.limit);
  }
  for (int i = 0; i < task.outputs; ++i) {
    const int label = kind == Kind::Scatter || kind == Kind::TopK ? code.index_label : -1;
    resolve(code.outputs[static_cast<size_t>(i)], env, &outputs[i], label, task.limit);
  }
  check_box(code, inputs, outputs);

  {
    const auto guard = lock_lx();
    for (int i = 0; i < task.inputs; ++i) {
      const std::byte* at = nullptr;
      int64_t stride[kMaxLabels];
      if (lazy_.find(inputs[i], &at, stride)) {
        view_of(inputs[i], const_cast<std::byte*>(at), stride, &task.input[i]);
      } else {
        view_of(inputs[i], lx_ + inputs[i].address, inputs[i].stride, &task.input[i]);
      }
    }
    // Of these kinds every stick of an output is written, and none is read before.
    const bool fresh = !task.accumulate && (kind == Kind::MatMul || kind == Kind::Map ||
                                            kind == Kind::Reduce || kind == Kind::Fold);
    for (int i = 0; i < task.outputs; ++i) {
      if (fresh) {
        lazy_.before_write(outputs[i]);
      } else {
        lazy_.before_read(outputs[i].low, outputs[i].high);
      }
      view_of(outputs[i], lx_ + outputs[i].address, outputs[i].stride, &task.output[i]);
    }
  }
  const Kernels& kernels = shared_.kernels;
  switch (kind) {
    case Kind::MatMul:
      return kernels.matmul(task);
    case Kind::Map:
      return kernels.map(task);
    case Kind::Reduce:
      return kernels.reduce(task);
    case Kind::Fold:
      return kernels.fold(task);
    case Kind::Scan:
      return kernels.scan(task);
    case Kind::Gather:
      return kernels.gather(task);
    case Kind::Scatter:
      return kernels.scatter(task);
    case Kind::Sort:
      return kernels.sort(task);
    case Kind::Merge:
      return kernels.merge(task);
    case Kind::TopK:
      return kernels.topk(task);
  }
}

}  // namespace openspyre::machine
