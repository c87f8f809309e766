// SORT, MERGE and TOPK: a row of values along a label at a time, by sortable keys.
//
// The key of a value is an integer whose ascending order is the asked one: zeros equal, NaN above
// everything, all reversed for `descending`. Ties go by position, which makes every sort stable.
#include <algorithm>
#include <string>
#include <vector>

#include "machine/kernels/index_cells.h"
#include "machine/kernels/index_kernels.h"
#include "machine/program/execute.h"

namespace openspyre::machine {

namespace {

constexpr int64_t kLongestRow = int64_t(1) << 26;  // entries; more than any LX holds

int64_t key_of(bool floating, int64_t cell, bool descending) {
  int64_t key = cell;
  if (floating) {
    const uint32_t mag = uint32_t(cell) & 0x7FFFFFFFu;
    key = uint32_t(cell) >> 31 ? -int64_t(mag) : int64_t(mag);
    if (mag > detail::kFloatInf) key = int64_t(1) << 32;
  }
  return descending ? ~key : key;
}

struct Entry {
  int64_t key, position;
  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

// Values and their indices along the label, from the two tiles (no second: global indices).
class Row {
 public:
  Row(const ComputeTask& task, const View& values, const View* indices)
      : task_(task), values_(values), indices_(indices ? *indices : values), given_(indices) {}
  void seek(const Points& points) {  // to the row of these labels
    value_at_ = values_.view->base + points.offset(values_);
    index_at_ = indices_.view->base + points.offset(indices_);
  }
  void append(int64_t count, std::vector<int64_t>& values, std::vector<int64_t>& indices) const {
    const int by = task_.code->index_label;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(
          load_cell(values_.view->format, value_at_ + values_.along(by, i), *task_.numerics));
      indices.push_back(given_ ? load_cell(indices_.view->format, index_at_ + indices_.along(by, i),
                                           *task_.numerics)
                               : task_.start[by] + i);
    }
  }
  void put(int64_t i, int64_t value, int64_t index) const {
    const int by = task_.code->index_label;
    store_cell(values_.view->format, value_at_ + values_.along(by, i), value, *task_.numerics);
    store_cell(indices_.view->format, index_at_ + indices_.along(by, i), index, *task_.numerics);
  }

 private:
  const ComputeTask& task_;
  Place values_, indices_;
  bool given_;
  std::byte *value_at_ = nullptr, *index_at_ = nullptr;
};

void check_length(const ComputeTask& task, int64_t length) {
  if (length >= 1 && length <= kLongestRow) return;
  throw LaunchFault(LaunchFault::Kind::Index, std::string(kind_name(task.code->kind)) + ": " +
                                                  std::to_string(length) + " entries along label " +
                                                  task.code->over[task.code->index_label].name +
                                                  "; it takes 1.." + std::to_string(kLongestRow));
}

}  // namespace

void sort(const ComputeTask& task) {
  const int by = task.code->index_label;
  const int64_t n = task.size[by];
  check_length(task, n);
  const bool floating = is_float(task.input[0].format);
  Row in(task, task.input[0], task.inputs > 1 ? &task.input[1] : nullptr);
  Row out(task, task.output[0], &task.output[1]);
  std::vector<int64_t> values, indices;
  std::vector<Entry> entries;
  Points points(task, 1u << by);
  do {
    values.clear(), indices.clear(), entries.clear();
    in.seek(points), out.seek(points);
    in.append(n, values, indices);
    for (int64_t i = 0; i < n; ++i) {
      entries.push_back({key_of(floating, values[size_t(i)], task.code->descending), i});
    }
    std::sort(entries.begin(), entries.end());
    for (int64_t i = 0; i < n; ++i) {
      const auto from = size_t(entries[size_t(i)].position);
      out.put(i, values[from], indices[from]);
    }
  } while (points.next());
}

void merge(const ComputeTask& task) {
  const int by = task.code->index_label;
  const auto n = size_t(task.size[by]);
  check_length(task, task.size[by]);
  const bool floating = is_float(task.input[0].format), descending = task.code->descending;
  Row a(task, task.input[0], &task.input[1]), b(task, task.input[2], &task.input[3]);
  Row low(task, task.output[0], &task.output[1]), high(task, task.output[2], &task.output[3]);
  std::vector<int64_t> values, indices;  // a's, then b's
  Points points(task, 1u << by);
  do {
    values.clear(), indices.clear();
    for (Row* row : {&a, &b, &low, &high}) row->seek(points);
    a.append(int64_t(n), values, indices);
    b.append(int64_t(n), values, indices);
    const auto key = [&](size_t i) { return key_of(floating, values[i], descending); };
    size_t next_a = 0, next_b = n;
    for (size_t i = 0; i < 2 * n; ++i) {
      const bool take_a = next_b == 2 * n || (next_a < n && key(next_a) <= key(next_b));
      const size_t from = take_a ? next_a++ : next_b++;
      const Row& half = i < n ? low : high;
      half.put(int64_t(i < n ? i : i - n), values[from], indices[from]);
    }
  } while (points.next());
}

void topk(const ComputeTask& task) {
  const int by = task.code->index_label;
  const int64_t n = task.size[by], limit = task.limit;
  check_length(task, n);
  check_length(task, limit);
  const bool floating = is_float(task.input[0].format);
  Row in(task, task.input[0], task.inputs > 1 ? &task.input[1] : nullptr);
  Row out(task, task.output[0], &task.output[1]);
  std::vector<int64_t> values, indices;
  std::vector<Entry> entries;
  Points points(task, 1u << by);
  do {
    values.clear(), indices.clear(), entries.clear();
    in.seek(points), out.seek(points);
    if (task.accumulate) out.append(limit, values, indices);
    const size_t held = values.size();
    in.append(n, values, indices);
    for (size_t i = 0; i < values.size(); ++i) {
      if (i < held && indices[i] == -1) continue;  // earlier places that were never filled
      entries.push_back({key_of(floating, values[i], task.code->descending), int64_t(i)});
    }
    const size_t found = std::min(entries.size(), size_t(limit));
    std::partial_sort(entries.begin(), entries.begin() + int64_t(found), entries.end());
    for (int64_t i = 0; i < limit; ++i) {
      const bool filled = size_t(i) < found;
      const size_t from = filled ? size_t(entries[size_t(i)].position) : 0;
      out.put(i, filled ? values[from] : 0, filled ? indices[from] : -1);
    }
  } while (points.next());
}

}  // namespace openspyre::machine
