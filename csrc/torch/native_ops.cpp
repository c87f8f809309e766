#include "torch/native_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <bit>
#include <optional>
#include <unordered_map>

#include "card/plan_contract.h"
#include "torch/allocation.h"
#include "torch/bind.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/errors.h"
#include "torch/generator.h"
#include "torch/launch.h"
#include "torch/native_call.h"
#include "torch/op_scope.h"

namespace openspyre::device {
namespace {

using torch::jit::Stack;

std::atomic<bool> enabled{false};

struct WordsHash {
  size_t operator()(const Words& words) const noexcept {
    uint64_t hash = 0x9e3779b97f4a7c15ull;
    for (const int64_t word : words) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0xff51afd7ed558ccdull;
      hash ^= hash >> 32;
    }
    return hash;
  }
};

// ---- Recipes: what Python says of a call --------------------------------------------------------

// A tensor argument as the compiler sees it, to bind another tensor of the same key.
struct Binding {
  std::vector<int64_t> shape, linear;  // of the addressed dims; linear elements a step
  card::OperandLayout layout;
  bool written = false;
  int64_t origin = 0, bytes = 0;  // linear element and byte of the first element
};

struct Recipe {
  enum class From : int { Tensor, Output, Constant, Temp };
  struct Argument {
    From from;
    int index;
    int64_t offset;  // bytes; of a Tensor: beyond the binding's
  };
  struct Output {
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
  };
  static constexpr int kSeed = -1, kOffset = -2;

  std::string reason;  // not empty: the CPU computes such calls
  py::object run;      // what is more than one launch: called with (tensors, numbers, seed, offset)
  std::shared_ptr<PreparedPlan> plan;  // none: nothing is launched
  std::vector<Argument> arguments;
  std::vector<Binding> bindings;  // one a tensor of the call; without shape: not bound
  std::vector<at::Tensor> constants;
  std::vector<Output> outputs;
  std::vector<int> symbols;               // per symbol of the plan: the number, kSeed or kOffset
  std::vector<std::vector<int>> returns;  // per new value: its outputs; -1: an undefined tensor
  int64_t draws = 0, temp_bytes = 0;
};
using RecipePtr = std::shared_ptr<const Recipe>;

// Recipes of one key. Some need the values of numbers: those are looked up by them.
struct Entry {
  std::vector<int> values;  // numbers whose value matters
  RecipePtr recipe;         // if none does
  std::unordered_map<Words, RecipePtr, WordsHash> by_value;
};

// ---- Operations ---------------------------------------------------------------------------------

struct NativeOp {
  const OperatorFacts* facts;
  std::string name, overload;
  std::vector<ArgumentInfo> arguments;
  bool refused = false;  // never computed here
  std::unordered_map<Words, Entry, WordsHash> entries;
};

constexpr char kRegion[] = "openspyre::region";

// All of it is guarded by the GIL. Leaked: kernels may run during interpreter exit.
std::unordered_map<const OperatorFacts*, std::unique_ptr<NativeOp>>& operations() {
  static auto* table = new std::unordered_map<const OperatorFacts*, std::unique_ptr<NativeOp>>;
  return *table;
}
NativeCounts& counts() {
  static NativeCounts numbers{};
  return numbers;
}

bool is_number(const c10::TypePtr& type) {
  return type->kind() == c10::TypeKind::NumberType || type->kind() == c10::TypeKind::FloatType;
}

Kind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.real_type();
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType();
  if (is_number(type)) return Kind::Number;
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Kind::Tensor;
    case c10::TypeKind::GeneratorType:
      return Kind::Generator;
    case c10::TypeKind::DeviceObjType:
      return Kind::Device;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (const auto* inner = element->castRaw<c10::OptionalType>())
        element = inner->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return Kind::Tensors;
      if (element->kind() == c10::TypeKind::NumberType) return Kind::Numbers;
      return Kind::Other;
    }
    default:
      return argument.name() == "non_blocking" || argument.name() == "pin_memory" ? Kind::Ignored
                                                                                  : Kind::Other;
  }
}

NativeOp& operation(const c10::OperatorHandle& op, const OperatorFacts& facts) {
  std::unique_ptr<NativeOp>& found = operations()[&facts];
  if (found) return *found;
  found = std::make_unique<NativeOp>();
  found->facts = &facts;
  found->name = op.operator_name().name;
  found->overload = op.operator_name().overload_name;
  for (const c10::Argument& argument : op.schema().arguments())
    found->arguments.push_back(
        {kind_of(argument), argument.default_value().value_or(c10::IValue())});
  // Facts of other namespaces do not stay, views have kernels, silent writes are not in schemas.
  found->refused = facts.view || facts.refused ||
                   (found->name.compare(0, 6, "aten::") != 0 && found->name != kRegion);
  for (const ArgumentFacts& argument : facts.arguments) found->refused |= argument.if_training;
  return *found;
}

// ---- Running a recipe
// -----------------------------------------------------------------------------

// The bytes at which every argument begins; false when a tensor does not lie as the recipe's did.
bool place(const Recipe& recipe, const Call& call, std::vector<int64_t>& offsets) {
  for (size_t t = 0; t < recipe.bindings.size(); ++t) {
    const Binding& binding = recipe.bindings[t];
    offsets.push_back(binding.bytes);
    if (binding.origin == call.origins[t]) continue;
    if (call.layouts[t] == nullptr) return false;
    const card::TensorView view{call.layouts[t].get(), call.origins[t], binding.shape,
                                binding.linear};
    if (!card::match_layout(binding.layout, view, binding.written, &offsets.back()).empty())
      return false;
  }
  return true;
}

int64_t symbol_bits(const card::PlanSymbol& symbol, const Number& number) {
  if (symbol.kind == card::PlanSymbol::Kind::Float) {
    const double real = number.is_float ? number.real : static_cast<double>(number.integer);
    return std::bit_cast<uint32_t>(static_cast<float>(real));
  }
  return number.is_float ? static_cast<int64_t>(number.real) : number.integer;
}

std::vector<at::Tensor> launch(const Recipe& recipe, const Call& call,
                               const std::vector<int64_t>& offsets) {
  std::vector<at::Tensor> outputs;
  outputs.reserve(recipe.outputs.size());
  for (const Recipe::Output& output : recipe.outputs)
    outputs.push_back(at::empty_strided(
        output.sizes, output.strides, at::TensorOptions().dtype(output.dtype).device(call.device)));
  int64_t seed = 0, counter = 0;
  if (recipe.draws > 0) {
    const auto [s, o] =
        generator_for(call.generator, call.device).reserve(static_cast<uint64_t>(recipe.draws));
    seed = static_cast<int64_t>(s);
    counter = static_cast<int64_t>(o);
  }
  if (recipe.run) {
    py::list tensors, numbers;
    for (const at::Tensor& tensor : call.tensors) tensors.append(py::cast(tensor));
    for (const Number& number : call.numbers) {
      if (number.is_float) {
        numbers.append(number.real);
      } else {
        numbers.append(number.integer);
      }
    }
    recipe.run(tensors, py::cast(outputs), numbers, seed, counter);
    return outputs;
  }
  if (!recipe.plan) return outputs;
  at::Tensor temp;
  if (recipe.temp_bytes > 0)
    temp = at::empty_strided({recipe.temp_bytes}, {1},
                             at::TensorOptions().dtype(at::kByte).device(call.device));
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> places;
  tensors.reserve(recipe.arguments.size());
  places.reserve(recipe.arguments.size());
  for (const Recipe::Argument& argument : recipe.arguments) {
    const auto index = static_cast<size_t>(argument.index);
    places.push_back(argument.offset);
    switch (argument.from) {
      case Recipe::From::Tensor:
        tensors.push_back(call.tensors[index]);
        places.back() += offsets[index];
        break;
      case Recipe::From::Output:
        tensors.push_back(outputs[index]);
        break;
      case Recipe::From::Constant:
        tensors.push_back(recipe.constants[index]);
        break;
      case Recipe::From::Temp:
        tensors.push_back(temp);
        break;
    }
  }
  std::vector<int64_t> symbols;
  const std::vector<card::PlanSymbol>& wanted = recipe.plan->plan().symbols();
  for (size_t i = 0; i < recipe.symbols.size(); ++i) {
    const int from = recipe.symbols[i];
    symbols.push_back(from == Recipe::kSeed     ? seed
                      : from == Recipe::kOffset ? counter
                                                : symbol_bits(wanted[i], call.numbers[from]));
  }
  guarded([&] {
    recipe.plan->launch_bound(tensors, places, std::move(symbols),
                              current_stream(call.device.index()));
  });
  return outputs;
}

// Results in the place of the arguments.
void answer(const NativeOp& op, const Recipe& recipe, std::vector<at::Tensor> outputs,
            Stack* stack) {
  const OperatorFacts& facts = *op.facts;
  const size_t base = stack->size() - op.arguments.size();
  Stack results;
  size_t next = 0;
  for (size_t i = 0; i < facts.return_count; ++i) {
    if (facts.returns[i] >= 0) {
      results.push_back((*stack)[base + static_cast<size_t>(facts.returns[i])]);
      continue;
    }
    const std::vector<int>& sources = recipe.returns.at(next++);
    const auto take = [&](int source) {
      return source < 0 ? at::Tensor() : outputs.at(static_cast<size_t>(source));
    };
    if (sources.size() == 2 && sources[1] == -2) {  // one tensor
      results.emplace_back(take(sources[0]));
    } else {
      c10::List<at::Tensor> list;
      for (const int source : sources) list.push_back(take(source));
      results.emplace_back(std::move(list));
    }
  }
  torch::jit::drop(*stack, op.arguments.size());
  for (c10::IValue& value : results) stack->push_back(std::move(value));
}

// ---- Asking Python ------------------------------------------------------------------------------

template <class T>
T field(const py::dict& dict, const char* name) {
  return py::cast<T>(dict[name]);
}

Binding read_binding(const py::handle& row) {
  Binding binding;
  if (row.is_none()) return binding;
  const auto [shape, linear, strides, stick, eps, written, origin, bytes] =
      py::cast<std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, int,
                          int64_t, bool, int64_t, int64_t>>(row);
  binding.shape = shape;
  binding.linear = linear;
  binding.written = written;
  binding.origin = origin;
  binding.bytes = bytes;
  card::OperandLayout& layout = binding.layout;
  if (shape.size() > static_cast<size_t>(machine::kMaxRank)) {
    layout.rank = 0;  // never matches another offset
    return binding;
  }
  layout.rank = static_cast<int>(shape.size());
  int64_t end = machine::kStickBytes;
  for (size_t d = 0; d < shape.size(); ++d) {
    layout.shape[d] = shape[d];
    layout.strides[d] = strides[d];
    const bool on_stick = static_cast<int>(d) == stick;
    end += strides[d] * (on_stick ? (shape[d] - 1) / eps : shape[d] - 1);
  }
  layout.stick = stick;
  layout.eps = eps;
  layout.nbytes = end;
  return binding;
}

std::shared_ptr<Recipe> read_recipe(const py::object& answer) {
  auto recipe = std::make_shared<Recipe>();
  if (py::isinstance<py::str>(answer)) {
    recipe->reason = py::cast<std::string>(answer);
    return recipe;
  }
  const auto dict = py::cast<py::dict>(answer);
  if (const auto run = field<py::object>(dict, "run"); !run.is_none()) recipe->run = run;
  if (const auto plan = field<py::object>(dict, "plan"); !plan.is_none())
    recipe->plan = py::cast<std::shared_ptr<PreparedPlan>>(plan);
  for (const auto& row : field<py::list>(dict, "arguments")) {
    const auto [from, index, offset] = py::cast<std::tuple<int, int, int64_t>>(row);
    recipe->arguments.push_back({static_cast<Recipe::From>(from), index, offset});
  }
  for (const auto& row : field<py::list>(dict, "bindings"))
    recipe->bindings.push_back(read_binding(row));
  recipe->constants = field<std::vector<at::Tensor>>(dict, "constants");
  for (const auto& row : field<py::list>(dict, "outputs")) {
    const auto parts = py::cast<py::tuple>(row);
    recipe->outputs.push_back({py::cast<std::vector<int64_t>>(parts[0]),
                               py::cast<std::vector<int64_t>>(parts[1]),
                               py::cast<at::ScalarType>(parts[2])});
  }
  recipe->symbols = field<std::vector<int>>(dict, "symbols");
  for (const auto& row : field<py::list>(dict, "returns")) {
    if (py::isinstance<py::int_>(row)) {
      recipe->returns.push_back({py::cast<int>(row), -2});
    } else {
      recipe->returns.push_back(py::cast<std::vector<int>>(row));
    }
  }
  recipe->draws = field<int64_t>(dict, "draws");
  recipe->temp_bytes = field<int64_t>(dict, "temp_bytes");
  return recipe;
}

// The arguments for Python: a wrapped number as a number, a spyre tensor as itself.
py::list arguments_of(const NativeOp& op, const Stack& stack) {
  py::list out;
  const size_t base = stack.size() - op.arguments.size();
  for (size_t i = 0; i < op.arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_cpu() &&
        value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
      out.append(torch::jit::toPyObject(c10::IValue(value.toTensor().item())));
    } else if (value.isTensor() && !value.toTensor().defined()) {
      out.append(py::none());
    } else {
      out.append(torch::jit::toPyObject(value));
    }
  }
  return out;
}

// A recipe for the call. `values`: the numbers that it holds for (in any case the reason is noted).
RecipePtr ask(const NativeOp& op, const Call& call, const Stack& stack, std::vector<int>& values) {
  const py::module_ eager = py::module_::import("openspyre.ops.eager");
  const py::object answer =
      eager.attr("compile_call")(op.name, op.overload, arguments_of(op, stack), call.tensors.size(),
                                 call.numbers.size(), call.device.index());
  const auto parts = py::cast<py::tuple>(answer);
  values = py::cast<std::vector<int>>(parts[1]);
  return read_recipe(parts[0]);
}

constexpr size_t kMostEntries = 8192;

Words values_of(const Call& call, const std::vector<int>& which) {
  Words words;
  for (const int number : which) words.push_back(call.numbers[static_cast<size_t>(number)].bits());
  return words;
}

RecipePtr find(const NativeOp& op, const Words& key, const Call& call) {
  const auto found = op.entries.find(key);
  if (found == op.entries.end()) return nullptr;
  const Entry& entry = found->second;
  if (entry.values.empty()) return entry.recipe;
  const auto inner = entry.by_value.find(values_of(call, entry.values));
  return inner == entry.by_value.end() ? nullptr : inner->second;
}

void keep(NativeOp& op, const Words& key, const Call& call, const std::vector<int>& values,
          const RecipePtr& recipe) {
  if (op.entries.size() >= kMostEntries) op.entries.clear();
  Entry& entry = op.entries[key];
  if (entry.values != values) entry = Entry{values, nullptr, {}};
  if (values.empty()) {
    entry.recipe = recipe;
    return;
  }
  if (entry.by_value.size() >= kMostEntries) entry.by_value.clear();
  entry.by_value[values_of(call, values)] = recipe;
}

RecipePtr look_up(NativeOp& op, const Call& call, const Stack& stack, const Words& key) {
  if (RecipePtr known = find(op, key, call)) {
    ++counts().hits;
    return known;
  }
  ++counts().misses;
  std::vector<int> values;
  const RecipePtr recipe = ask(op, call, stack, values);
  keep(op, key, call, values, recipe);
  return recipe;
}

// ---- Regions of compiled graphs -----------------------------------------------------------------

// How many in Python want to see every launch of a region.
std::atomic<int> regions_watched{0};

const OperatorFacts& region_facts(const c10::OperatorHandle& handle) {
  static auto* owner = new std::unique_ptr<OperatorFacts>;  // kernels may run during exit
  static const OperatorFacts& facts = facts_of(handle, *owner);
  return facts;
}

Words exact_key(const Call& call) {
  Words exact = call.key;
  exact.insert(exact.end(), call.origins.begin(), call.origins.end());
  return exact;
}

// The recipe of a call that was met before, with its offsets; none if Python has to run it.
RecipePtr known_recipe(const NativeOp& op, const Call& call, std::vector<int64_t>& offsets) {
  for (const bool exact : {false, true}) {
    RecipePtr recipe = find(op, exact ? exact_key(call) : call.key, call);
    offsets.clear();
    if (recipe && recipe->reason.empty() && place(*recipe, call, offsets)) return recipe;
    if (!recipe || !recipe->reason.empty()) return nullptr;
  }
  return nullptr;
}

// Keeps how the call that Python has just run is launched: weights may have been relaid in it, so
// that its key is another one than before.
void learn_region(NativeOp& op, const py::module_& regions, const Stack& arguments) {
  Call call;
  std::vector<int64_t> offsets;
  if (!call.collect(op.arguments, arguments) || known_recipe(op, call, offsets)) return;
  RecipePtr held = find(op, call.key, call);
  if (held && !held->reason.empty()) return;
  const RecipePtr recipe =
      read_recipe(regions.attr("recipe")(*py::tuple(arguments_of(op, arguments))));
  keep(op, held ? exact_key(call) : call.key, call, {}, recipe);
}

// region(str key, Tensor[] inputs, Tensor(a!)[] written, SymInt[] sizes) -> Tensor[]. A call whose
// layouts and sizes were met before is launched here; all others are planned and run in Python
// (openspyre/compiler/inductor/regions.py).
void region_kernel(const c10::OperatorHandle& handle, Stack* stack) {
  const py::gil_scoped_acquire gil;
  NativeOp& op = operation(handle, region_facts(handle));
  const bool watched = regions_watched.load(std::memory_order_relaxed) > 0;
  if (!watched) {
    Call call;
    std::vector<int64_t> offsets;
    if (call.collect(op.arguments, *stack)) {
      if (const RecipePtr recipe = known_recipe(op, call, offsets)) {
        answer(op, *recipe, launch(*recipe, call, offsets), stack);
        return;
      }
    }
  }
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(op.arguments.size()),
                        stack->end());
  const py::module_ regions = py::module_::import("openspyre.compiler.inductor.regions");
  const py::object results = regions.attr("run")(*py::tuple(arguments_of(op, arguments)));
  torch::jit::drop(*stack, op.arguments.size());
  stack->emplace_back(py::cast<std::vector<at::Tensor>>(results));
  if (!watched) learn_region(op, regions, arguments);
}

}  // namespace

// A region that reads no tensor is one of this device all the same: BackendSelect.
TORCH_LIBRARY_IMPL(openspyre, BackendSelect, m) {
  m.impl("region", torch::CppFunction::makeFromBoxedFunction<&region_kernel>());
}
TORCH_LIBRARY_IMPL(openspyre, PrivateUse1, m) {
  m.impl("region", torch::CppFunction::makeFromBoxedFunction<&region_kernel>());
}

bool native_enabled() noexcept { return enabled.load(std::memory_order_relaxed); }
void set_native_enabled(bool value) noexcept { enabled.store(value, std::memory_order_relaxed); }
NativeCounts native_counts() noexcept { return counts(); }
// The operations stay: a call that is being planned, in Python and maybe in another thread, holds
// one.
void clear_native_recipes() {
  for (auto& [facts, op] : operations()) op->entries.clear();
}

bool run_native(const c10::OperatorHandle& handle, const OperatorFacts& facts, Stack* stack) {
  if (!native_enabled() || !Py_IsInitialized()) return false;
  const py::gil_scoped_acquire gil;
  NativeOp& op = operation(handle, facts);
  if (op.refused) return false;
  Call call;
  if (!call.collect(op.arguments, *stack)) {
    note_reason(*facts.account, "arguments that the card does not take");
    return false;
  }
  const OpScope scope(facts.account->name.c_str());
  RecipePtr recipe = look_up(op, call, *stack, call.key);
  std::vector<int64_t> offsets;
  if (recipe->reason.empty() && !place(*recipe, call, offsets)) {
    // It begins elsewhere in its storage, where it does not lie as the one before did.
    recipe = look_up(op, call, *stack, exact_key(call));
    offsets.clear();
    if (recipe->reason.empty() && !place(*recipe, call, offsets)) return false;
  }
  if (!recipe->reason.empty()) {
    note_reason(*facts.account, recipe->reason);
    return false;
  }
  ++counts().launches;
  answer(op, *recipe, launch(*recipe, call, offsets), stack);
  return true;
}

std::optional<Stack> call_native(const char* name, const char* overload, Stack arguments) {
  if (!native_enabled()) return std::nullopt;
  const auto handle = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!handle) return std::nullopt;
  std::unique_ptr<OperatorFacts> owner;
  const OperatorFacts& facts = facts_of(*handle, owner);
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  if (!run_native(*handle, facts, &arguments)) return std::nullopt;
  return arguments;
}

// ---- For Python ---------------------------------------------------------------------------------

namespace {

// (layout number, storage holds the tensor's dtype, linear element of the first one).
py::tuple tensor_facts(const at::Tensor& tensor) {
  if (!tensor.is_privateuseone())
    throw py::value_error("tensor_facts: expected a spyre tensor, got one on " +
                          tensor.device().str());
  int64_t host_offset = 0;
  const AllocationRef held(tensor, &host_offset);
  if (!held) return py::make_tuple(-1, true, tensor.storage_offset());
  if (!held->typed) guarded([&] { pin(*held, tensor); });
  const auto itemsize = static_cast<int64_t>(tensor.itemsize());
  const bool same =
      held->typed && host_offset % itemsize == 0 &&
      (held->dtype == tensor.scalar_type() ||
       same_bits(tensor.scalar_type(), held->dtype, card::Runtime::get().numerics().mode));
  return py::make_tuple(layout_number(layout_of(*held)), same,
                        tensor.storage_offset() + host_offset / itemsize);
}

}  // namespace

void bind_native(py::module_& m) {
  m.def("tensor_facts", &tensor_facts, py::arg("tensor"));
  m.def("native_enabled", &native_enabled);
  m.def("native_set_enabled", &set_native_enabled, py::arg("enabled"));
  m.def("native_clear", &clear_native_recipes);
  m.def("hint", [] { return hint_number; });
  m.def(
      "set_hint", [](int64_t number) { return std::exchange(hint_number, number); },
      py::arg("number"));
  m.def("watch_regions", [](bool watch) { regions_watched += watch ? 1 : -1; }, py::arg("watch"));
  m.def("native_counts", [] {
    const NativeCounts now = native_counts();
    py::dict out;
    out["hits"] = now.hits;
    out["misses"] = now.misses;
    out["launches"] = now.launches;
    return out;
  });
}

}  // namespace openspyre::device
