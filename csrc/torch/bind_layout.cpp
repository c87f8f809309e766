// Layouts for tests and tools: the C++ twin of openspyre/layout.py, described as plain integers.
#include <string>
#include <vector>

#include "machine/layout.h"
#include "torch/bind.h"

namespace openspyre::device {
namespace {

using machine::Layout;
using Integers = std::vector<int64_t>;

// `numbers` is the dim order, the host strides or the device sizes, as `kind` says.
Layout make_layout(const std::string& kind, const Integers& host_size, const std::string& format,
                   const Integers& numbers, const Integers& stride_map) {
  const machine::Format parsed = parse_format(format);
  if (kind == "default") return Layout::make(host_size, parsed);
  if (kind == "order") return Layout::make(host_size, parsed, numbers);
  if (kind == "strided") return Layout::for_strided(host_size, numbers, parsed);
  if (kind == "explicit") return Layout::explicit_map(host_size, numbers, stride_map, parsed);
  if (kind == "linear") {
    if (host_size.size() != 1)
      throw py::value_error("layout kind 'linear': host_size must be one number of elements");
    return Layout::linear(host_size[0], parsed);
  }
  throw py::value_error("layout kind '" + kind +
                        "': choose default, order, strided, explicit or linear");
}

py::dict describe(const std::string& kind, const Integers& host_size, const std::string& format,
                  const Integers& numbers, const Integers& stride_map) {
  const Layout layout = make_layout(kind, host_size, format, numbers, stride_map);
  py::dict result;
  result["host_size"] = layout.host_size();
  result["device_size"] = layout.device_size();
  result["stride_map"] = layout.stride_map();
  result["format"] = machine::format_name(layout.format());
  result["nbytes"] = layout.nbytes();
  result["numel"] = layout.numel();
  result["is_default"] = layout.is_default();
  result["is_identity"] = layout.is_identity();
  result["has_copies"] = layout.has_copies();
  return result;
}

Integers element_offsets(const std::string& kind, const Integers& host_size,
                         const std::string& format, const Integers& numbers,
                         const Integers& stride_map, const Integers& linear) {
  const Layout layout = make_layout(kind, host_size, format, numbers, stride_map);
  Integers offsets;
  offsets.reserve(linear.size());
  for (int64_t element : linear) offsets.push_back(layout.element_offset(element));
  return offsets;
}

}  // namespace

void bind_layout(py::module_& m) {
  m.def("layout_describe", &describe, py::arg("kind"), py::arg("host_size"), py::arg("format"),
        py::arg("numbers") = Integers{}, py::arg("stride_map") = Integers{},
        "A layout's fields. `numbers` is the dim order, host strides or device sizes by `kind`: "
        "default, order, strided, explicit or linear.");
  m.def("layout_element_offsets", &element_offsets, py::arg("kind"), py::arg("host_size"),
        py::arg("format"), py::arg("numbers"), py::arg("stride_map"), py::arg("linear"),
        "Byte offset on the card of each linear element in `linear`. IndexError outside numel.");
  m.def(
      "layout_default_nbytes",
      [](const Integers& host_size, const std::string& format) {
        return Layout::default_nbytes(host_size, parse_format(format));
      },
      py::arg("host_size"), py::arg("format"), "Bytes of the default layout on the card.");
}

}  // namespace openspyre::device
