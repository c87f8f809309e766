// The role checker of a plan's steps.

#include "card/step_order.h"

#include <algorithm>

namespace openspyre::card {

namespace {
std::string at(size_t index, Engine kind) {
  return "step " + std::to_string(index) + " (" + engine_name(kind) + ")";
}
}  // namespace

std::string check_step_ordering(const std::vector<Engine>& kinds,
                                const std::vector<StreamRole>& roles) {
  if (kinds.size() != roles.size())
    return "there are " + std::to_string(kinds.size()) + " step kinds but " +
           std::to_string(roles.size()) + " stream roles";
  if (std::find(kinds.begin(), kinds.end(), Engine::Host) == kinds.end()) return "";

  size_t on_prep = 0, on_dev = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const Engine kind = kinds[i];
    if (roles[i] == StreamRole::Prep) {
      if (kind != Engine::Host && kind != Engine::H2D)
        return at(i, kind) + " is on the preparation stream, which holds only HostCompute and H2D";
      if (on_prep == 0 && kind != Engine::Host)
        return at(i, kind) + " begins the preparation stream, which must begin with HostCompute";
      if (on_prep == 1 && kind != Engine::H2D)
        return at(i, kind) +
               " is second on the preparation stream, where the H2D of the first "
               "HostCompute must stand";
      ++on_prep;
    } else {
      if (kind != Engine::Compute && kind != Engine::D2H)
        return at(i, kind) + " is on the device stream, which holds only Compute and D2H";
      if (on_dev == 0 && kind != Engine::Compute)
        return at(i, kind) + " begins the device stream, which must begin with Compute";
      ++on_dev;
    }
  }
  // A HostCompute exists and can only be on the preparation stream here.
  if (on_prep < 2) return "the preparation stream has a HostCompute but no H2D of its result";
  if (on_dev == 0) return "the device stream has no Compute";
  return "";
}

}  // namespace openspyre::card
