// The DMA's layout conversion: strided host memory <-> strided views of a storage in card layout.
//
// Torch-free. A view is (offset, sizes, strides) in elements of the storage's linear element
// space; `card` is the first byte of the storage's block. Host strides are in elements and may be
// zero or of any order; sizes are those of the view. Zero elements: nothing happens.
// Pads are never read and never written. Work is split over Pool::get() when it is large.
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/formats.h"
#include "machine/layout.h"

namespace openspyre::machine {

struct View {
  int64_t offset = 0;
  Dims strides;  // one per size, elements of the linear space, >= 0
};

void host_to_card(const void* host, HostType type, Dims sizes, Dims host_strides,  //
                  std::byte* card, const Layout& layout, View view, const Numerics& numerics);

void card_to_host(const std::byte* card, const Layout& layout, View view,  //
                  void* host, HostType type, Dims sizes, Dims host_strides,
                  const Numerics& numerics);

// Copies codes; both layouts must have the same format. Overlap is undefined unless identical.
void card_to_card(const std::byte* src, const Layout& src_layout, View src_view,  //
                  std::byte* dst, const Layout& dst_layout, View dst_view, Dims sizes);

// Writes one code (format_bytes of it) to every element of the view.
void fill(std::byte* card, const Layout& layout, View view, Dims sizes, const void* code);

// Writes the poison pattern to every byte of the block that is no element's place.
void poison_pads(std::byte* card, const Layout& layout);

}  // namespace openspyre::machine
