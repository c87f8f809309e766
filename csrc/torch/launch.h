// Launches of prepared plans on tensors: the launch contract, and tiled launches.
//
// The contract (docs/spyrecode.md) is checked in O(arguments) before anything is submitted: count,
// device, dtype, format, shape, symbols, layout, aliasing, liveness. A tensor that does not fit is
// an error that names it, never wrong data.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "card/plan.h"
#include "card/plan_contract.h"
#include "card/plan_tiles.h"
#include "machine/formats.h"
#include "torch/allocation.h"

namespace openspyre::device {

// An INT or FLOAT symbol of a launch, by name. `bits`: the integer, or the float32's bits.
struct NamedNumber {
  std::string name;
  bool is_float;
  int64_t integer;
  double real;
};

class PreparedPlan : public std::enable_shared_from_this<PreparedPlan> {
 public:
  // `cost` gives the modelled duration in ns of Compute step i for given symbols; called with the
  // GIL, once for each distinct vector of values. Throws as card::Plan and std::invalid_argument.
  using Cost = std::function<int64_t(size_t step, const std::vector<int64_t>& symbols)>;
  PreparedPlan(card::Device& device, card::PlanSpec spec, card::StreamId stream, Cost cost);

  card::Plan& plan() { return plan_; }
  // Tells autograd that the tensors which a launch writes change.
  void note_writes(const std::vector<at::Tensor>& tensors) const;
  // Checks and submits. Needs the GIL, which it gives up to submit. Throws card::LaunchError and
  // what submission throws; before anything was submitted, but for errors of a stream meanwhile.
  void launch(const std::vector<at::Tensor>& tensors, card::StreamId stream,
              const std::vector<NamedNumber>& numbers, bool tiled);
  // A launch by the compiler, which has matched the layouts itself: of each tensor only the storage
  // matters, and operand address 0 lies `offsets` bytes inside its block. `symbols`: in the order
  // of Plan::symbols(), floats as their bits. Checks what memory safety needs: device, liveness,
  // extent, ranges of symbols.
  void launch_bound(const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& offsets,
                    std::vector<int64_t> symbols, card::StreamId stream);
  // The operands that use a launch argument.
  struct Use {
    size_t step;
    const machine::Program* program;
    const machine::Operand* operand;
    machine::HostType type;
    bool constant;               // shape and layout need no symbols
    card::OperandLayout layout;  // if constant
  };
  struct Argument {
    std::vector<Use> uses;
    bool read = false, written = false;
  };
  const std::vector<Argument>& contract() const { return arguments_; }

 private:
  struct Bound;
  std::string name_of(size_t argument) const;
  void bind_symbols(Bound& bound, const std::vector<NamedNumber>& numbers) const;
  void spread_symbols(Bound& bound) const;
  void submit(const std::vector<at::Tensor>& tensors, Bound& bound, card::StreamId stream,
              std::vector<card::LaunchRequest> requests);
  void find_tiles(Bound& bound, bool tiled) const;
  void check_aliasing(const Bound& bound) const;
  void place(Bound& bound, const std::vector<int64_t>& shift, card::LaunchRequest& request) const;
  std::vector<int64_t> find_costs(const Bound& bound);

  card::Plan plan_;
  Cost cost_;
  std::vector<Argument> arguments_;
  std::vector<std::map<std::vector<int64_t>, int64_t>> costs_;  // per step; guarded by the GIL
  std::shared_ptr<const card::TileClasses> tile_classes_;       // made at the first tiled launch
};

}  // namespace openspyre::device
