// The exceptions of the card as Python exceptions.
//
//   card::ConfigError   -> ValueError
//   card::OutOfMemory   -> torch.OutOfMemoryError
//   card::StreamFailure -> torch.spyre.StreamFailure (a torch.AcceleratorError) with the attributes
//                          code, origin, device, stream
//   card::Deadlock      -> torch.spyre.Deadlock       (a RuntimeError)
//   card::Hazard        -> torch.spyre.Hazard         (a RuntimeError)
//   card::BadToken      -> torch.spyre.BadToken       (a RuntimeError)
//   card::ForkedChild   -> torch.spyre.ForkedChild    (a RuntimeError)
//   card::NoBacking     -> torch.spyre.NoBacking      (a RuntimeError)
//   card::Interrupted   -> the Python error that interrupted the wait (KeyboardInterrupt)
//   std::out_of_range   -> IndexError, std::invalid_argument -> ValueError (pybind11's own rules)
#include "card/memory.h"
#include "torch/bind.h"
#include "torch/errors.h"

namespace openspyre::device {

namespace {

struct Classes {
  py::handle stream_failure, deadlock, hazard, bad_token, forked_child, no_backing, out_of_memory;
};
// Classes live as long as the interpreter: the references are never given back.
Classes classes;

py::handle make_class(py::module_& m, const char* name, const char* doc, py::handle base) {
  const std::string full = std::string("torch.spyre.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, base.ptr(), nullptr);
  if (made == nullptr) throw py::error_already_set();
  const auto object = py::reinterpret_steal<py::object>(made);
  m.attr(name) = object;
  return py::handle(object).inc_ref();
}

void raise(py::handle type, const std::exception& error) {
  PyErr_SetString(type.ptr(), error.what());
}

void raise_stream_failure(const card::StreamFailure& error) {
  try {
    const py::object value = classes.stream_failure(py::str(error.what()));
    value.attr("code") = static_cast<int>(error.code);
    value.attr("origin") = error.origin;
    value.attr("device") = error.device;
    value.attr("stream") = error.stream;
    PyErr_SetObject(classes.stream_failure.ptr(), value.ptr());
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const card::StreamFailure& error) {
    raise_stream_failure(error);
  } catch (const card::Deadlock& error) {
    raise(classes.deadlock, error);
  } catch (const card::Hazard& error) {
    raise(classes.hazard, error);
  } catch (const card::Interrupted&) {
    if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  } catch (const card::BadToken& error) {
    raise(classes.bad_token, error);
  } catch (const card::OutOfMemory& error) {
    raise(classes.out_of_memory, error);
  } catch (const card::ForkedChild& error) {
    raise(classes.forked_child, error);
  } catch (const card::NoBacking& error) {
    raise(classes.no_backing, error);
  } catch (const card::ConfigError& error) {
    raise(PyExc_ValueError, error);
  }
}

// The same classes for errors that pass through torch's own bindings (csrc/torch/errors.h): they
// hand on pybind11's error_already_set unchanged.
void translate_for_torch(const std::exception_ptr& pointer) {
  py::gil_scoped_acquire gil;
  try {
    translate(pointer);
  } catch (...) {
    return;  // not one of ours
  }
  if (PyErr_Occurred()) throw py::error_already_set();
}

}  // namespace

void bind_exceptions(py::module_& m) {
  const py::module_ torch = py::module_::import("torch");
  const py::handle runtime_error(PyExc_RuntimeError);
  classes.out_of_memory = py::object(torch.attr("OutOfMemoryError")).inc_ref();
  classes.stream_failure = make_class(
      m, "StreamFailure",
      "An error that sticks to a stream: everything queued behind it is cancelled, and later work\n"
      "on the stream fails at once until torch.spyre.reset_stream(stream).\n\n"
      "Attributes: code (SpyreStreamError), origin (the operation), device, stream (its id).",
      torch.attr("AcceleratorError"));
  classes.deadlock = make_class(
      m, "Deadlock", "A wait that can never end; the text names the streams.", runtime_error);
  classes.hazard = make_class(
      m, "Hazard",
      "Work of two streams touches the same bytes of the card, one of them writes, and nothing\n"
      "orders the two (OPENSPYRE_HAZARDS=check). Nothing was submitted.",
      runtime_error);
  classes.bad_token = make_class(
      m, "BadToken", "A device address that is foreign, freed, or freed twice.", runtime_error);
  classes.forked_child = make_class(m, "ForkedChild",
                                    "The device was used in a child made by fork. Start workers "
                                    "with the 'spawn' or 'forkserver'\n"
                                    "method of torch.multiprocessing.",
                                    runtime_error);
  classes.no_backing =
      make_class(m, "NoBacking", "Data was read while execute=off, where the card keeps no bytes.",
                 runtime_error);
  py::register_local_exception_translator(&translate);
  set_error_translator(&translate_for_torch);
}

}  // namespace openspyre::device
