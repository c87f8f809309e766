// Boxes of sticks and how they are copied: what LOAD, STORE and RING do to bytes.
//
// Torch-free. Pure arithmetic on checked numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/program/program.h"

namespace openspyre::machine {

// An access with its numbers. Addresses are bytes: in LX from its start, in LPDDR5 from the
// operand's address.
struct Tile {
  const Access* access;
  int labels;  // of the instruction; the arrays below hold as many
  int64_t address;
  int64_t stride[kMaxLabels];  // of every label; 0: not moved by it
  int64_t count[kMaxLabels];   // steps along it: elements, or sticks of the stick label
  int64_t low, high;           // first byte and the end of the last one
  int64_t point_bytes;         // 128, or those of 64 lane accumulators
  int64_t sticks;              // of all counts that move it, times those of a point; saturates
};

// One copy: `count` steps along each dim, outermost first.
struct StickBox {
  int dims = 0;
  int64_t count[kMaxLabels], from[kMaxLabels], to[kMaxLabels];  // `from`, `to`: bytes per step

  void add(int64_t steps, int64_t from_bytes, int64_t to_bytes) {
    if (steps == 1) return;
    count[dims] = steps;
    from[dims] = from_bytes;
    to[dims] = to_bytes;
    ++dims;
  }
  // Sorts the dims by `to`, longest first. False, and the order kept, unless every stick of the
  // target then has exactly one place (each stride is at least what the shorter ones span).
  bool nest(int64_t point_bytes);
  int64_t points() const;  // product of the counts; saturates
};

// Copies the points of `box`, in its order: where targets coincide, the last one wins.
// `may_overlap`: source and target may share bytes.
void copy_sticks(std::byte* to, const std::byte* from, const StickBox& box, int64_t point_bytes,
                 bool may_overlap = false);

}  // namespace openspyre::machine
