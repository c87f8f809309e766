#include "torch/native_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

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
#include "torch/layout_numbers.h"
#include "torch/op_scope.h"

namespace openspyre::device {
namespace {

using torch::jit::Stack;
using Words = std::vector<int64_t>;

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

enum class Kind : uint8_t { Tensor, Tensors, Number, Numbers, Generator, Device, Ignored, Other };

struct ArgumentInfo {
  Kind kind;
  c10::IValue preset;  // the default of a number
};

struct NativeOp {
  const OperatorFacts* facts;
  std::string name, overload;
  std::vector<ArgumentInfo> arguments;
  bool refused = false;  // never computed here
  std::unordered_map<Words, Entry, WordsHash> entries;
};

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
  found->refused = facts.view || facts.refused || found->name.compare(0, 6, "aten::") != 0;
  for (const ArgumentFacts& argument : facts.arguments) found->refused |= argument.if_training;
  return *found;
}

// ---- A call -------------------------------------------------------------------------------------

struct Number {
  bool is_float;
  double real;
  int64_t integer;
  int64_t bits() const { return is_float ? std::bit_cast<int64_t>(real) : integer; }
};

enum Tag : int64_t {
  kAbsent = 1,
  kTensor,
  kHostTensor,
  kWrapped,
  kFloat,
  kInt,
  kBool,
  kPreset,
  kList,
  kText,
  kPlace
};

struct Call {
  Words key;
  c10::SmallVector<at::Tensor, 8> tensors;
  c10::SmallVector<int64_t, 8> origins;  // linear element of the first one
  c10::SmallVector<std::shared_ptr<const machine::Layout>, 8> layouts;
  c10::SmallVector<Number, 4> numbers;
  c10::SmallVector<bool, 16> wrapped;  // per Tensor argument: a number in a tensor's clothes
  std::optional<at::Generator> generator;
  c10::Device device{kSpyre, -1};

  void word(int64_t value) { key.push_back(value); }
  void words(c10::IntArrayRef values) {
    key.push_back(static_cast<int64_t>(values.size()));
    key.insert(key.end(), values.begin(), values.end());
  }

  bool add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      word(kAbsent);
      return true;
    }
    if (tensor.is_cpu()) return add_host(tensor);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.is_privateuseone() || tensor.layout() != c10::kStrided || !impl->has_storage() ||
        impl->has_symbolic_sizes_strides() || tensor.is_conj() || tensor.is_neg() ||
        impl->is_wrapped_number() || tensor.is_quantized() || tensor.is_nested())
      return false;
    if (device.index() < 0) {
      device = tensor.device();
    } else if (device != tensor.device()) {
      return false;
    }
    const auto index = static_cast<int64_t>(tensors.size());
    int64_t shares = -1;
    for (int64_t other = 0; other < index && shares < 0; ++other) {
      if (tensors[other].unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
          impl->unsafe_storage().unsafeGetStorageImpl())
        shares = other;
    }
    word(kTensor);
    word(static_cast<int64_t>(tensor.scalar_type()));
    words(tensor.sizes());
    words(tensor.strides());
    int64_t origin = tensor.storage_offset();
    std::shared_ptr<const machine::Layout> layout;
    int64_t host_offset = 0;
    if (const AllocationRef held(tensor, &host_offset); held && tensor.numel() != 0) {
      if (!held->typed) guarded([&] { pin(*held, tensor); });
      const bool same = held->typed && (held->dtype == tensor.scalar_type() ||
                                        same_bits(tensor.scalar_type(), held->dtype,
                                                  card::Runtime::get().numerics().mode));
      layout = layout_of(*held);
      const auto itemsize = static_cast<int64_t>(tensor.itemsize());
      if (host_offset % itemsize != 0) return false;
      origin += host_offset / itemsize;
      word(layout_number(layout));
      // Whether it begins at a stick; what else depends on the offset is checked by the binding.
      word(!same         ? -1
           : origin == 0 ? 0
                         : 1 + layout->element_offset(origin) % machine::kStickBytes);
    } else {
      word(-1);
    }
    // Tensors that share a storage may overlap: then every offset counts.
    word(shares);
    if (shares >= 0) {
      word(origin);
      word(origins[static_cast<size_t>(shares)]);
    }
    tensors.push_back(tensor);
    origins.push_back(origin);
    layouts.push_back(std::move(layout));
    return true;
  }

  // A 0-dim tensor of the host is a number.
  bool add_host(const at::Tensor& tensor) {
    if (tensor.dim() != 0 || tensor.requires_grad()) return false;
    const at::ScalarType type = tensor.scalar_type();
    word(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? kWrapped : kHostTensor);
    word(static_cast<int64_t>(type));
    if (type == at::kBool) {
      word(tensor.item<bool>());
    } else if (at::isFloatingType(type)) {
      numbers.push_back({true, tensor.item<double>(), 0});
    } else if (at::isIntegralType(type, false) && type != at::kUInt64) {
      numbers.push_back({false, 0, tensor.item<int64_t>()});
    } else {
      return false;
    }
    return true;
  }

  bool add_number(const c10::IValue& value, const c10::IValue& preset) {
    if (value.isNone()) {
      word(kAbsent);
    } else if (value.isBool()) {
      word(kBool);
      word(value.toBool());
    } else if (value.isDouble()) {
      if (preset.isDouble() && preset.toDouble() == value.toDouble()) {
        word(kPreset);
        return true;
      }
      word(kFloat);
      numbers.push_back({true, value.toDouble(), 0});
    } else if (value.isInt()) {
      if (preset.isInt() && preset.toInt() == value.toInt()) {
        word(kPreset);
        return true;
      }
      word(kInt);
      numbers.push_back({false, 0, value.toInt()});
    } else {
      return false;  // complex, symbolic
    }
    return true;
  }

  bool add_constant(const c10::IValue& value) {
    if (value.isNone()) {
      word(kAbsent);
    } else if (value.isInt()) {
      word(kInt);
      word(value.toInt());
    } else if (value.isBool()) {
      word(kBool);
      word(value.toBool());
    } else if (value.isDouble()) {
      word(kFloat);
      word(std::bit_cast<int64_t>(value.toDouble()));
    } else if (value.isString()) {
      word(kText);
      const std::string& text = value.toStringRef();
      word(static_cast<int64_t>(text.size()));
      for (const char c : text) word(c);
    } else if (value.isDevice()) {
      word(kPlace);
      word(static_cast<int64_t>(value.toDevice().type()) << 16 | (value.toDevice().index() & 0xff));
    } else if (value.isList()) {
      const auto items = value.toListRef();
      word(kList);
      word(static_cast<int64_t>(items.size()));
      for (const c10::IValue& item : items)
        if (!add_constant(item)) return false;
    } else {
      return false;
    }
    return true;
  }

  bool add(const ArgumentInfo& info, const c10::IValue& value) {
    switch (info.kind) {
      case Kind::Tensor:
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        return add_tensor(value.toTensor());
      case Kind::Tensors: {
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        const auto items = value.toListRef();
        word(kList);
        word(static_cast<int64_t>(items.size()));
        for (const c10::IValue& item : items) {
          if (item.isTensor()) {
            if (!add_tensor(item.toTensor())) return false;
          } else {
            word(kAbsent);
          }
        }
        return true;
      }
      case Kind::Number:
        return add_number(value, info.preset);
      case Kind::Numbers: {
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        const auto items = value.toListRef();
        word(kList);
        word(static_cast<int64_t>(items.size()));
        for (const c10::IValue& item : items)
          if (!add_number(item, c10::IValue())) return false;
        return true;
      }
      case Kind::Generator:
        if (!value.isNone()) generator = value.toGenerator();
        return true;
      case Kind::Ignored:
        return true;
      case Kind::Device:
      case Kind::Other:
        return add_constant(value);
    }
    return false;
  }

  bool collect(const NativeOp& op, const Stack& stack) {
    key.reserve(64);
    const machine::Numerics numerics = card::Runtime::get().numerics();
    word(static_cast<int64_t>(numerics.mode) << 8 |
         static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())));
    const size_t base = stack.size() - op.arguments.size();
    for (size_t i = 0; i < op.arguments.size(); ++i)
      if (!add(op.arguments[i], stack[base + i])) return false;
    if (device.index() < 0) return false;
    word(device.index());
    return true;
  }
};

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
  ++counts().launches;
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

}  // namespace

bool native_enabled() noexcept { return enabled.load(std::memory_order_relaxed); }
void set_native_enabled(bool value) noexcept { enabled.store(value, std::memory_order_relaxed); }
NativeCounts native_counts() noexcept { return counts(); }
void clear_native_recipes() { operations().clear(); }

bool run_native(const c10::OperatorHandle& handle, const OperatorFacts& facts, Stack* stack) {
  if (!native_enabled() || !Py_IsInitialized()) return false;
  const py::gil_scoped_acquire gil;
  NativeOp& op = operation(handle, facts);
  if (op.refused) return false;
  Call call;
  if (!call.collect(op, *stack)) {
    note_reason(*facts.account, "arguments that the card does not take");
    return false;
  }
  const OpScope scope(facts.account->name.c_str());
  RecipePtr recipe = look_up(op, call, *stack, call.key);
  std::vector<int64_t> offsets;
  if (recipe->reason.empty() && !place(*recipe, call, offsets)) {
    // It begins elsewhere in its storage, where it does not lie as the one before did.
    Words exact = call.key;
    exact.insert(exact.end(), call.origins.begin(), call.origins.end());
    recipe = look_up(op, call, *stack, exact);
    offsets.clear();
    if (recipe->reason.empty() && !place(*recipe, call, offsets)) return false;
  }
  if (!recipe->reason.empty()) {
    note_reason(*facts.account, recipe->reason);
    return false;
  }
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
