// Byte offsets of the elements of a view, in view order, computed incrementally.
//
// Torch-free. The general path of the copies: any view of any layout. A walker carries the
// index of each layout axis along and divides only when a row of the view begins.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/layout.h"

namespace openspyre::machine {

// Both walkers drop dims of size 1 and run the last dim fastest, so that the two sides of a copy
// see the same element order.
class StridedWalker {  // plain strided memory
 public:
  StridedWalker(Dims sizes, Dims strides, int64_t element_bytes);
  // Offsets of the view elements [begin, begin + n), n >= 1.
  void offsets(int64_t begin, int64_t n, int64_t* out) const;

 private:
  std::vector<int64_t> sizes_, strides_;
};

class LayoutWalker {  // first place of each element
 public:
  LayoutWalker(const Layout& layout, int64_t offset, Dims sizes, Dims strides);
  void offsets(int64_t begin, int64_t n, int64_t* out) const;

 private:
  struct Digit {
    int64_t unit, device_bytes;
    int shift;  // log2(unit), or -1
  };
  struct Axis {
    int64_t size, host_stride;
    size_t first, last;  // its digits
    int64_t place(const std::vector<Digit>& digits, int64_t index) const;
  };
  void row(int64_t linear, int64_t step, int64_t n, int64_t* out) const;

  std::vector<int64_t> sizes_, strides_;
  int64_t offset_;
  std::vector<Axis> axes_;  // ascending host stride
  std::vector<Digit> digits_;
};

// Byte offsets of all places of an element, relative to its first; {0} without copies.
std::vector<int64_t> copy_offsets(const Layout& layout);

}  // namespace openspyre::machine
