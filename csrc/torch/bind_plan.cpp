// Prepared plans and their launch for Python (openspyre/runtime/plan.py makes the descriptions).
//
// The one place where tensors cross pybind: a launch must cost a few microseconds, so it takes a
// list of tensors and unpacks them as torch's own bindings do.
#include <torch/csrc/autograd/python_variable.h>

#include "card/recorder.h"
#include "torch/bind.h"
#include "torch/current.h"
#include "torch/errors.h"
#include "torch/graph.h"
#include "torch/launch.h"

namespace openspyre::device {

namespace {

using card::PlanSpec;
using card::PlanStep;
using card::PlanSymbol;

template <class T>
T field(const py::dict& dict, const char* key) {
  if (!dict.contains(key)) throw py::value_error(std::string("plan: no field '") + key + "'");
  try {
    return py::cast<T>(dict[key]);
  } catch (const py::cast_error&) {
    throw py::value_error(std::string("plan: field '") + key + "' cannot be " +
                          py::cast<std::string>(py::repr(dict[key])));
  }
}

PlanSymbol::Kind symbol_kind(const std::string& text) {
  if (text == "address") return PlanSymbol::Kind::Address;
  if (text == "dynamic") return PlanSymbol::Kind::Dynamic;
  if (text == "dimension") return PlanSymbol::Kind::Dimension;
  if (text == "int") return PlanSymbol::Kind::Int;
  if (text == "float") return PlanSymbol::Kind::Float;
  throw py::value_error("plan: no symbol kind '" + text + "'");
}

card::PlanCorrection read_correction(const py::dict& dict) {
  card::PlanCorrection correction;
  correction.checksum = field<uint64_t>(dict, "checksum");
  for (const auto& row : field<py::list>(dict, "symbols")) {
    const auto [kind, argument, dim, offset, scale, name] =
        py::cast<std::tuple<std::string, int, int, int64_t, int64_t, std::string>>(row);
    correction.symbols.push_back({{symbol_kind(kind), argument, dim, name}, offset, scale});
  }
  for (const auto& row : field<py::list>(dict, "patches")) {
    const auto [offset, width, symbol, scale, addend, shift, mask] =
        py::cast<std::tuple<uint64_t, int, int, int64_t, int64_t, int, uint64_t>>(row);
    correction.patches.push_back({offset, width, symbol, scale, addend, shift, mask});
  }
  return correction;
}

PlanStep read_step(const py::dict& dict) {
  PlanStep step;
  step.kind = parse_engine(field<std::string>(dict, "kind"));
  step.name = field<std::string>(dict, "name");
  step.cost_ns = field<int64_t>(dict, "cost_ns");
  if (step.kind == card::Engine::Compute) {
    step.program_ptr = field<uint64_t>(dict, "program_ptr");
    step.args = field<std::vector<int>>(dict, "args");
    if (dict.contains("sources"))
      step.sources = card::source_number(field<std::string>(dict, "sources"));
    return step;
  }
  step.handle = field<std::string>(dict, "handle");
  step.size = field<uint64_t>(dict, "size");
  if (step.kind == card::Engine::Host) {
    step.input = field<std::string>(dict, "input");
    if (const auto inner = field<py::object>(dict, "correction"); !inner.is_none())
      step.correction = read_correction(py::cast<py::dict>(inner));
  } else {
    step.dev_ptr = field<uint64_t>(dict, "dev_ptr");
  }
  return step;
}

PlanSpec read_spec(const py::dict& dict) {
  PlanSpec spec;
  spec.name = field<std::string>(dict, "name");
  spec.hash = field<std::string>(dict, "hash");
  spec.static_size = field<uint64_t>(dict, "static_size");
  spec.dynamic_size = field<uint64_t>(dict, "dynamic_size");
  spec.slots = field<int>(dict, "slots");
  spec.overlap = field<int>(dict, "overlap");
  for (const auto& row : field<py::list>(dict, "inits")) {
    const auto [dev_ptr, data] = py::cast<std::tuple<uint64_t, py::bytes>>(row);
    const std::string_view view = data;
    auto bytes = std::make_shared<std::vector<std::byte>>(view.size());
    std::memcpy(bytes->data(), view.data(), view.size());
    spec.inits.push_back({dev_ptr, std::move(bytes)});
  }
  for (const auto& row : field<py::list>(dict, "steps"))
    spec.steps.push_back(read_step(py::cast<py::dict>(row)));
  return spec;
}

std::shared_ptr<PreparedPlan> prepare(int device_index, const py::dict& description,
                                      const py::object& cost) {
  PlanSpec spec = read_spec(description);
  card::Device& device = device_at(device_index);
  const card::StreamId stream = current_stream(device_index);
  // Called with the GIL. It may be dropped without: when preparing fails, or by a captured graph.
  const std::shared_ptr<py::object> held(new py::object(cost), [](py::object* object) {
    if (!Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    delete object;
  });
  PreparedPlan::Cost call = [held](size_t step, const std::vector<int64_t>& symbols) {
    return py::cast<int64_t>((*held)(step, symbols));
  };
  const WithoutGil released;
  return std::make_shared<PreparedPlan>(device, std::move(spec), stream, std::move(call));
}

// An int, or anything with __index__ (numpy's integers, integer tensors); else what has __float__.
// pybind would take numpy.float32(1.5) as the integer 1.
NamedNumber read_number(std::string name, py::handle value) {
  NamedNumber number{std::move(name), false, 0, 0};
  const auto refuse = [&]() -> py::type_error {
    PyErr_Clear();
    return py::type_error("launch: symbol '" + number.name +
                          "' must be an int of 64 bits or a float, not " +
                          py::cast<std::string>(py::repr(value)));
  };
  if (!PyFloat_Check(value.ptr())) {
    if (const auto whole = py::reinterpret_steal<py::object>(
            PyIndex_Check(value.ptr()) ? PyNumber_Index(value.ptr()) : nullptr)) {
      int overflow = 0;
      number.integer = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
      if (overflow != 0 || PyErr_Occurred()) throw refuse();
      return number;
    }
    PyErr_Clear();
    const PyNumberMethods* methods = Py_TYPE(value.ptr())->tp_as_number;
    if (methods == nullptr || methods->nb_float == nullptr) throw refuse();
  }
  number.is_float = true;
  number.real = PyFloat_AsDouble(value.ptr());
  if (PyErr_Occurred()) throw refuse();
  return number;
}

std::vector<NamedNumber> read_numbers(py::handle symbols) {
  std::vector<NamedNumber> numbers;
  if (symbols.is_none()) return numbers;
  if (!PyMapping_Check(symbols.ptr()) || !py::hasattr(symbols, "keys"))
    throw py::type_error(
        std::string("launch: symbols must be a dict of names and numbers, not a ") +
        Py_TYPE(symbols.ptr())->tp_name);
  // A copy: a number's __index__ may change the dict.
  const auto copy = py::reinterpret_steal<py::dict>(PyDict_Copy(py::cast<py::dict>(symbols).ptr()));
  if (!copy) throw py::error_already_set();
  for (const auto& [key, value] : copy) {
    Py_ssize_t size = 0;
    const char* name =
        PyUnicode_Check(key.ptr()) ? PyUnicode_AsUTF8AndSize(key.ptr(), &size) : nullptr;
    if (name == nullptr) {
      PyErr_Clear();
      throw py::type_error("launch: the names of symbols are text, not " +
                           py::cast<std::string>(py::repr(key)));
    }
    numbers.push_back(read_number(std::string(name, static_cast<size_t>(size)), value));
  }
  return numbers;
}

std::vector<at::Tensor> read_tensors(const py::handle& tensors) {
  PyObject* items = PySequence_Fast(tensors.ptr(), "launch: tensors must be a list or tuple");
  if (items == nullptr) throw py::error_already_set();
  const auto keep = py::reinterpret_steal<py::object>(items);
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
  std::vector<at::Tensor> unpacked;
  unpacked.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items, i);
    if (!THPVariable_Check(item))
      throw py::type_error("launch: tensor " + std::to_string(i) + " is no tensor but a " +
                           Py_TYPE(item)->tp_name);
    unpacked.push_back(THPVariable_Unpack(item));
  }
  return unpacked;
}

void launch(PreparedPlan& plan, const py::handle& tensors, int stream, const py::handle& symbols,
            bool tiled) {
  const std::vector<at::Tensor> unpacked = read_tensors(tensors);
  const card::Device& device = plan.plan().device();
  if (card::Runtime::get().in_forked_child()) device_at(device.index);  // raises
  plan.launch(unpacked, stream < 0 ? current_stream(device.index) : stream, read_numbers(symbols),
              tiled);
}

void launch_bound(PreparedPlan& plan, const py::handle& tensors,
                  const std::vector<int64_t>& offsets, std::vector<int64_t> symbols, int stream) {
  const std::vector<at::Tensor> unpacked = read_tensors(tensors);
  const card::Device& device = plan.plan().device();
  if (card::Runtime::get().in_forked_child()) device_at(device.index);  // raises
  plan.launch_bound(unpacked, offsets, std::move(symbols),
                    stream < 0 ? current_stream(device.index) : stream);
}

std::vector<std::string> symbol_names(PreparedPlan& plan) {
  std::vector<std::string> names;
  for (const PlanSymbol& symbol : plan.plan().symbols()) names.push_back(symbol.name);
  return names;
}

py::dict counters(const PreparedPlan& plan) {
  card::PlanCounters counters;
  bool resident = false;
  {
    const WithoutGil released;
    counters = const_cast<PreparedPlan&>(plan).plan().counters();
    resident = const_cast<PreparedPlan&>(plan).plan().resident();
  }
  py::dict out;
  out["launches"] = counters.launches;
  out["computes"] = counters.computes;
  out["host_computes"] = counters.host_computes;
  out["corrections"] = counters.corrections;
  out["reused"] = counters.reused;
  out["resident"] = resident;
  return out;
}

py::object host_data(PreparedPlan& plan, const std::string& handle) {
  const auto bytes = plan.plan().host_data(handle);
  if (!bytes) return py::none();
  return py::bytes(reinterpret_cast<const char*>(bytes->data()), bytes->size());
}

py::list images(int device_index) {
  std::vector<card::ImageInfo> rows;
  {
    const WithoutGil released;
    rows = card::Images::get().list(card::Runtime::get().device(device_index));
  }
  py::list out;
  for (const card::ImageInfo& row : rows)
    out.append(
        py::make_tuple(row.hash, row.bytes, row.resident, row.plans, row.loads, row.evictions));
  return out;
}

std::string check_order(const std::vector<std::string>& kinds,
                        const std::vector<std::string>& roles) {
  std::vector<card::Engine> engines;
  std::vector<card::StreamRole> streams;
  for (const std::string& kind : kinds) engines.push_back(parse_engine(kind));
  for (const std::string& role : roles) {
    if (role != "Prep" && role != "Dev")
      throw py::value_error("stream role '" + role + "' is none of Prep, Dev");
    streams.push_back(role == "Prep" ? card::StreamRole::Prep : card::StreamRole::Dev);
  }
  return card::check_step_ordering(engines, streams);
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("register_graph", &register_graph, "torch.accelerator.Graph for spyre, once it is named.");
  py::class_<PreparedPlan, std::shared_ptr<PreparedPlan>>(m, "Plan", "A prepared plan.")
      .def(py::init(&prepare), py::arg("device"), py::arg("description"), py::arg("cost"))
      .def("launch", &launch, py::arg("tensors"), py::arg("stream") = -1,
           py::arg("symbols") = py::none(), py::arg("tiled") = false)
      .def("launch_bound", &launch_bound, py::arg("tensors"), py::arg("byte_offsets"),
           py::arg("symbols"), py::arg("stream") = -1)
      .def_property_readonly("symbol_names", &symbol_names)
      .def("counters", &counters)
      .def("host_data", &host_data, py::arg("handle"))
      .def_property_readonly("slots", [](PreparedPlan& p) { return p.plan().slot_count(); })
      .def_property_readonly("overlaps", [](PreparedPlan& p) { return p.plan().overlaps(); })
      .def("role_of", [](PreparedPlan& p, size_t step) {
        return p.plan().role_of(step) == card::StreamRole::Prep ? "Prep" : "Dev";
      });
  m.def("plan_images", &images, py::arg("device"),
        "Rows (hash, bytes, resident, plans, loads, evictions).");
  m.def(
      "evict_image",
      [](int device) {
        const WithoutGil released;
        return card::Images::get().evict(card::Runtime::get().device(device));
      },
      py::arg("device"));
  m.def("check_step_ordering", &check_order, py::arg("kinds"), py::arg("roles"));
}

}  // namespace openspyre::device
