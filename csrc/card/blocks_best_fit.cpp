// The reference index: exact best fit with a low-address tie break, on one ordered set.
//
// Slow and obvious; tests and benchmarks hold the fast index against it.
#include <set>

#include "card/blocks.h"

namespace openspyre::card {

namespace {

struct Key {
  uint64_t size;
  uint32_t region;
  uint64_t offset;
  auto operator<=>(const Key&) const = default;
};
Key key_of(const Place& place) { return {place.size, place.region->id, place.offset}; }

struct Less {
  using is_transparent = void;
  bool operator()(const Place* a, const Place* b) const { return key_of(*a) < key_of(*b); }
  bool operator()(const Place* a, uint64_t size) const { return a->size < size; }
  bool operator()(uint64_t size, const Place* a) const { return size < a->size; }
};

class BestFitIndex final : public FreeIndex {
 public:
  void insert(Place& place) override { places_.insert(&place); }
  void erase(Place& place) override { places_.erase(&place); }
  Place* find(uint64_t size) const override {
    auto best = places_.lower_bound(size);
    return best == places_.end() ? nullptr : *best;
  }
  Place* search(uint64_t size) const override { return find(size); }
  uint64_t largest() const override { return places_.empty() ? 0 : (*places_.rbegin())->size; }

 private:
  std::set<Place*, Less> places_;
};

}  // namespace

std::unique_ptr<FreeIndex> make_best_fit_index() { return std::make_unique<BestFitIndex>(); }

}  // namespace openspyre::card
