// A prepared plan: typed steps that a launch submits to streams, their program image on the card,
// and the correction slots that let launches overlap.
//
// Torch-free; never takes the GIL and never calls Python. What a plan is: docs/spyrecode.md; how a
// launch becomes steps: docs/architecture.md. The caller (csrc/torch/launch.cpp) has checked the
// tensors; here they are blocks and offsets.
//
// Locks, outermost first: a plan's, an image's, the scheduler's or the memory's. The GIL is never
// wanted while one of them is held, except by the memory's pressure hook; whoever calls in from
// Python gives the GIL up first.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "card/plan_image.h"
#include "card/runtime.h"
#include "card/step_order.h"
#include "card/stream.h"
#include "machine/formats.h"
#include "machine/program/execute.h"
#include "machine/program/program.h"

namespace openspyre::card {

// A number that a launch knows. Dimension: size of a dim of an argument; Int, Float: by name.
struct PlanSymbol {
  enum class Kind : uint8_t { Address, Dynamic, Dimension, Int, Float } kind = Kind::Address;
  int argument = -1, dim = -1;
  std::string name;
  bool same(const PlanSymbol& other) const {
    if (kind != other.kind) return false;
    if (kind == Kind::Int || kind == Kind::Float) return name == other.name;
    return argument == other.argument && dim == other.dim;
  }
};

// A number with its value in a correction, and where it goes. Value written:
// (((value * symbol.scale + symbol.offset) * scale + addend) >> shift) & mask, little endian.
struct PlanPatch {
  uint64_t blob_offset = 0;
  int width = 8;
  int symbol = 0;  // index
  int64_t scale = 1, addend = 0;
  int shift = 0;
  uint64_t mask = ~uint64_t{0};
};
struct PlanCorrection {
  struct Symbol {
    PlanSymbol what;
    int64_t offset = 0, scale = 1;
  };
  std::vector<Symbol> symbols;
  std::vector<PlanPatch> patches;
  uint64_t checksum = 0;  // of the symbol table it was made for
};

struct PlanStep {
  Engine kind = Engine::Compute;
  std::string name;
  int64_t cost_ns = -1;  // overrides the model
  uint32_t sources = 0;  // number of the text of its source operations (recorder.h)
  // Compute
  uint64_t program_ptr = 0;  // DMVA of the image
  std::vector<int> args;     // launch argument of each argument of the program
  // HostCompute, H2D, D2H: the buffer's name; HostCompute: the name of its input ("": the launch)
  std::string handle, input;
  std::optional<PlanCorrection> correction;
  uint64_t dev_ptr = 0, size = 0;  // H2D, D2H; HostCompute: size of the blob
};

struct PlanSpec {
  std::string name, hash;  // equal hashes share their image on the card
  uint64_t static_size = 0, dynamic_size = 0;
  std::vector<ImageInit> inits;
  std::vector<PlanStep> steps;
  int slots = 0;     // correction slots; 0: the default
  int overlap = -1;  // 1: prepare on stream 65; 0: all on the launching stream; -1: the default
};

struct LaunchArgument {
  Block* block = nullptr;
  uint64_t offset = 0;  // of the first element in the block
  uint64_t span = 0;  // bytes from there that are the tensor's, whole sticks; 0: to the block's end
  std::vector<ByteRange> footprint;  // only filled where hazards are tracked
  bool read = false, written = false;
};

struct LaunchRequest {
  StreamId stream = 0;
  machine::Numerics numerics;
  std::vector<LaunchArgument> arguments;
  std::vector<int64_t> symbols;  // one per Plan::symbols()
  std::vector<int64_t> costs;    // one per Compute step
};

// Refused before anything was submitted.
class LaunchError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PlanCounters {
  int64_t launches = 0, computes = 0;
  int64_t host_computes = 0, corrections = 0;  // HostCompute and H2D steps submitted
  int64_t reused = 0;                          // launches whose slot already held their symbols
};

using Executor =
    std::function<machine::ExecutionCounts(const machine::Program&, const machine::Launch&)>;

class Plan {
 public:
  // Checks, allocates, submits the image's transfer to `stream`. Throws std::invalid_argument for
  // a description that cannot be, OutOfMemory, StreamFailure; then nothing has changed.
  Plan(Device& device, PlanSpec spec, StreamId stream, Executor executor = {});
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  Device& device() const { return device_; }
  const PlanSpec& spec() const;
  int argument_count() const;
  // The launch-time numbers of its programs and corrections, addresses apart, each once.
  const std::vector<PlanSymbol>& symbols() const;
  // Per step: the decoded program of a Compute (else null), and where its symbols are in symbols().
  const machine::Program* program(size_t step) const;
  const std::vector<int>& symbol_places(size_t step) const;
  int slot_count() const { return static_cast<int>(slots_.size()); }
  bool overlaps() const { return overlap_; }
  StreamRole role_of(size_t step) const;

  // Submits the steps of one launch. Throws LaunchError (more than five regions, a transfer outside
  // its argument) and what submission throws. Thread-safe; does not wait for the card.
  void launch(const LaunchRequest& request);

  PlanCounters counters() const;
  bool resident() const { return image_->resident(); }
  // The bytes of the last finished D2H step with that handle; nullopt before one.
  std::optional<std::vector<std::byte>> host_data(const std::string& handle) const;

 private:
  struct Core;     // what never changes, shared with the steps in flight
  struct Results;  // what D2H steps brought back
  struct Slot;
  struct Launch;  // one launch, while it is submitted

  size_t choose_slot(const std::vector<int64_t>& values, StreamId stream, bool* reuse);
  void start_slot(Launch& launch, StreamId prep);
  void submit_host_compute(Launch& launch, size_t step, StreamId on);
  void submit_h2d(Launch& launch, size_t step, StreamId on);
  void submit_compute(Launch& launch, size_t step);
  void submit_d2h(Launch& launch, size_t step);
  void submit_steps(Launch& launch);
  void tell_allocator(StreamId stream);  // that the slots are used there

  Device& device_;
  bool overlap_ = true;
  std::shared_ptr<Core> core_;
  std::shared_ptr<Results> results_;
  std::shared_ptr<Image> image_;
  Block* slot_block_ = nullptr;
  mutable std::mutex mutex_;  // of all below
  std::bitset<kMaxStreams> slot_streams_;
  std::vector<std::unique_ptr<Slot>> slots_;
  PlanCounters counters_;
};

}  // namespace openspyre::card
