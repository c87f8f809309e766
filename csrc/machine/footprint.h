// Which bytes of a block a view touches: its exact footprint, for the hazard tracker.
//
// Torch-free, pure integers. Slow on purpose (it visits every element of a view that is not whole):
// it runs only while hazards are tracked.
#pragma once

#include <cstdint>
#include <vector>

#include "machine/transfer.h"

namespace openspyre::machine {

struct Extent {
  int64_t begin, end;  // bytes in the block, end excluded
};

// Ascending, disjoint, never touching. A view of the whole linear space gives all of the block, its
// pads included; so does any view of a layout that keeps copies of its elements.
std::vector<Extent> footprint(const Layout& layout, View view, Dims sizes);

}  // namespace openspyre::machine
