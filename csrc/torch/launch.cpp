#include "torch/launch.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/DimVector.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "machine/footprint.h"
#include "torch/bind.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/errors.h"
#include "torch/graph.h"

namespace openspyre::device {

using card::LaunchError;
using card::OperandLayout;
using card::PlanSymbol;
using machine::Role;

namespace {

std::vector<std::pair<size_t, const machine::Program*>> computes_of(const card::Plan& plan) {
  std::vector<std::pair<size_t, const machine::Program*>> found;
  for (size_t i = 0; i < plan.spec().steps.size(); ++i)
    if (plan.program(i) != nullptr) found.emplace_back(i, plan.program(i));
  return found;
}

int64_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

bool overlap(const std::vector<card::ByteRange>& a, const std::vector<card::ByteRange>& b) {
  std::vector<card::ByteRange> left = a, right = b;
  const auto ascending = [](const card::ByteRange& x, const card::ByteRange& y) {
    return x.begin < y.begin;
  };
  std::sort(left.begin(), left.end(), ascending);
  std::sort(right.begin(), right.end(), ascending);
  for (size_t i = 0, j = 0; i < left.size() && j < right.size();) {
    if (left[i].begin < right[j].end && right[j].begin < left[i].end) return true;
    left[i].end <= right[j].end ? ++i : ++j;
  }
  return false;
}

// Wrappers (of vmap, grad, functionalize, fake tensors, subclasses) have a device and sizes, and no
// bytes.
bool holds_bytes(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet wrappers(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::Functionalize, c10::DispatchKey::NestedTensor});
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return !impl->key_set().has_any(wrappers) && impl->has_storage() &&
         !impl->has_symbolic_sizes_strides() && impl->unsafe_storage().device() == tensor.device();
}

}  // namespace

// One launch while it is checked.
struct PreparedPlan::Bound {
  struct Tensor {
    AllocationRef allocation;
    std::shared_ptr<const machine::Layout> layout;
    int64_t offset = 0;             // linear element of the first one
    c10::DimVector sizes, strides;  // as checked, whatever other threads do to the tensor
    std::vector<int64_t> tile;      // sizes of one tile; empty: the tensor is not tiled
  };
  std::vector<Tensor> tensors;
  std::vector<int64_t> symbols;                // one per Plan::symbols()
  std::vector<std::vector<int64_t>> of_step;   // the symbols of each Compute's program
  std::vector<std::pair<int, int64_t>> loops;  // (class, count) of a tiled launch
  int64_t iterations = 1;
};

PreparedPlan::PreparedPlan(card::Device& device, card::PlanSpec spec, card::StreamId stream,
                           Cost cost)
    : plan_(device, std::move(spec), stream), cost_(std::move(cost)) {
  arguments_.resize(static_cast<size_t>(plan_.argument_count()));
  costs_.resize(plan_.spec().steps.size());
  for (const auto& [step, program] : computes_of(plan_)) {
    const std::vector<int>& args = plan_.spec().steps[step].args;
    for (size_t a = 0; a < args.size(); ++a) {
      Argument& argument = arguments_[static_cast<size_t>(args[a])];
      const machine::Operand& operand =
          program->operands[static_cast<size_t>(program->arguments[a])];
      argument.read |= operand.role != Role::Out;
      argument.written |= operand.role != Role::In;
      Use use{step, program, &operand, parse_host_type(operand.dtype), true, {}};
      for (const auto* sizes : {&operand.shape, &operand.within, &operand.strides})
        for (const machine::Expr& size : *sizes) use.constant &= card::is_constant(size);
      if (use.constant) {
        try {
          use.layout = card::lay_operand(operand, {});
        } catch (const std::invalid_argument& error) {
          throw std::invalid_argument("program " + program->name + ", operand " + operand.name +
                                      ": " + error.what());
        }
      }
      argument.uses.push_back(std::move(use));
    }
  }
}

std::string PreparedPlan::name_of(size_t argument) const {
  std::string text = "plan '" + plan_.spec().name + "', tensor " + std::to_string(argument);
  const auto& uses = arguments_[argument].uses;
  if (!uses.empty()) text += " ('" + uses[0].operand->name + "')";
  return text;
}

// Values of the symbols from the tensors' sizes and the numbers given by name, in their ranges.
void PreparedPlan::bind_symbols(Bound& bound, const std::vector<NamedNumber>& numbers) const {
  const std::vector<PlanSymbol>& symbols = plan_.symbols();
  size_t named = 0;
  for (const PlanSymbol& symbol : symbols) {
    if (symbol.kind == PlanSymbol::Kind::Dimension) {
      const auto argument = static_cast<size_t>(symbol.argument);
      const c10::IntArrayRef sizes = bound.tensors[argument].sizes;
      if (static_cast<size_t>(symbol.dim) >= sizes.size())
        throw LaunchError(name_of(argument) + ": it has " + std::to_string(sizes.size()) +
                          " dims, and the plan takes the size of dim " +
                          std::to_string(symbol.dim));
      bound.symbols.push_back(sizes[static_cast<size_t>(symbol.dim)]);
      continue;
    }
    const auto given = std::find_if(numbers.begin(), numbers.end(),
                                    [&](const NamedNumber& n) { return n.name == symbol.name; });
    if (given == numbers.end())
      throw LaunchError("plan '" + plan_.spec().name + "': no value for symbol '" + symbol.name +
                        "'; give symbols={'" + symbol.name + "': ...}");
    ++named;
    if (symbol.kind == PlanSymbol::Kind::Float) {
      const double real = given->is_float ? given->real : static_cast<double>(given->integer);
      bound.symbols.push_back(bits_of(static_cast<float>(real)));
    } else if (given->is_float) {
      throw LaunchError("plan '" + plan_.spec().name + "': symbol '" + symbol.name +
                        "' is an integer, not " + std::to_string(given->real));
    } else {
      bound.symbols.push_back(given->integer);
    }
  }
  if (named != numbers.size())
    for (const NamedNumber& number : numbers)
      if (std::none_of(symbols.begin(), symbols.end(), [&](const PlanSymbol& s) {
            return s.kind > PlanSymbol::Kind::Dimension && s.name == number.name;
          }))
        throw LaunchError("plan '" + plan_.spec().name + "' has no symbol '" + number.name + "'");

  spread_symbols(bound);
}

// The symbols of each program, in their ranges.
void PreparedPlan::spread_symbols(Bound& bound) const {
  bound.of_step.resize(plan_.spec().steps.size());
  for (const auto& [step, program] : computes_of(plan_)) {
    const std::vector<int>& places = plan_.symbol_places(step);
    for (size_t s = 0; s < places.size(); ++s) {
      const machine::Symbol& symbol = program->symbols[s];
      const int64_t value = bound.symbols[static_cast<size_t>(places[s])];
      bound.of_step[step].push_back(value);
      if (symbol.kind == machine::SymbolKind::Float) continue;
      const bool dimension = symbol.kind == machine::SymbolKind::Dimension;
      const int64_t low = dimension ? std::max(symbol.minimum, symbol.granularity) : symbol.minimum;
      if (value >= low && value <= symbol.maximum &&
          !(dimension && value % std::max<int64_t>(symbol.granularity, 1) != 0))
        continue;
      std::string who = "plan '" + plan_.spec().name + "'";
      if (dimension)
        who =
            name_of(static_cast<size_t>(plan_.symbols()[static_cast<size_t>(places[s])].argument)) +
            ", dim " + std::to_string(symbol.dim);
      throw LaunchError(
          who + ": symbol '" + symbol.name + "' is " + std::to_string(value) + " and must lie in " +
          std::to_string(low) + ".." + std::to_string(symbol.maximum) +
          (dimension ? " and be a multiple of " + std::to_string(symbol.granularity) : ""));
    }
  }
}

// Compares shapes; where the tensor is larger and tiling is allowed, finds the loops.
void PreparedPlan::find_tiles(Bound& bound, bool tiled) const {
  std::vector<int64_t> counts;  // by class
  std::vector<std::pair<size_t, int>> where;
  for (size_t a = 0; a < arguments_.size(); ++a) {
    Bound::Tensor& tensor = bound.tensors[a];
    for (const Use& use : arguments_[a].uses) {
      OperandLayout layout = use.layout;
      if (!use.constant) {
        try {
          layout = card::lay_operand(*use.operand, bound.of_step[use.step]);
        } catch (const std::invalid_argument& error) {
          throw LaunchError(name_of(a) + ": " + error.what());
        }
      }
      const std::span<const int64_t> wanted(layout.shape, static_cast<size_t>(layout.rank));
      const std::span<const int64_t> got(tensor.sizes.data(), tensor.sizes.size());
      if (std::equal(wanted.begin(), wanted.end(), got.begin(), got.end()) && tensor.tile.empty())
        continue;
      const std::string shapes = name_of(a) + ": its shape is " + card::dims_text(got) +
                                 ", program " + use.program->name + " takes " +
                                 card::dims_text(wanted);
      bool larger = wanted.size() == got.size();
      for (size_t d = 0; larger && d < got.size(); ++d) larger = got[d] >= wanted[d];
      if (!larger) throw LaunchError(shapes);
      if (!tiled)
        throw LaunchError(shapes +
                          ". A plan runs on the tiles of larger tensors with "
                          "allow_tiled_launch=True (or OPENSPYRE_ALLOW_TILED_LAUNCH=1)");
      for (size_t d = 0; d < got.size(); ++d)
        if (got[d] % wanted[d] != 0)
          throw LaunchError(shapes + "; dim " + std::to_string(d) + " of " +
                            std::to_string(got[d]) + " is no multiple of its tile of " +
                            std::to_string(wanted[d]));
      const std::vector<int64_t> tile(wanted.begin(), wanted.end());
      if (!tensor.tile.empty() && tensor.tile != tile)
        throw LaunchError(shapes + ", another program of the plan another tile");
      tensor.tile = tile;
    }
  }
  const bool any = std::any_of(bound.tensors.begin(), bound.tensors.end(),
                               [](const Bound::Tensor& t) { return !t.tile.empty(); });
  if (!any) return;
  for (const PlanSymbol& symbol : plan_.symbols())
    if (symbol.kind == PlanSymbol::Kind::Dimension)
      throw LaunchError("plan '" + plan_.spec().name +
                        "' takes sizes as symbols: give it tensors of their whole size instead of "
                        "a tiled launch");
  const card::TileClasses& classes = *tile_classes_;
  for (size_t a = 0; a < arguments_.size(); ++a) {
    const Bound::Tensor& tensor = bound.tensors[a];
    for (size_t d = 0; d < tensor.tile.size(); ++d) {
      const int64_t count = tensor.sizes[d] / tensor.tile[d];
      if (count == 1) continue;
      const std::string who = name_of(a) + ": dim " + std::to_string(d);
      const int one = classes.of(static_cast<int>(a), static_cast<int>(d));
      if (one < 0) throw LaunchError(who + " cannot be tiled: no instruction moves along it");
      if (!classes.obstacle(one).empty())
        throw LaunchError(who + " cannot be tiled: " + classes.obstacle(one));
      for (const auto& [other, dim] : classes.dims(one)) {
        const Bound::Tensor& twin = bound.tensors[static_cast<size_t>(other)];
        const int64_t its = twin.tile.empty() ? 1
                                              : twin.sizes[static_cast<size_t>(dim)] /
                                                    twin.tile[static_cast<size_t>(dim)];
        if (its != count)
          throw LaunchError(who + " has " + std::to_string(count) + " tiles, but dim " +
                            std::to_string(dim) + " of tensor " + std::to_string(other) +
                            ", which the program walks with it, has " + std::to_string(its));
      }
      if (std::none_of(bound.loops.begin(), bound.loops.end(),
                       [&](const auto& loop) { return loop.first == one; })) {
        bound.loops.emplace_back(one, count);
        if (__builtin_mul_overflow(bound.iterations, count, &bound.iterations) ||
            bound.iterations > (1 << 20))
          throw LaunchError(who + ": a tiled launch has at most 1048576 iterations");
      }
    }
  }
  // Every loop must move all that is written, or one tile would overwrite another.
  for (const auto& [one, count] : bound.loops)
    for (size_t a = 0; a < arguments_.size(); ++a) {
      const auto& dims = classes.dims(one);
      if (arguments_[a].written && std::none_of(dims.begin(), dims.end(), [&](const auto& d) {
            return d.first == static_cast<int>(a);
          }))
        throw LaunchError(name_of(a) + ": it is written by all " + std::to_string(count) +
                          " tiles of dim " + std::to_string(dims[0].second) + " of tensor " +
                          std::to_string(dims[0].first));
    }
}

// An operand that is written shares no byte with another argument.
void PreparedPlan::check_aliasing(const Bound& bound) const {
  for (size_t a = 0; a < arguments_.size(); ++a)
    for (size_t b = a + 1; b < arguments_.size(); ++b) {
      if (!arguments_[a].written && !arguments_[b].written) continue;
      const Bound::Tensor &left = bound.tensors[a], &right = bound.tensors[b];
      if (left.allocation->block != right.allocation->block) continue;
      const auto sticks = [](const Bound::Tensor& tensor) {
        std::vector<card::ByteRange> ranges;
        const machine::View view{tensor.offset, {tensor.strides.data(), tensor.strides.size()}};
        for (const machine::Extent& e :
             machine::footprint(*tensor.layout, view, {tensor.sizes.data(), tensor.sizes.size()})) {
          const auto begin = static_cast<uint64_t>(e.begin / 128 * 128);
          ranges.push_back({begin, static_cast<uint64_t>((e.end + 127) / 128 * 128)});
        }
        return ranges;
      };
      if (left.offset == right.offset || overlap(sticks(left), sticks(right)))
        throw LaunchError(name_of(a) + " and tensor " + std::to_string(b) +
                          " share bytes, and the plan writes to " +
                          (arguments_[a].written ? "the first" : "the second") +
                          "; an operand that is written in place is one argument of role inout");
    }
}

// Addresses of one iteration: `shift` linear elements from the start of each tensor.
void PreparedPlan::place(Bound& bound, const std::vector<int64_t>& shift,
                         card::LaunchRequest& request) const {
  const bool tracks = plan_.device().streams->tracks_hazards();
  request.arguments.resize(arguments_.size());
  for (size_t a = 0; a < arguments_.size(); ++a) {
    const Bound::Tensor& tensor = bound.tensors[a];
    card::LaunchArgument& argument = request.arguments[a];
    argument.block = tensor.allocation->block;
    argument.read = arguments_[a].read;
    argument.written = arguments_[a].written;
    argument.footprint.clear();
    const card::TensorView view{tensor.layout.get(),
                                tensor.offset + shift[a],
                                {tensor.sizes.data(), tensor.sizes.size()},
                                {tensor.strides.data(), tensor.strides.size()}};
    if (arguments_[a].uses.empty())
      argument.offset = static_cast<uint64_t>(tensor.layout->element_offset(view.offset));
    for (const Use& use : arguments_[a].uses) {
      OperandLayout computed;
      if (!use.constant) computed = card::lay_operand(*use.operand, bound.of_step[use.step]);
      const OperandLayout& layout = use.constant ? use.layout : computed;
      int64_t base = 0;
      const std::string wrong =
          card::match_layout(layout, view, use.operand->role != Role::In, &base);
      if (!wrong.empty())
        throw LaunchError(
            name_of(a) + ": it does not lie on the card as operand " + use.operand->name +
            " of program " + use.program->name + " does: " + wrong +
            ". Way out: a contiguous tensor, or torch.spyre.to_layout with the operand's layout");
      argument.offset = static_cast<uint64_t>(base);
      argument.span = static_cast<uint64_t>(layout.nbytes);
      if (tracks && argument.footprint.empty()) argument.footprint = card::sticks_of(layout, base);
    }
  }
}

std::vector<int64_t> PreparedPlan::find_costs(const Bound& bound) {
  std::vector<int64_t> costs;
  for (const auto& [step, program] : computes_of(plan_)) {
    int64_t cost = 0;
    if (plan_.spec().steps[step].cost_ns < 0) {
      const std::vector<int64_t>& values = bound.of_step[step];
      auto& known = costs_[step];
      const auto found = known.find(values);
      if (found != known.end()) {
        cost = found->second;
      } else {
        cost = cost_(step, values);
        if (known.size() >= 4096) known.clear();
        known.emplace(values, cost);
      }
    }
    costs.push_back(cost);
  }
  return costs;
}

void PreparedPlan::note_writes(const std::vector<at::Tensor>& tensors) const {
  for (size_t a = 0; a < tensors.size(); ++a)
    if (arguments_[a].written && !tensors[a].is_inference())
      tensors[a].unsafeGetTensorImpl()->bump_version();
}

void PreparedPlan::launch(const std::vector<at::Tensor>& tensors, card::StreamId stream,
                          const std::vector<NamedNumber>& numbers, bool tiled) {
  card::Device& device = plan_.device();
  if (!device.streams->valid(stream))
    throw LaunchError("plan '" + plan_.spec().name + "': stream " + std::to_string(stream) +
                      " of device " + std::to_string(device.index) + " does not exist");
  if (tensors.size() != arguments_.size())
    throw LaunchError("plan '" + plan_.spec().name + "' takes " +
                      std::to_string(arguments_.size()) + " tensors, got " +
                      std::to_string(tensors.size()));
  const machine::Numerics numerics = card::Runtime::get().numerics();
  Bound bound;
  bound.tensors.resize(tensors.size());
  for (size_t a = 0; a < tensors.size(); ++a) {
    const at::Tensor& tensor = tensors[a];
    if (!tensor.defined()) throw LaunchError(name_of(a) + " is undefined");
    if (!tensor.is_privateuseone() || tensor.get_device() != device.index)
      throw LaunchError(name_of(a) + " is on " + tensor.device().str() +
                        ", the plan on spyre:" + std::to_string(device.index) +
                        "; move it with .to('spyre:" + std::to_string(device.index) + "')");
    if (tensor.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg())
      throw LaunchError(name_of(a) + " is no plain strided tensor; resolve it first");
    if (!holds_bytes(tensor))
      throw LaunchError(name_of(a) +
                        " is a wrapper without bytes of its own (nested, fake, or of a transform "
                        "such as vmap, grad or functionalize); launch with the tensors that it "
                        "wraps");
    if (at::GradMode::is_enabled() && tensor.requires_grad())
      throw LaunchError(name_of(a) +
                        " requires grad, and a launch has no derivative. Launch under "
                        "torch.no_grad(), in the forward of a torch.autograd.Function, or with "
                        "tensor.detach()");
    for (const Use& use : arguments_[a].uses)
      if (host_type_of(tensor.scalar_type()) != use.type)
        throw LaunchError(name_of(a) + ": its dtype is " +
                          std::string(c10::toString(tensor.scalar_type())) + ", program " +
                          use.program->name + " takes " + use.operand->dtype);
      else if (const machine::Format format = machine::format_for(use.type, numerics.mode);
               format != use.operand->format)
        throw LaunchError(name_of(a) + ": the card holds it as " + machine::format_name(format) +
                          ", program " + use.program->name + " wants " +
                          machine::format_name(use.operand->format) +
                          " (OPENSPYRE_NUMERICS decides how dtypes live on the card)");
    Bound::Tensor& place = bound.tensors[a];
    const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
    place.sizes.assign(sizes.begin(), sizes.end());
    place.strides.assign(strides.begin(), strides.end());
  }
  bind_symbols(bound, numbers);
  if (tiled && tile_classes_ == nullptr) {
    std::vector<card::TileUse> uses;
    for (const auto& [step, program] : computes_of(plan_))
      uses.push_back({program, plan_.spec().steps[step].args});
    tile_classes_ =
        std::make_shared<const card::TileClasses>(uses, static_cast<int>(arguments_.size()));
  }
  find_tiles(bound, tiled);
  for (size_t a = 0; a < tensors.size(); ++a) {
    const at::Tensor& tensor = tensors[a];
    Bound::Tensor& place = bound.tensors[a];
    if (tensor.numel() == 0)
      throw LaunchError(name_of(a) + ": a tensor of shape " +
                        card::dims_text({place.sizes.data(), place.sizes.size()}) +
                        " has no elements");
    int64_t host_offset = 0;
    place.allocation = AllocationRef(tensor, &host_offset);
    if (!place.allocation) throw LaunchError(name_of(a) + ": its storage has zero bytes");
    const auto itemsize = static_cast<int64_t>(tensor.itemsize());
    place.offset = tensor.storage_offset() + host_offset / itemsize;
    int64_t end = place.offset;
    for (size_t d = 0; d < place.sizes.size(); ++d) end += (place.sizes[d] - 1) * place.strides[d];
    if (host_offset % itemsize != 0 || end >= place.allocation->host_nbytes / itemsize)
      throw LaunchError(name_of(a) + " reaches outside its storage of " +
                        std::to_string(place.allocation->host_nbytes) +
                        " bytes; was the storage resized?");
    guarded([&] { pin(*place.allocation, tensor); });
    if (!place.allocation->typed ||
        (place.allocation->dtype != tensor.scalar_type() &&
         !same_bits(tensor.scalar_type(), place.allocation->dtype, numerics.mode)))
      throw LaunchError(name_of(a) +
                        ": it is a view with another dtype than its storage's, whose "
                        "bits on the card are different; make a copy of that dtype");
    place.layout = layout_of(*place.allocation);
  }
  check_aliasing(bound);

  const std::vector<int64_t> costs = find_costs(bound);
  std::vector<card::LaunchRequest> requests(static_cast<size_t>(bound.iterations));
  std::vector<int64_t> shift(tensors.size(), 0);
  for (int64_t iteration = 0; iteration < bound.iterations; ++iteration) {
    card::LaunchRequest& request = requests[static_cast<size_t>(iteration)];
    std::fill(shift.begin(), shift.end(), 0);
    int64_t rest = iteration;
    for (size_t l = bound.loops.size(); l-- > 0;) {
      const auto& [one, count] = bound.loops[l];
      const int64_t index = rest % count;
      rest /= count;
      for (const auto& [a, dim] : tile_classes_->dims(one)) {
        const Bound::Tensor& tensor = bound.tensors[static_cast<size_t>(a)];
        shift[static_cast<size_t>(a)] += index * tensor.tile[static_cast<size_t>(dim)] *
                                         tensor.strides[static_cast<size_t>(dim)];
      }
    }
    place(bound, shift, request);
    request.stream = stream;
    request.numerics = numerics;
    request.symbols = bound.symbols;
    request.costs = costs;
  }
  submit(tensors, bound, stream, std::move(requests));
}

// Submits, or keeps for the graph that is being captured.
void PreparedPlan::submit(const std::vector<at::Tensor>& tensors, Bound& bound,
                          card::StreamId stream, std::vector<card::LaunchRequest> requests) {
  const int index = plan_.device().index;
  if (capturing(index, stream)) {
    CapturedLaunch captured{shared_from_this(), tensors, {}, std::move(requests)};
    for (Bound::Tensor& tensor : bound.tensors)
      captured.allocations.push_back(std::move(tensor.allocation));
    capture(index, stream, std::move(captured));
    return;
  }
  note_writes(tensors);
  // Without the GIL: memory pressure collects garbage, and other threads may hold the plan.
  const WithoutGil released;
  for (const card::LaunchRequest& request : requests) plan_.launch(request);
}

void PreparedPlan::launch_bound(const std::vector<at::Tensor>& tensors,
                                const std::vector<int64_t>& offsets, std::vector<int64_t> symbols,
                                card::StreamId stream) {
  card::Device& device = plan_.device();
  if (!device.streams->valid(stream))
    throw LaunchError("plan '" + plan_.spec().name + "': stream " + std::to_string(stream) +
                      " of device " + std::to_string(device.index) + " does not exist");
  if (tensors.size() != arguments_.size() || offsets.size() != arguments_.size() ||
      symbols.size() != plan_.symbols().size())
    throw LaunchError("plan '" + plan_.spec().name + "' takes " +
                      std::to_string(arguments_.size()) + " tensors with offsets and " +
                      std::to_string(plan_.symbols().size()) + " symbols, got " +
                      std::to_string(tensors.size()) + ", " + std::to_string(offsets.size()) +
                      " and " + std::to_string(symbols.size()));
  Bound bound;
  bound.symbols = std::move(symbols);
  spread_symbols(bound);
  bound.tensors.resize(tensors.size());
  std::vector<card::LaunchRequest> requests(1);
  card::LaunchRequest& request = requests[0];
  request.stream = stream;
  request.numerics = card::Runtime::get().numerics();
  request.arguments.resize(tensors.size());
  const bool tracks = device.streams->tracks_hazards();
  for (size_t a = 0; a < tensors.size(); ++a) {
    const at::Tensor& tensor = tensors[a];
    if (!tensor.defined() || !tensor.is_privateuseone() || tensor.get_device() != device.index)
      throw LaunchError(name_of(a) + " is not on spyre:" + std::to_string(device.index));
    if (!holds_bytes(tensor)) throw LaunchError(name_of(a) + " has no bytes of its own");
    Bound::Tensor& place = bound.tensors[a];
    place.allocation = AllocationRef(tensor);
    if (!place.allocation) throw LaunchError(name_of(a) + ": its storage has zero bytes");
    if (!place.allocation->typed) guarded([&] { pin(*place.allocation, tensor); });
    card::LaunchArgument& argument = request.arguments[a];
    argument.block = place.allocation->block;
    argument.read = arguments_[a].read;
    argument.written = arguments_[a].written;
    argument.offset = static_cast<uint64_t>(offsets[a]);
    const uint64_t room = argument.block->requested;
    if (offsets[a] < 0 || offsets[a] % 128 != 0 || argument.offset > room)
      throw LaunchError(name_of(a) + ": no operand begins at byte " + std::to_string(offsets[a]) +
                        " of its block of " + std::to_string(room));
    for (const Use& use : arguments_[a].uses) {
      if (const machine::Format format = machine::format_for(use.type, request.numerics.mode);
          format != use.operand->format)
        throw LaunchError(name_of(a) + ": the card holds " + use.operand->dtype + " as " +
                          machine::format_name(format) + ", program " + use.program->name +
                          " wants " + machine::format_name(use.operand->format) +
                          " (OPENSPYRE_NUMERICS decides how dtypes live on the card)");
      OperandLayout computed;
      if (!use.constant) {
        try {
          computed = card::lay_operand(*use.operand, bound.of_step[use.step]);
        } catch (const std::invalid_argument& error) {
          throw LaunchError(name_of(a) + ": " + error.what());
        }
      }
      const OperandLayout& layout = use.constant ? use.layout : computed;
      const auto span = static_cast<uint64_t>(layout.nbytes);
      if (span > room - argument.offset)
        throw LaunchError(name_of(a) + ": operand " + use.operand->name + " of program " +
                          use.program->name + " takes " + std::to_string(span) +
                          " bytes from byte " + std::to_string(offsets[a]) + " of a block of " +
                          std::to_string(room));
      if (span > argument.span) {
        argument.span = span;
        if (tracks) argument.footprint = card::sticks_of(layout, offsets[a]);
      }
    }
  }
  request.symbols = bound.symbols;
  request.costs = find_costs(bound);
  submit(tensors, bound, stream, std::move(requests));
}

}  // namespace openspyre::device
