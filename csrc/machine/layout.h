// SpyreTensorLayout in C++: where each element of a storage's linear element space lies in sticks.
//
// Torch-free, pure integers. The law is `openspyre/layout.py`; a property test holds the two equal.
// This twin exists because `torch.empty` and the copies cannot call Python.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "machine/formats.h"

namespace openspyre::machine {

using Dims = std::span<const int64_t>;

// One host dimension of the linear element space and the device dimensions that hold its index.
// index i of the dimension = (linear / host_stride) % size; digit k of it = (i / unit) % count,
// and the element moves by digit * device_stride elements on the card.
struct LayoutDigit {
  int64_t unit;
  int64_t count;
  int64_t device_stride;  // in elements of the format
};
struct LayoutAxis {
  int64_t size;
  int64_t host_stride;
  std::vector<LayoutDigit> digits;  // most significant first; empty for size-1 dims
};

// Value type. A layout describes a *linear element space* of `numel` elements seen as the dense
// row-major shape `host_size` (after permutation by stride, so host_stride is the linear step).
class Layout {
 public:
  Layout() = default;

  // compiler.md 2.1. `order` is the dim order; empty means 0..n-1; a trailing -1 means sparse.
  // Ranks above 6 collapse their leading dims first. Throws std::invalid_argument.
  static Layout make(Dims host_size, Format format, Dims order = {});
  // The same for a tensor whose strides are a dense permutation (e.g. a.t(), channels_last):
  // the layout's default order puts the stride-1 dimension on the stick.
  static Layout for_strided(Dims sizes, Dims strides, Format format);
  // A linear space of `numel` elements as one dimension.
  static Layout linear(int64_t numel, Format format);
  // Explicit device dims (compiler.md 2.2, "Explicit constructors"). stride_map -1 = synthetic or
  // size 1, 0 = broadcast copies. Throws std::invalid_argument when some element has no place.
  static Layout explicit_map(Dims host_size, Dims device_size, Dims stride_map, Format format);

  // Bytes of `make(host_size, format)` without building it (the hot path of torch.empty).
  static int64_t default_nbytes(Dims host_size, Format format);

  const std::vector<int64_t>& host_size() const { return host_size_; }
  const std::vector<int64_t>& device_size() const { return device_size_; }
  const std::vector<int64_t>& stride_map() const { return stride_map_; }
  const std::vector<LayoutAxis>& axes() const { return axes_; }
  Format format() const { return format_; }
  int64_t numel() const { return numel_; }    // elements of the linear space
  int64_t nbytes() const { return nbytes_; }  // bytes on the card, pads included
  bool is_default() const { return is_default_; }
  // True when linear element e lies at byte e * format_bytes(format): no holes but at the end.
  bool is_identity() const { return is_identity_; }
  // True when one linear element has several places (stride_map 0): writers must write them all.
  bool has_copies() const { return !copies_.empty(); }
  struct Copies {
    int64_t count, device_stride;
  };
  const std::vector<Copies>& copies() const { return copies_; }

  // Byte offset of linear element `linear` (its first place). 0 <= linear < numel().
  int64_t element_offset(int64_t linear) const;

  std::string str() const;
  friend bool operator==(const Layout& a, const Layout& b) {
    return a.format_ == b.format_ && a.host_size_ == b.host_size_ &&
           a.device_size_ == b.device_size_ && a.stride_map_ == b.stride_map_;
  }

 private:
  void finish();  // derives axes_, copies_, numel_, nbytes_ and the flags from the public fields
  std::vector<int64_t> host_size_, device_size_, stride_map_;
  std::vector<LayoutAxis> axes_;
  std::vector<Copies> copies_;
  Format format_ = Format::HOST_1;
  int64_t numel_ = 0, nbytes_ = 0;
  bool is_default_ = true, is_identity_ = true;
};

}  // namespace openspyre::machine
