// What the pybind11 files of the extension share: enum names, waits that answer Ctrl-C.
//
// No tensor crosses pybind but in launches: others go through torch.ops.openspyre.*. Each
// bind_<subject>.cpp puts its subject into `openspyre._C`; openspyre/_C.pyi describes all of it.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <string_view>
#include <utility>

#include "card/runtime.h"
#include "card/stream.h"
#include "machine/formats.h"
#include "torch/interrupt.h"

namespace openspyre::device {

namespace py = pybind11;

void bind_exceptions(py::module_& m);
void bind_config(py::module_& m);
void bind_formats(py::module_& m);
void bind_runtime(py::module_& m);
void bind_streams(py::module_& m);
void bind_recorder(py::module_& m);
void bind_memory(py::module_& m);
void bind_snapshot(py::module_& m);
void bind_host_memory(py::module_& m);
void bind_random(py::module_& m);
void bind_layout(py::module_& m);
void bind_fallback(py::module_& m);
void bind_program(py::module_& m);
void bind_plan(py::module_& m);
void bind_facts(py::module_& m);
void bind_native(py::module_& m);
void bind_element_copy(py::module_& m);

// Names of enumerators. Parsing ignores case, '_', '-' and ' '; an unknown name throws
// py::value_error naming the field, the value and the choices.
machine::Mode parse_mode(const std::string& text);
machine::TieRule parse_tie(const std::string& text);
machine::Format parse_format(const std::string& text);
machine::HostType parse_host_type(const std::string& text);  // "F16" or torch's "float16"
machine::Isa parse_isa(const std::string& text);
card::FunctionKind parse_kind(const std::string& text);
card::MemoryType parse_memory_type(const std::string& text);
card::Engine parse_engine(const std::string& text);
card::HazardMode parse_hazards(const std::string& text);
const char* mode_name(machine::Mode mode);
const char* tie_name(machine::TieRule tie);
const char* kind_name(card::FunctionKind kind);
const char* memory_type_name(card::MemoryType type);
const char* hazards_name(card::HazardMode mode);
const char* status_name(card::TimelineEntry::Status status);

// The hooks of csrc/torch/python_hooks.cpp, given to the runtime by configure().
bool collect_garbage();
std::shared_ptr<void> capture_python_frames();

}  // namespace openspyre::device
