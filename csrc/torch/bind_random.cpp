// The default generator of a device as a torch.Generator.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/csrc/Generator.h>

#include "torch/bind.h"

namespace openspyre::device {

void bind_random(py::module_& m) {
  m.def(
      "default_generator",
      [](int device) {
        const at::Generator& generator = at::detail::getPrivateUse1Hooks().getDefaultGenerator(
            static_cast<c10::DeviceIndex>(device));
        PyObject* wrapped = THPGenerator_Wrap(generator);
        if (wrapped == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(wrapped);
      },
      py::arg("device"));
}

}  // namespace openspyre::device
