// How a tensor lies on the card, in a form that is cheap to compare: layouts get small numbers.
#include <torch/csrc/autograd/python_variable.h>

#include <map>
#include <mutex>

#include "torch/allocation.h"
#include "torch/bind.h"
#include "torch/errors.h"
#include "torch/layout_numbers.h"

namespace openspyre::device {

namespace {

using machine::Layout;

// Layouts by number; equal layouts have one. They are few (one for each shape of a process) and
// stay.
struct Interned {
  std::mutex mutex;
  std::map<std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>, int>,
           int64_t>
      numbers;
  std::vector<std::shared_ptr<const Layout>> layouts;
  // The last few by identity, so that the usual case compares a pointer. Held: a pointer here is
  // never another layout's.
  std::array<std::pair<std::shared_ptr<const Layout>, int64_t>, 64> recent{};
};

Interned& interned() {
  static auto* table = new Interned;  // leaked: lives as long as Python does
  return *table;
}

}  // namespace

int64_t layout_number(const std::shared_ptr<const Layout>& layout) {
  Interned& table = interned();
  const std::lock_guard<std::mutex> lock(table.mutex);
  auto& slot = table.recent[(reinterpret_cast<uintptr_t>(layout.get()) >> 5) % 64];
  if (slot.first == layout) return slot.second;
  auto key = std::make_tuple(layout->host_size(), layout->device_size(), layout->stride_map(),
                             static_cast<int>(layout->format()));
  const auto [found, fresh] =
      table.numbers.emplace(std::move(key), static_cast<int64_t>(table.layouts.size()));
  if (fresh) table.layouts.push_back(layout);
  slot = {layout, found->second};
  return found->second;
}

std::shared_ptr<const Layout> layout_of_number(int64_t number) {
  Interned& table = interned();
  const std::lock_guard<std::mutex> lock(table.mutex);
  if (number < 0 || number >= static_cast<int64_t>(table.layouts.size())) return nullptr;
  return table.layouts[static_cast<size_t>(number)];
}

namespace {

// The number of the layout of the storage behind `tensor`; -1 for one of zero bytes.
int64_t storage_facts(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) throw py::type_error("storage_facts: takes a tensor");
  const at::Tensor& self = THPVariable_Unpack(tensor.ptr());
  if (!self.is_privateuseone())
    throw py::value_error("storage_facts: expected a spyre tensor, got one on " +
                          self.device().str());
  const AllocationRef held(self);
  if (!held) return -1;
  if (!held->typed) guarded([&] { pin(*held, self); });
  return layout_number(layout_of(*held));
}

py::tuple layout_by_number(int64_t number) {
  const std::shared_ptr<const Layout> layout = layout_of_number(number);
  if (!layout) throw py::index_error("no layout has the number " + std::to_string(number));
  return py::make_tuple(layout->host_size(), layout->device_size(), layout->stride_map(),
                        machine::format_name(layout->format()));
}

}  // namespace

void bind_facts(py::module_& m) {
  m.def("storage_facts", &storage_facts, py::arg("tensor"),
        "Number of the layout of the tensor's storage: equal layouts have equal numbers.");
  m.def("layout_by_number", &layout_by_number, py::arg("number"),
        "(host_size, device_size, stride_map, format) of a number of storage_facts.");
}

}  // namespace openspyre::device
