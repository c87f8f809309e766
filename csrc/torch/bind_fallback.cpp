// The fallback policy and its account in openspyre._C. Torch's Python bindings are not needed here.

#include <tuple>

#include "torch/bind.h"
#include "torch/fallback.h"

namespace openspyre::device {

void bind_fallback(py::module_& m) {
  m.def(
      "fallback_set_policy",
      [](const std::string& policy) { set_fallback_policy(parse_fallback_policy(policy)); },
      py::arg("policy"),
      "Sets what happens to operations without a device kernel, for the whole process: 'allow', "
      "'warn' (once per operation) or 'error' (NotImplementedError). ValueError for anything "
      "else.");
  m.def(
      "fallback_policy", [] { return std::string(fallback_policy_name(fallback_policy())); },
      "The policy in force: 'allow', 'warn' or 'error'.");
  m.def(
      "fallback_counts",
      [] {
        using Notes = std::vector<std::string>;
        std::vector<std::tuple<std::string, uint64_t, uint64_t, uint64_t, Notes>> rows;
        for (const FallbackCount& count : fallback_counts()) {
          Notes notes;
          if (count.widened) notes.emplace_back("16-bit operands in float32");
          if (!count.reason.empty()) notes.push_back(count.reason);
          rows.emplace_back(count.op, count.calls, count.bytes_to_host, count.bytes_to_device,
                            std::move(notes));
        }
        return rows;
      },
      "Operations the CPU computed, by first call: (operation, calls, bytes to host, bytes to "
      "device).");
  m.def("fallback_reset", &reset_fallback_counts,
        "Forgets all counts, and which operations have warned.");
}

}  // namespace openspyre::device
