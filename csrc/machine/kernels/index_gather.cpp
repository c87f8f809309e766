// GATHER and SCATTER inside LX, and the checks of all index kernels.
#include <string>

#include "machine/kernels/index_cells.h"
#include "machine/kernels/index_kernels.h"
#include "machine/program/execute.h"

namespace openspyre::machine {

namespace {

[[noreturn]] void bad_index(const ComputeTask& task, const Points& points, int64_t index) {
  std::string point;
  for (int label = 0; label < task.labels; ++label) {
    if (label) point += ", ";
    point +=
        task.code->over[label].name + "=" + std::to_string(task.start[label] + points.at[label]);
  }
  throw LaunchFault(LaunchFault::Kind::Index,
                    std::string(kind_name(task.code->kind)) + ": the index at (" + point + ") is " +
                        std::to_string(index) + ", outside 0.." + std::to_string(task.limit - 1) +
                        " of label " + task.code->over[task.code->index_label].name);
}

int64_t checked_index(const ComputeTask& task, const Points& points, const Place& place) {
  const std::byte* at = place.view->base + points.offset(place);
  const int64_t index = load_cell(place.view->format, at, *task.numerics);
  if (index < 0 || index >= task.limit) bad_index(task, points, index);
  return index;
}

bool moved(const View& view, int label) { return view.stride[label] != 0 || view.stick == label; }

int64_t add_cells(Format format, int64_t a, int64_t b) {
  if (is_float(format)) return of_float(as_float(a) + as_float(b));
  return int64_t(uint64_t(a) + uint64_t(b));  // narrower formats keep the low bits
}

// The tile that `replaced` marks has its position along the label given by the index tile; the
// other keeps the point. `from` is read, `to` written.
void move(const ComputeTask& task, const View& from_view, bool from_indexed, const View& to_view,
          bool add) {
  const int by = task.code->index_label;
  const Place from(from_view), to(to_view), numbers(task.input[1]);
  const Numerics& numerics = *task.numerics;
  // Whole runs along a common stick label, when the index does not change along it.
  const int stick = to_view.stick;
  const bool runs = stick >= 0 && stick != by && from_view.stick == stick &&
                    !moved(task.input[1], stick) && from_view.format == to_view.format;
  const Settle settle(to_view.format, numerics);
  unsigned skip = runs ? 1u << stick : 0;
  Points points(task, skip);
  do {
    const int64_t index = checked_index(task, points, numbers);
    int64_t source = points.offset(from), target = points.offset(to);
    if (from_indexed) {
      source += from.along(by, index) - from.along(by, points.at[by]);
    } else {
      target += to.along(by, index) - to.along(by, points.at[by]);
    }
    const std::byte* read = from_view.base + source;
    std::byte* write = to_view.base + target;
    if (runs) {
      const int64_t size = task.size[stick];
      for (int64_t i = 0; i < size; i += to.eps) {
        const int64_t n = size - i < to.eps ? size - i : to.eps;
        if (add) {
          add_elements(to_view.format, write, read, n, numerics);
        } else {
          std::memcpy(write, read, size_t(n * to.bytes));
          settle_run(write, n, to.bytes, settle);
        }
        read += from_view.stride[stick];
        write += to_view.stride[stick];
      }
      continue;
    }
    int64_t cell = load_cell(from_view.format, read, numerics);
    if (add) {
      cell = add_cells(to_view.format, load_cell(to_view.format, write, numerics), cell);
    }
    store_cell(to_view.format, write, cell, numerics);
  } while (points.next());
}

}  // namespace

void gather(const ComputeTask& task) { move(task, task.input[0], true, task.output[0], false); }

void scatter(const ComputeTask& task) {
  move(task, task.input[0], false, task.output[0], task.code->add);
}

const char* unsupported_index(const Instruction& code) {
  const size_t inputs = code.inputs.size(), outputs = code.outputs.size();
  if (code.index_label < 0) return "gather, scatter, sort, merge and topk need a label";
  for (const auto* tiles : {&code.inputs, &code.outputs}) {
    for (const Access& access : *tiles) {
      if (access.lanes) return "gather, scatter, sort, merge and topk take no lane accumulators";
      if (!is_float(access.format) && !is_integer(access.format)) {
        return "gather, scatter, sort, merge and topk need formats with registers, no host format";
      }
    }
  }
  switch (code.kind) {
    case Kind::Gather:
    case Kind::Scatter:
      if (inputs != 2 || outputs != 1)
        return "gather and scatter: inputs source, index; one output";
      if (!is_integer(code.inputs[1].format))
        return "gather and scatter: the index must be integer";
      if (!agree(code.inputs[0].format, code.outputs[0].format)) {
        return "gather and scatter: source and output need the same register type; cast before";
      }
      return "";
    case Kind::Sort:
    case Kind::TopK:
      if (inputs < 1 || inputs > 2 || outputs != 2) {
        return "sort and topk: inputs values and, if wanted, indices; outputs values and indices";
      }
      if (!agree(code.inputs[0].format, code.outputs[0].format)) {
        return "sort and topk: the values need the same register type; cast before";
      }
      if (!is_integer(code.outputs[1].format) ||
          (inputs == 2 && !is_integer(code.inputs[1].format))) {
        return "sort and topk: indices must be integers";
      }
      return "";
    case Kind::Merge:
      if (inputs != 4 || outputs != 4) {
        return "merge: inputs va, ia, vb, ib; outputs v low, i low, v high, i high";
      }
      for (const size_t i : {0, 1, 2, 3}) {
        if (i % 2 == 0
                ? !agree(code.inputs[0].format, code.inputs[i].format) ||
                      !agree(code.inputs[0].format, code.outputs[i].format)
                : !is_integer(code.inputs[i].format) || !is_integer(code.outputs[i].format)) {
          return "merge: values of one register type, indices of integers";
        }
      }
      return "";
    default:
      return "";
  }
}

}  // namespace openspyre::machine
