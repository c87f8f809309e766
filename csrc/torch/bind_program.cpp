// The native machine for Python: decode an image, execute it on plain buffers, one body operation.
//
// For tests and tools that hold the machine to the reference executor. Launches on spyre tensors
// go through the runtime and not through here. No tensor crosses: operands are writable buffers.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "machine/kernels/kernels.h"
#include "machine/program/execute.h"
#include "machine/program/op_table.h"
#include "torch/bind.h"

namespace openspyre::device {

namespace {

using machine::LaunchFault;

py::handle fault_class;  // lives as long as the interpreter

const char* fault_name(LaunchFault::Kind kind) {
  constexpr const char* names[] = {"address", "index",     "deadlock",
                                   "number",  "unpatched", "stopped"};
  return names[static_cast<int>(kind)];
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const machine::FormatError& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
  } catch (const LaunchFault& error) {
    try {
      const py::object value = fault_class(py::str(error.what()));
      value.attr("kind") = fault_name(error.kind);
      PyErr_SetObject(fault_class.ptr(), value.ptr());
    } catch (py::error_already_set& failed) {
      failed.restore();
    }
  }
}

void bind_fault(py::module_& m) {
  PyObject* made = PyErr_NewExceptionWithDoc(
      "torch.spyre.LaunchFault",
      "A program that failed while it ran: an address outside an argument, an index beyond its\n"
      "limit, a wait that nothing ends. The text names instruction, core, loop indices and "
      "bytes.\n\n"
      "Attribute: kind (address, index, deadlock, number, unpatched, stopped).",
      PyExc_RuntimeError, nullptr);
  if (made == nullptr) throw py::error_already_set();
  const auto object = py::reinterpret_steal<py::object>(made);
  m.attr("LaunchFault") = object;
  fault_class = py::handle(object).inc_ref();
  py::register_local_exception_translator(&translate);
}

// A decoded image, with a copy of its bytes for the CONST operands.
class NativeProgram {
 public:
  explicit NativeProgram(const py::buffer& image) {
    const py::buffer_info info = image.request();
    const auto bytes = static_cast<size_t>(contiguous_bytes(info, "program image: the buffer"));
    image_ =
        std::shared_ptr<std::byte>(static_cast<std::byte*>(std::aligned_alloc(
                                       kAlignment, bytes / kAlignment * kAlignment + kAlignment)),
                                   &std::free);
    if (!image_) throw std::bad_alloc();
    if (bytes != 0) std::memcpy(image_.get(), info.ptr, bytes);
    WithoutGil released;
    program = machine::decode_program(image_.get(), bytes);
  }

  py::dict describe() const {
    py::dict out;
    out["name"] = program->name;
    out["cores"] = program->cores;
    out["lx_bytes"] = program->card_lx_bytes;
    out["instructions"] = program->instructions;
    out["words"] = program->words;
    out["semaphores"] = program->semaphores;
    out["talks"] = program->talks;
    py::list operands, symbols;
    for (const machine::Operand& operand : program->operands) operands.append(operand.name);
    for (const machine::Symbol& symbol : program->symbols) symbols.append(symbol.name);
    out["operands"] = operands;
    out["symbols"] = symbols;
    out["arguments"] = program->arguments;
    return out;
  }

  py::dict execute(const py::sequence& operands, const std::vector<int64_t>& symbols,
                   const std::string& mode, const std::string& tie, bool merged_is_nan, int threads,
                   int64_t max_tasks) const {
    if (operands.size() != program->operands.size()) {
      throw py::value_error("execute: program " + program->name + " has " +
                            std::to_string(program->operands.size()) + " operands, not " +
                            std::to_string(operands.size()));
    }
    std::vector<machine::Window> windows;
    std::vector<py::buffer_info> held;
    for (size_t i = 0; i < program->operands.size(); ++i) {
      const machine::Operand& operand = program->operands[i];
      const py::object given = operands[i];
      if (given.is_none()) {
        if (operand.role != machine::Role::Const) {
          throw py::value_error("execute: operand " + operand.name +
                                " needs a buffer; only a const one may be None");
        }
        windows.push_back({image_.get() + program->data_offset + operand.offset,
                           program->data_bytes - operand.offset});
        continue;
      }
      const bool written =
          operand.role != machine::Role::In && operand.role != machine::Role::Const;
      py::buffer_info info = py::cast<py::buffer>(given).request(written);
      windows.push_back({static_cast<std::byte*>(info.ptr),
                         contiguous_bytes(info, "execute: the buffer of operand " + operand.name)});
      held.push_back(std::move(info));
    }
    machine::Launch launch;
    launch.operands = windows;
    launch.symbols = symbols;
    launch.numerics = {parse_mode(mode), parse_tie(tie), merged_is_nan};
    launch.threads = threads;
    launch.max_tasks = max_tasks;
    machine::ExecutionCounts counts;
    {
      WithoutGil released;
      counts = machine::execute_program(*program, launch);
    }
    py::dict out;
    out["tasks"] = counts.tasks;
    out["bytes_read"] = counts.bytes_read;
    out["bytes_written"] = counts.bytes_written;
    out["bytes_copied"] = counts.bytes_copied;
    return out;
  }

  std::shared_ptr<const machine::Program> program;

 private:
  static constexpr size_t kAlignment = 128;

  static uint64_t contiguous_bytes(const py::buffer_info& info, const std::string& what) {
    py::ssize_t expected = info.itemsize;
    for (py::ssize_t i = info.ndim; i-- > 0;) {
      const auto at = static_cast<size_t>(i);
      if (info.shape[at] > 1 && info.strides[at] != expected) {
        throw py::value_error(what + " is not contiguous");
      }
      expected *= info.shape[at];
    }
    return static_cast<uint64_t>(info.size) * static_cast<uint64_t>(info.itemsize);
  }

  std::shared_ptr<std::byte> image_;
};

machine::Op parse_op(const std::string& name) {
  for (int i = 0; i < machine::kOps; ++i) {
    if (name == machine::op_name(static_cast<machine::Op>(i))) return static_cast<machine::Op>(i);
  }
  throw py::value_error("no body operation '" + name + "'");
}

size_t register_bytes(char letter) { return letter == 'l' ? 8 : letter == 'b' ? 1 : 4; }

py::object new_array(char letter, size_t n) {
  const char* dtype = letter == 'f'   ? "float32"
                      : letter == 'i' ? "int32"
                      : letter == 'l' ? "int64"
                                      : "bool";
  return py::module_::import("numpy").attr("empty")(n, dtype);
}

py::object sfu_apply(const std::string& op_text, const std::string& type_text,
                     const py::sequence& arrays, int64_t immediate, const std::string& mode,
                     const std::string& tie, bool merged_is_nan) {
  const machine::Op op = parse_op(op_text);
  const machine::OpInfo& info = machine::op_info(op);
  if (type_text.size() != 1 || std::string(info.types).find(type_text) == std::string::npos) {
    throw py::value_error(op_text + " does not exist for type '" + type_text + "'");
  }
  const size_t arity = std::strlen(info.operands);
  if (arity == 0 || arrays.size() != arity) {
    throw py::value_error(op_text + " takes " + std::to_string(arity) + " arrays here, not " +
                          std::to_string(arrays.size()));
  }
  const char type = type_text[0];
  char result = info.result == 'T' ? type : info.result;
  if (result == '*') {
    if (immediate < 0 || immediate > 3) throw py::value_error("the result type must lie in 0..3");
    result = machine::register_letter(static_cast<machine::Register>(immediate));
  }
  if (info.immediate == machine::Immediate::Format &&
      (immediate < 0 || immediate >= machine::kFormatCount)) {
    throw py::value_error("the format must lie in 0.." + std::to_string(machine::kFormatCount - 1));
  }
  std::vector<py::buffer_info> held;
  const void* args[3] = {};
  size_t n = 0;
  for (size_t i = 0; i < arity; ++i) {
    const char letter = info.operands[i] == 'T' ? type : info.operands[i];
    py::buffer_info given = py::cast<py::buffer>(arrays[i]).request();
    if (given.ndim != 1 || given.itemsize != static_cast<py::ssize_t>(register_bytes(letter)) ||
        (given.size > 1 && given.strides[0] != given.itemsize)) {
      throw py::value_error(op_text + ": array " + std::to_string(i) +
                            " must be flat, contiguous and of type " + letter);
    }
    if (i > 0 && static_cast<size_t>(given.size) != n) {
      throw py::value_error(op_text + ": the arrays have different lengths");
    }
    n = static_cast<size_t>(given.size);
    args[i] = given.ptr;
    held.push_back(std::move(given));
  }
  py::object out = new_array(result, n);
  const py::buffer_info to = py::cast<py::buffer>(out).request(true);
  const machine::Numerics numerics{parse_mode(mode), parse_tie(tie), merged_is_nan};
  {
    WithoutGil released;
    machine::apply_op(op, machine::register_of_letter(type), args, to.ptr, static_cast<int64_t>(n),
                      immediate, numerics);
  }
  return out;
}

}  // namespace

void bind_program(py::module_& m) {
  bind_fault(m);
  py::class_<NativeProgram>(m, "NativeProgram",
                            "A decoded program image. ValueError for bytes that are none.")
      .def(py::init<const py::buffer&>(), py::arg("image"))
      .def("describe", &NativeProgram::describe)
      .def("execute", &NativeProgram::execute, py::arg("operands"),
           py::arg("symbols") = std::vector<int64_t>{}, py::arg("mode") = "dl16",
           py::arg("tie") = "toward_positive", py::arg("merged_is_nan") = false,
           py::arg("threads") = 1, py::arg("max_tasks") = int64_t(1) << 40,
           "Runs it. `operands`: a buffer each, None for const ones; `symbols`: a number each, of\n"
           "float symbols the float32's bits. Raises LaunchFault.");
  m.def(
      "_program_decode", [](const py::buffer& image) { return NativeProgram(image).describe(); },
      py::arg("image"),
      "What a program image holds. ValueError names the byte, the field and the rule.");
  m.def(
      "_program_execute",
      [](const py::object& image, const py::sequence& operands, const std::vector<int64_t>& symbols,
         const std::string& mode, const std::string& tie, bool merged_is_nan, int threads) {
        constexpr int64_t kEndless = int64_t(1) << 40;
        if (py::isinstance<NativeProgram>(image)) {
          return py::cast<const NativeProgram&>(image).execute(operands, symbols, mode, tie,
                                                               merged_is_nan, threads, kEndless);
        }
        return NativeProgram(py::cast<py::buffer>(image))
            .execute(operands, symbols, mode, tie, merged_is_nan, threads, kEndless);
      },
      py::arg("image"), py::arg("operands"), py::arg("symbols") = std::vector<int64_t>{},
      py::arg("mode") = "dl16", py::arg("tie") = "toward_positive",
      py::arg("merged_is_nan") = false, py::arg("threads") = 1,
      "Runs an image or a NativeProgram; see NativeProgram.execute.");
  m.def("_sfu_apply", &sfu_apply, py::arg("op"), py::arg("type"), py::arg("arrays"),
        py::arg("immediate") = 0, py::arg("mode") = "dl16", py::arg("tie") = "toward_positive",
        py::arg("merged_is_nan") = false,
        "One body operation on flat arrays of registers (float32, int32, int64, bool).");
}

}  // namespace openspyre::device
