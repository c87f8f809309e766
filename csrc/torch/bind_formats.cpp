// Number formats: bulk conversions on bytes, the choice of instruction set, name tables.
#include <string>
#include <vector>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

using machine::Format;
using machine::HostType;
using machine::Numerics;

Numerics make_numerics(const std::string& mode, const std::string& tie, bool merged_is_nan) {
  return {parse_mode(mode), parse_tie(tie), merged_is_nan};
}

struct Items {
  const void* data;
  size_t count;
};

// `data` as whole items of `width` bytes.
Items items_of(const py::buffer_info& info, int width, const char* what) {
  const auto bytes = static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize);
  if (bytes % static_cast<size_t>(width) != 0) {
    throw py::value_error(std::string(what) + ": " + std::to_string(bytes) +
                          " bytes are no whole number of items of " + std::to_string(width) +
                          " bytes");
  }
  return {info.ptr, bytes / static_cast<size_t>(width)};
}

void require_contiguous(const py::buffer_info& info) {
  py::ssize_t expected = info.itemsize;
  for (py::ssize_t i = info.ndim; i-- > 0;) {
    if (info.shape[static_cast<size_t>(i)] > 1 &&
        info.strides[static_cast<size_t>(i)] != expected) {
      throw py::value_error("format conversion: the buffer is not contiguous; pass bytes(buffer)");
    }
    expected *= info.shape[static_cast<size_t>(i)];
  }
}

py::bytes encode(const std::string& host_type, const std::string& format, const py::buffer& data,
                 const std::string& mode, const std::string& tie, bool merged_is_nan) {
  const HostType from = parse_host_type(host_type);
  const Format to = parse_format(format);
  const Numerics numerics = make_numerics(mode, tie, merged_is_nan);
  const py::buffer_info info = data.request();
  require_contiguous(info);
  const Items items = items_of(info, machine::host_bytes(from), "format_encode");
  std::string out(items.count * static_cast<size_t>(machine::format_bytes(to)), '\0');
  {
    WithoutGil released;
    machine::encode(from, to, items.data, out.data(), items.count, numerics);
  }
  return py::bytes(out);
}

py::bytes decode(const std::string& format, const std::string& host_type, const py::buffer& data,
                 const std::string& mode, const std::string& tie, bool merged_is_nan) {
  const Format from = parse_format(format);
  const HostType to = parse_host_type(host_type);
  const Numerics numerics = make_numerics(mode, tie, merged_is_nan);
  const py::buffer_info info = data.request();
  require_contiguous(info);
  const Items items = items_of(info, machine::format_bytes(from), "format_decode");
  std::string out(items.count * static_cast<size_t>(machine::host_bytes(to)), '\0');
  {
    WithoutGil released;
    machine::decode(from, to, items.data, out.data(), items.count, numerics);
  }
  return py::bytes(out);
}

}  // namespace

void bind_formats(py::module_& m) {
  m.def("format_encode", &encode, py::arg("host_type"), py::arg("format"), py::arg("data"),
        py::arg("mode") = "dl16", py::arg("tie") = "toward_positive",
        py::arg("merged_is_nan") = false,
        "Host items to card codes, both little-endian and contiguous.");
  m.def("format_decode", &decode, py::arg("format"), py::arg("host_type"), py::arg("data"),
        py::arg("mode") = "dl16", py::arg("tie") = "toward_positive",
        py::arg("merged_is_nan") = false,
        "Card codes to host items, both little-endian and contiguous.");
  m.def("format_names", [] {
    std::vector<std::string> names;
    for (int i = 0; i < machine::kFormatCount; ++i) {
      names.emplace_back(machine::format_name(static_cast<Format>(i)));
    }
    return names;
  });
  m.def("format_bytes",
        [](const std::string& format) { return machine::format_bytes(parse_format(format)); });
  m.def("host_bytes",
        [](const std::string& type) { return machine::host_bytes(parse_host_type(type)); });
  m.def("format_for", [](const std::string& type, const std::string& mode) {
    return std::string(
        machine::format_name(machine::format_for(parse_host_type(type), parse_mode(mode))));
  });
  m.def("can_convert", [](const std::string& type, const std::string& format) {
    return machine::can_convert(parse_host_type(type), parse_format(format));
  });
  m.def("isa", [] { return std::string(machine::isa_name(machine::current_isa())); });
  m.def("best_isa", [] { return std::string(machine::isa_name(machine::best_isa())); });
  m.def("set_isa", [](const std::string& isa) { machine::set_isa(parse_isa(isa)); });
}

}  // namespace openspyre::device
