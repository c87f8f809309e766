#include "machine/footprint.h"

#include <algorithm>

namespace openspyre::machine {
namespace {

bool is_whole(const Layout& layout, const View& view, Dims sizes) {
  int64_t dense = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && view.strides[d] != dense) return false;
    dense *= sizes[d];
  }
  return view.offset == 0 && dense == layout.numel();
}

}  // namespace

std::vector<Extent> footprint(const Layout& layout, View view, Dims sizes) {
  for (const int64_t size : sizes)
    if (size == 0) return {};
  if (layout.has_copies() || is_whole(layout, view, sizes)) return {{0, layout.nbytes()}};

  const int64_t width = format_bytes(layout.format());
  std::vector<int64_t> starts;
  std::vector<int64_t> index(sizes.size(), 0);
  for (int64_t linear = view.offset;;) {
    starts.push_back(layout.element_offset(linear));
    size_t d = sizes.size();
    for (; d-- > 0;) {
      if (view.strides[d] == 0) continue;  // expanded: the same elements again
      linear += view.strides[d];
      if (++index[d] < sizes[d]) break;
      linear -= view.strides[d] * sizes[d];
      index[d] = 0;
    }
    if (d == static_cast<size_t>(-1)) break;
  }
  std::sort(starts.begin(), starts.end());
  std::vector<Extent> extents;
  for (const int64_t start : starts) {
    if (!extents.empty() && start <= extents.back().end)
      extents.back().end = std::max(extents.back().end, start + width);
    else
      extents.push_back({start, start + width});
  }
  return extents;
}

}  // namespace openspyre::machine
