// The insides of a Plan. Internal to csrc/card (plan*.cpp).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "card/plan.h"

namespace openspyre::card {

using Bytes = std::vector<std::byte>;

// Where a program sees its allocation begin: 0x1C00000000.
inline constexpr uint64_t kProgramBase = kProgramSegment << kSegmentBits;

struct Plan::Core {
  PlanSpec spec;
  Executor executor;
  int device = 0;
  int arguments = 0;
  bool prepares = false;            // has a HostCompute: its first steps are of the Prep role
  std::vector<PlanSymbol> symbols;  // without Address and Dynamic
  std::vector<std::shared_ptr<const machine::Program>> programs;  // per step
  std::vector<std::vector<int>> places;  // per step: of a Compute's symbols in `symbols`
  // Per step: of a HostCompute's correction symbols in a launch's values.
  std::vector<std::vector<int>> sources;
  struct Word {  // of a program's symbol table
    bool in_slot;
    uint64_t offset;  // in the slot, or in the image
  };
  std::vector<std::vector<Word>> words;  // per step: where a Compute reads its symbol table
  std::vector<uint64_t> targets;         // per step: of an H2D in the slot
  uint64_t slot_bytes = 0;               // 0: nothing to correct

  // A launch's values: the address of each argument, that of the dynamic region, the symbols.
  size_t dynamic_value() const { return static_cast<size_t>(arguments); }
  size_t first_symbol() const { return static_cast<size_t>(arguments) + 1; }
  int value_of(const PlanSymbol& symbol) const;

  void decode();
  void collect_symbols();
  void check_order() const;
  void place_transfers();
  void place_words();
  void check_correction(size_t step) const;
};

struct Plan::Results {
  std::mutex mutex;
  std::map<std::string, Bytes> by_handle;
};

// The bytes of a slot may be read by a cancelled launch that still runs while the next one writes
// them: hence the lock, and the number of the filling.
struct SlotBytes {
  std::mutex mutex;
  uint64_t filled = 0;
  uint64_t wanted = 0;  // of the filling that was submitted last; only for the submitter
};

struct Plan::Slot {
  std::byte* memory = nullptr;  // null: execute=off
  uint64_t offset = 0;          // in the block of slots
  std::shared_ptr<SlotBytes> bytes = std::make_shared<SlotBytes>();
  std::vector<int64_t> values;  // what it was filled for; empty: nothing
  EventPtr ready;               // behind the filling; null: filled on the stream that uses it
  StreamId prep = 0;
  std::bitset<kMaxStreams> ordered;                  // streams behind `ready`
  std::vector<std::pair<StreamId, EventPtr>> users;  // last use on each stream
  uint64_t last_use = 0;
};

// What the steps of one launch share while they run.
struct LaunchMemory {
  struct Place {  // as the program sees it and as it is
    uint64_t begin = 0, size = 0;
    std::byte* host = nullptr;
  };
  std::vector<Place> arguments;  // their whole blocks
  Place dynamic;
  std::byte* image = nullptr;
  machine::Numerics numerics;
  std::vector<int64_t> values;
  std::map<std::string, std::shared_ptr<Bytes>> buffers;  // filled at submission, unchanged then
};

struct Plan::Launch {
  const LaunchRequest& request;
  std::shared_ptr<LaunchMemory> memory;
  const Block* image = nullptr;
  Block* dynamic = nullptr;
  Slot* slot = nullptr;
  bool reuse = false;
  uint64_t filling = 0;  // of the slot
  size_t computes = 0;
  bool reads_slot = false;  // by a D2H
};

// The blob of a correction. `inputs`: the values of its symbols.
void fill_blob(const PlanCorrection& correction, const std::vector<int64_t>& inputs, Bytes& blob);

}  // namespace openspyre::card
