// Cuts a strided view of a laid-out storage into boxes in which the card address is affine.
//
// Torch-free, integers only. Most views of most layouts are one box, or a few (a body and the
// partial sticks at its ends); a box is what the DMA's loop nests can express, and what the fast
// copy loops take. Views that are not (steps that do not divide a stick, diagonals, windows that
// straddle sticks) are left to the general path.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "machine/layout.h"

namespace openspyre::machine {

inline constexpr int kMaxBoxRank = 32;
inline constexpr size_t kMaxBoxes = 128;

// One loop of a box. `card` steps elements on the card; `other` is whatever the caller moves in
// step with it (host elements, or linear elements of another storage).
struct BoxDim {
  int64_t size, card, other;
};
struct Box {
  int64_t card_offset = 0, other_offset = 0;
  int rank = 0;
  std::array<BoxDim, kMaxBoxRank> dims;
};

// The boxes of the view (offset, sizes, strides), in no particular order; together they hold each
// element of the view once. Every index must lie inside the layout. Nothing when the view does not
// decompose into at most kMaxBoxes boxes.
std::optional<std::vector<Box>> affine_boxes(const Layout& layout, int64_t offset, Dims sizes,
                                             Dims strides, int64_t other_offset,
                                             Dims other_strides);

}  // namespace openspyre::machine
