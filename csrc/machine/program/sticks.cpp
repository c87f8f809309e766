// See sticks.h.
#include "machine/program/sticks.h"

#include <cstring>
#include <utility>

namespace openspyre::machine {

bool StickBox::nest(int64_t point_bytes) {
  StickBox sorted = *this;
  for (int i = 1; i < dims; ++i) {  // at most eight dims
    for (int j = i; j > 0 && sorted.to[j - 1] < sorted.to[j]; --j) {
      std::swap(sorted.to[j - 1], sorted.to[j]);
      std::swap(sorted.from[j - 1], sorted.from[j]);
      std::swap(sorted.count[j - 1], sorted.count[j]);
    }
  }
  int64_t span = point_bytes;  // the spans were checked: no sum here overflows
  for (int i = dims - 1; i >= 0; --i) {
    if (sorted.to[i] < span) return false;
    span = sorted.to[i] * (sorted.count[i] - 1) + span;
  }
  *this = sorted;
  return true;
}

int64_t StickBox::points() const {
  int64_t n = 1;
  for (int i = 0; i < dims; ++i) {
    if (__builtin_mul_overflow(n, count[i], &n)) return INT64_MAX;
  }
  return n;
}

namespace {

struct Mover {
  int64_t run;
  bool overlap;

  void line(std::byte* to, const std::byte* from, int64_t n, int64_t to_step,
            int64_t from_step) const {
    if (overlap) {
      for (int64_t i = 0; i < n; ++i) {
        std::memmove(to + i * to_step, from + i * from_step, static_cast<size_t>(run));
      }
    } else if (run == kStickBytes) {
      for (int64_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, 128);
    } else {
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(to + i * to_step, from + i * from_step, static_cast<size_t>(run));
      }
    }
  }

  void box(std::byte* to, const std::byte* from, const StickBox& b, int dim, int last) const {
    if (dim == last) return line(to, from, b.count[dim], b.to[dim], b.from[dim]);
    for (int64_t i = 0; i < b.count[dim]; ++i) {
      box(to + i * b.to[dim], from + i * b.from[dim], b, dim + 1, last);
    }
  }
};

}  // namespace

void copy_sticks(std::byte* to, const std::byte* from, const StickBox& given, int64_t point_bytes,
                 bool may_overlap) {
  StickBox box = given;
  if (!may_overlap) box.nest(point_bytes);
  int64_t run = point_bytes;
  while (box.dims > 0 && box.to[box.dims - 1] == run && box.from[box.dims - 1] == run) {
    run *= box.count[--box.dims];
  }
  const Mover mover{run, may_overlap};
  if (box.dims == 0) return mover.line(to, from, 1, 0, 0);
  mover.box(to, from, box, 0, box.dims - 1);
}

}  // namespace openspyre::machine
