// See transfer.h. Each copy is cut into boxes in which both sides are affine (affine.h) and goes
// through the strided copy loops; what does not decompose takes the general path here: chunks of
// offsets, one gather, one bulk conversion, one scatter.
#include "machine/transfer.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine/affine.h"
#include "machine/strided.h"
#include "machine/walk.h"

namespace openspyre::machine {
namespace {

constexpr int64_t kChunk = 1024;  // elements of one general step

int64_t count_elements(Dims sizes) {
  int64_t total = 1;
  for (int64_t size : sizes) total *= size;
  return total;
}

bool is_empty(Dims sizes) { return std::find(sizes.begin(), sizes.end(), 0) != sizes.end(); }

std::string text(Dims dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) out += (i ? ", " : "") + std::to_string(dims[i]);
  return out + "]";
}

// Throws unless the view lies inside the layout; written views must not repeat places.
void check_view(const char* operation, const Layout& layout, View view, Dims sizes, bool written) {
  const auto fail = [&](const std::string& rule) {
    throw std::invalid_argument(std::string(operation) + ": view of sizes " + text(sizes) +
                                ", strides " + text(view.strides) + ", offset " +
                                std::to_string(view.offset) + " on " + layout.str() + ": " + rule);
  };
  if (view.strides.size() != sizes.size()) fail("there must be one stride per size");
  int64_t last = view.offset;
  bool fits = view.offset >= 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || view.strides[i] < 0) fail("sizes and strides must not be negative");
    if (written && view.strides[i] == 0 && sizes[i] > 1)
      fail("an expanded view cannot be written; write to its base");
    int64_t span = 0;
    fits &= !__builtin_mul_overflow(sizes[i] - 1, view.strides[i], &span) &&
            !__builtin_add_overflow(last, span, &last);
  }
  if (!fits || last >= layout.numel()) fail("it reaches outside the storage's elements");
}

void check_host(const char* operation, Dims sizes, Dims strides) {
  if (sizes.size() != strides.size())
    throw std::invalid_argument(std::string(operation) + ": host strides " + text(strides) +
                                " must be one per size of " + text(sizes));
}

// The loops of a box as a strided nest. A card that is written gets all copies.
std::vector<StridedDim> loops_to_card(const Box& box, const Layout& layout) {
  std::vector<StridedDim> dims;
  dims.reserve(static_cast<size_t>(box.rank) + layout.copies().size());
  for (int i = 0; i < box.rank; ++i) {
    const BoxDim& dim = box.dims[static_cast<size_t>(i)];
    dims.push_back({dim.size, dim.other, dim.card});
  }
  for (const Layout::Copies& copies : layout.copies())
    dims.push_back({copies.count, 0, copies.device_stride});
  return dims;
}

std::vector<StridedDim> loops_to_host(const Box& box) {
  std::vector<StridedDim> dims;
  dims.reserve(static_cast<size_t>(box.rank));
  for (int i = 0; i < box.rank; ++i) {
    const BoxDim& dim = box.dims[static_cast<size_t>(i)];
    dims.push_back({dim.size, dim.card, dim.other});
  }
  return dims;
}

// The general path. `copies` are the places of each element relative to the walker's.
template <class From, class To>
void walk_copy(const std::byte* src, const From& from, std::byte* dst, const To& to,
               const std::vector<int64_t>& copies, int64_t total, const Convert& convert) {
  // Offsets cost more than the bytes: weigh an element like a cache line's share.
  parallel_bytes(total, total * 16, [&](int64_t begin, int64_t end) {
    int64_t offsets[kChunk];
    alignas(kStickBytes) std::byte raw[kChunk * 16], converted[kChunk * 16];
    while (begin < end) {
      const int64_t n = std::min(kChunk, end - begin);
      from.offsets(begin, n, offsets);
      gather(src, offsets, n, convert.src_bytes, raw);
      const std::byte* run = raw;
      if (convert.kind != Convert::Kind::Copy) {
        convert(raw, converted, n);
        run = converted;
      }
      to.offsets(begin, n, offsets);
      for (int64_t copy : copies) scatter(run, offsets, n, convert.dst_bytes, dst + copy);
      begin += n;
    }
  });
}

const std::vector<int64_t> kOnePlace{0};

}  // namespace

void host_to_card(const void* host, HostType type, Dims sizes, Dims host_strides, std::byte* card,
                  const Layout& layout, View view, const Numerics& numerics) {
  const Convert convert = Convert::to_card(type, layout.format(), numerics);
  check_host("host to card", sizes, host_strides);
  if (is_empty(sizes)) return;
  check_view("host to card", layout, view, sizes, true);
  const auto* src = static_cast<const std::byte*>(host);
  const auto boxes = affine_boxes(layout, view.offset, sizes, view.strides, 0, host_strides);
  if (!boxes) {
    walk_copy(src, StridedWalker(sizes, host_strides, convert.src_bytes), card,
              LayoutWalker(layout, view.offset, sizes, view.strides), copy_offsets(layout),
              count_elements(sizes), convert);
    return;
  }
  for (const Box& box : *boxes) {
    std::vector<StridedDim> dims = loops_to_card(box, layout);
    strided_copy(src + box.other_offset * convert.src_bytes,
                 card + box.card_offset * convert.dst_bytes, dims, convert);
  }
}

void card_to_host(const std::byte* card, const Layout& layout, View view, void* host, HostType type,
                  Dims sizes, Dims host_strides, const Numerics& numerics) {
  const Convert convert = Convert::to_host(layout.format(), type, numerics);
  check_host("card to host", sizes, host_strides);
  if (is_empty(sizes)) return;
  check_view("card to host", layout, view, sizes, false);
  auto* dst = static_cast<std::byte*>(host);
  const auto boxes = affine_boxes(layout, view.offset, sizes, view.strides, 0, host_strides);
  if (!boxes) {
    walk_copy(card, LayoutWalker(layout, view.offset, sizes, view.strides), dst,
              StridedWalker(sizes, host_strides, convert.dst_bytes), kOnePlace,
              count_elements(sizes), convert);
    return;
  }
  for (const Box& box : *boxes) {
    std::vector<StridedDim> dims = loops_to_host(box);
    strided_copy(card + box.card_offset * convert.src_bytes,
                 dst + box.other_offset * convert.dst_bytes, dims, convert);
  }
}

void card_to_card(const std::byte* src, const Layout& src_layout, View src_view, std::byte* dst,
                  const Layout& dst_layout, View dst_view, Dims sizes) {
  if (src_layout.format() != dst_layout.format())
    throw std::invalid_argument("card to card copies codes, so the formats must be equal: " +
                                src_layout.str() + " to " + dst_layout.str());
  if (is_empty(sizes)) return;
  check_view("card to card, source", src_layout, src_view, sizes, false);
  check_view("card to card, destination", dst_layout, dst_view, sizes, true);
  if (src == dst && src_layout == dst_layout && src_view.offset == dst_view.offset &&
      std::ranges::equal(src_view.strides, dst_view.strides))
    return;
  const Convert convert = Convert::copy(format_bytes(src_layout.format()));
  // Cut against the source with the destination's linear elements in tow, then each box against
  // the destination.
  struct Part {
    int64_t src_offset;
    std::vector<Box> boxes;
  };
  std::vector<Part> parts;
  bool affine = true;
  const auto outer = affine_boxes(src_layout, src_view.offset, sizes, src_view.strides,
                                  dst_view.offset, dst_view.strides);
  if (outer) {
    for (const Box& box : *outer) {
      std::array<int64_t, kMaxBoxRank> box_sizes, linear, device;
      const auto rank = static_cast<size_t>(box.rank);
      for (size_t i = 0; i < rank; ++i) {
        box_sizes[i] = box.dims[i].size;
        linear[i] = box.dims[i].other;
        device[i] = box.dims[i].card;
      }
      auto inner =
          affine_boxes(dst_layout, box.other_offset, Dims(box_sizes).first(rank),
                       Dims(linear).first(rank), box.card_offset, Dims(device).first(rank));
      if (!inner) {
        affine = false;
        break;
      }
      parts.push_back({box.card_offset, std::move(*inner)});
    }
  }
  if (!outer || !affine) {
    walk_copy(src, LayoutWalker(src_layout, src_view.offset, sizes, src_view.strides), dst,
              LayoutWalker(dst_layout, dst_view.offset, sizes, dst_view.strides),
              copy_offsets(dst_layout), count_elements(sizes), convert);
    return;
  }
  for (const Part& part : parts) {
    for (const Box& box : part.boxes) {
      std::vector<StridedDim> dims = loops_to_card(box, dst_layout);
      strided_copy(src + box.other_offset * convert.src_bytes,
                   dst + box.card_offset * convert.dst_bytes, dims, convert);
    }
  }
}

void fill(std::byte* card, const Layout& layout, View view, Dims sizes, const void* code) {
  if (is_empty(sizes)) return;
  check_view("fill", layout, view, sizes, true);
  const int64_t bytes = format_bytes(layout.format());
  const std::vector<int64_t> nothing(sizes.size(), 0);
  const auto boxes = affine_boxes(layout, view.offset, sizes, view.strides, 0, nothing);
  if (!boxes) {
    walk_copy(static_cast<const std::byte*>(code), StridedWalker(sizes, nothing, bytes), card,
              LayoutWalker(layout, view.offset, sizes, view.strides), copy_offsets(layout),
              count_elements(sizes), Convert::copy(bytes));
    return;
  }
  for (const Box& box : *boxes) {
    std::vector<StridedDim> dims = loops_to_card(box, layout);
    strided_fill(card + box.card_offset * bytes, dims, code, bytes);
  }
}

void poison_pads(std::byte* card, const Layout& layout) {
  // A place belongs to an element when each digit is below its count and each axis index below
  // its size. Along a stick the valid lanes are the first few, so a stick is one comparison.
  const std::vector<int64_t>& sizes = layout.device_size();
  if (sizes.empty() || layout.nbytes() == 0) return;
  const Format format = layout.format();
  const int64_t bytes = format_bytes(format), eps = sizes.back();
  const int64_t sticks = layout.nbytes() / (eps * bytes);

  struct Role {  // what a device dim does for validity
    enum { Synthetic, Copies, Digit } kind = Synthetic;
    size_t axis = 0;
    int64_t unit = 0, count = 1;
  };
  std::vector<Role> roles(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    for (const Layout::Copies& copies : layout.copies())
      if (sizes[i] > 1 && copies.device_stride == stride) roles[i].kind = Role::Copies;
    for (size_t a = 0; a < layout.axes().size(); ++a)
      for (const LayoutDigit& digit : layout.axes()[a].digits)
        if (sizes[i] > 1 && digit.device_stride == stride)
          roles[i] = {Role::Digit, a, digit.unit, digit.count};
    stride *= sizes[i];
  }
  const size_t lane = sizes.size() - 1;

  parallel_bytes(sticks, layout.nbytes(), [&](int64_t begin, int64_t end) {
    std::vector<int64_t> index(layout.axes().size());
    int64_t pads_from = -1;  // a pad run of whole and partial sticks that is still open
    const auto close = [&](int64_t at) {
      if (pads_from >= 0 && at > pads_from)
        poison(format, card + pads_from, static_cast<size_t>(at - pads_from));
      pads_from = -1;
    };
    for (int64_t stick = begin; stick < end; ++stick) {
      std::fill(index.begin(), index.end(), 0);
      bool valid = layout.numel() > 0;
      int64_t rest = stick;
      for (size_t i = lane; i-- > 0 && valid;) {
        const int64_t value = rest % sizes[i];
        rest /= sizes[i];
        const Role& role = roles[i];
        if (role.kind == Role::Copies) continue;
        valid = value < role.count;
        if (role.kind == Role::Digit) index[role.axis] += value * role.unit;
      }
      for (size_t a = 0; a < index.size() && valid; ++a) valid = index[a] < layout.axes()[a].size;
      int64_t lanes = 0;
      if (valid) {
        const Role& role = roles[lane];
        if (role.kind == Role::Copies) {
          lanes = eps;
        } else if (role.kind == Role::Synthetic) {
          lanes = 1;
        } else {
          const int64_t left = layout.axes()[role.axis].size - index[role.axis];
          lanes = std::min({eps, role.count, (left + role.unit - 1) / role.unit});
        }
      }
      const int64_t at = stick * eps * bytes;
      if (lanes > 0) close(at);
      if (lanes < eps && pads_from < 0) pads_from = at + lanes * bytes;
    }
    close(end * eps * bytes);
  });
}

}  // namespace openspyre::machine
