// The fast index: segregated fit over two levels of bins with bitmaps; O(1) insert, erase, find.
//
// Level one is the power of two of the size in sticks, level two divides it linearly by 32, so a
// bin's sizes differ by at most 3 %; sizes below 32 sticks (4 KiB) have a bin each. `find` looks at
// a bounded number of places in the request's own bin, where an exact fit is likely (a model asks
// for the same sizes again and again), then takes from the next non-empty bin, where every place
// fits.
#include <array>
#include <bit>

#include "card/blocks.h"

namespace openspyre::card {

namespace {

constexpr int kDivisionBits = 5, kDivisions = 1 << kDivisionBits;
constexpr int kRows = 48;  // sizes below 2^59 bytes
constexpr int kProbes = 16;

class FastIndex final : public FreeIndex {
 public:
  void insert(Place& place) override {
    uint32_t bin = bin_of(place.size);
    Place*& head = heads_[bin];
    place.bin = bin;
    place.bin_previous = nullptr;
    place.bin_next = head;
    if (head) head->bin_previous = &place;
    head = &place;
    rows_ |= 1ull << (bin / kDivisions);
    columns_[bin / kDivisions] |= 1u << (bin % kDivisions);
  }

  void erase(Place& place) override {
    if (place.bin_previous)
      place.bin_previous->bin_next = place.bin_next;
    else
      heads_[place.bin] = place.bin_next;
    if (place.bin_next) place.bin_next->bin_previous = place.bin_previous;
    if (!heads_[place.bin]) {
      uint32_t& columns = columns_[place.bin / kDivisions];
      columns &= ~(1u << (place.bin % kDivisions));
      if (!columns) rows_ &= ~(1ull << (place.bin / kDivisions));
    }
  }

  Place* find(uint64_t size) const override {
    uint32_t bin = bin_of(size);
    if (Place* place = smallest(heads_[bin], size)) return place;
    // The next non-empty bin: later in the row, else the first of a later row.
    int row = static_cast<int>(bin) / kDivisions, column = static_cast<int>(bin) % kDivisions;
    uint32_t columns = column == kDivisions - 1 ? 0 : columns_[row] & (~0u << (column + 1));
    if (!columns) {
      uint64_t rows = rows_ & (~0ull << (row + 1));
      if (!rows) return nullptr;
      row = std::countr_zero(rows);
      columns = columns_[row];
    }
    return smallest(heads_[row * kDivisions + std::countr_zero(columns)], size);
  }

  // `find` misses only a place behind the probed ones of the request's own bin.
  Place* search(uint64_t size) const override {
    if (Place* place = find(size)) return place;
    Place* place = heads_[bin_of(size)];
    while (place && place->size < size) place = place->bin_next;
    return place;
  }

  uint64_t largest() const override {
    if (!rows_) return 0;
    int row = 63 - std::countl_zero(rows_);
    int column = 31 - std::countl_zero(columns_[row]);
    uint64_t most = 0;
    for (const Place* p = heads_[row * kDivisions + column]; p; p = p->bin_next)
      most = p->size > most ? p->size : most;
    return most;
  }

 private:
  static uint32_t bin_of(uint64_t size) {
    uint64_t sticks = size / kBlockAlign;
    if (sticks < kDivisions) return static_cast<uint32_t>(sticks);
    int power = 63 - std::countl_zero(sticks);
    uint64_t column = (sticks >> (power - kDivisionBits)) - kDivisions;
    return static_cast<uint32_t>((power - kDivisionBits + 1) * kDivisions + column);
  }

  // The smallest fitting place among the first few; low addresses win ties, which keeps the high
  // end of the regions free and so lets them be returned.
  static Place* smallest(Place* place, uint64_t size) {
    Place* best = nullptr;
    for (int i = 0; place && i < kProbes; ++i, place = place->bin_next) {
      if (place->size < size) continue;
      if (!best || place->size < best->size ||
          (place->size == best->size &&
           (place->region == best->region ? place->offset < best->offset
                                          : place->region->id < best->region->id)))
        best = place;
    }
    return best;
  }

  uint64_t rows_ = 0;
  std::array<uint32_t, kRows> columns_{};
  std::array<Place*, kRows * kDivisions> heads_{};
};

}  // namespace

std::unique_ptr<FreeIndex> make_fast_index() { return std::make_unique<FastIndex>(); }

}  // namespace openspyre::card
