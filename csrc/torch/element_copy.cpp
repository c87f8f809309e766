// Copies of elements between two blocks of one card, each side addressed in its own affine way: the
// compiler's CopyStep (openspyre/compiler/launch.py), for what no LOAD or STORE expresses.
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <vector>

#include "torch/allocation.h"
#include "torch/bind.h"
#include "torch/current.h"
#include "torch/engine.h"
#include "torch/errors.h"
#include "torch/footprint.h"
#include "torch/op_scope.h"

namespace openspyre::device {
namespace {

// byte = base + sum(step[label] * index[label]) + (s / per_stick) * pitch + s % per_stick * width,
// with s = stick_base + sum(stick_step[label] * index[label]); pitch 0: nothing is on the stick.
struct Side {
  int64_t base = 0;
  std::vector<int64_t> step;
  int64_t stick_base = 0, pitch = 0;
  std::vector<int64_t> stick_step;

  int64_t address(int64_t bytes, int64_t stick, int64_t per_stick, int64_t width) const {
    return bytes + stick / per_stick * pitch + stick % per_stick * width;
  }
};

struct ElementCopy {
  std::vector<int64_t> sizes;
  Side from, to;
  int64_t width = 1, per_stick = 128;

  void run(const std::byte* source, std::byte* target) const {
    run(0, source, target, from.base, from.stick_base, to.base, to.stick_base);
  }

 private:
  void run(size_t level, const std::byte* source, std::byte* target, int64_t a, int64_t a_stick,
           int64_t b, int64_t b_stick) const {
    if (level == sizes.size()) {
      std::memcpy(target + to.address(b, b_stick, per_stick, width),
                  source + from.address(a, a_stick, per_stick, width), static_cast<size_t>(width));
      return;
    }
    for (int64_t i = 0; i < sizes[level]; ++i) {
      run(level + 1, source, target, a, a_stick, b, b_stick);
      a += from.step[level];
      a_stick += from.stick_step[level];
      b += to.step[level];
      b_stick += to.stick_step[level];
    }
  }
};

Side read_side(const py::handle& row, size_t labels) {
  const auto [base, step, stick_base, pitch, stick_step] =
      py::cast<std::tuple<int64_t, std::vector<int64_t>, int64_t, int64_t, std::vector<int64_t>>>(
          row);
  if (step.size() != labels || stick_step.size() != labels)
    throw py::value_error("copy_elements: a side needs a step for every label");
  return {base, step, stick_base, pitch, stick_step};
}

void check_inside(const ElementCopy& copy, const Side& side, const card::Block& block) {
  int64_t low = side.base, high = side.base, first = side.stick_base, last = side.stick_base;
  for (size_t l = 0; l < copy.sizes.size(); ++l) {
    const int64_t reach = copy.sizes[l] - 1;
    (side.step[l] < 0 ? low : high) += side.step[l] * reach;
    (side.stick_step[l] < 0 ? first : last) += side.stick_step[l] * reach;
  }
  high += last / copy.per_stick * side.pitch + machine::kStickBytes;
  if (first < 0 || low < 0 || side.pitch < 0 || high > static_cast<int64_t>(block.requested))
    throw py::value_error("copy_elements: an access from byte " + std::to_string(low) + " to " +
                          std::to_string(high) + " of a block of " +
                          std::to_string(block.requested));
}

void copy_elements(const at::Tensor& source, const at::Tensor& target,
                   const std::vector<int64_t>& sizes, const py::handle& from, const py::handle& to,
                   int64_t width) {
  if (!source.is_privateuseone() || source.device() != target.device())
    throw py::value_error("copy_elements: both tensors lie on one card");
  if (width < 1 || machine::kStickBytes % width != 0)
    throw py::value_error("copy_elements: no elements of " + std::to_string(width) + " bytes");
  ElementCopy copy{sizes, read_side(from, sizes.size()), read_side(to, sizes.size()), width,
                   machine::kStickBytes / width};
  int64_t count = 1;
  for (const int64_t size : sizes) {
    if (size < 1) return;
    count *= size;
  }
  const AllocationRef a(source), b(target);
  if (!a || !b) throw py::value_error("copy_elements: a storage of zero bytes");
  check_inside(copy, copy.from, *a->block);
  check_inside(copy, copy.to, *b->block);
  const card::StreamId stream = current_stream(a->device->index);
  record_use(*a, stream);
  record_use(*b, stream);
  if (!target.is_inference()) target.unsafeGetTensorImpl()->bump_version();
  std::function<void()> work;
  if (b->block->host != nullptr)
    work = [copy = std::move(copy), from = a->block->host, to = b->block->host] {
      copy.run(from, to);
    };
  const OpScope scope("copy_elements");
  guarded([&] {
    submit_to_card(*a->device, card::Engine::Compute, "card to card", count * width,
                   std::move(work), both(touches_all(*a, false), touches_all(*b, true)));
  });
}

}  // namespace

void bind_element_copy(py::module_& m) {
  m.def(
      "copy_elements",
      [](const py::handle& source, const py::handle& target, const std::vector<int64_t>& sizes,
         const py::handle& from, const py::handle& to, int64_t width) {
        if (!THPVariable_Check(source.ptr()) || !THPVariable_Check(target.ptr()))
          throw py::type_error("copy_elements: takes tensors");
        copy_elements(THPVariable_Unpack(source.ptr()), THPVariable_Unpack(target.ptr()), sizes,
                      from, to, width);
      },
      py::arg("source"), py::arg("target"), py::arg("sizes"), py::arg("source_side"),
      py::arg("target_side"), py::arg("width"));
}

}  // namespace openspyre::device
