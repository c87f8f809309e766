// Which step sequences a prepared plan may have (runtime.md 2.2). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "card/stream.h"

namespace openspyre::card {

// Prep: the host-compute stream (id 65). Dev: the launching stream.
enum class StreamRole : uint8_t { Prep, Dev };

// Returns "" when the steps may be launched in this order, else one sentence that says what is
// wrong. A plan without HostCompute is always valid. `kinds[i]` runs on the stream `roles[i]`.
std::string check_step_ordering(const std::vector<Engine>& kinds,
                                const std::vector<StreamRole>& roles);

}  // namespace openspyre::card
