// Seeded fault injection: which submitted steps fail. Internal to csrc/card.
//
// Pure in (plan, number of matching steps so far): the same submissions fail in the same places.
#pragma once

#include <cstdint>
#include <optional>

#include "card/stream.h"

namespace openspyre::card {

class FaultInjector {
 public:
  void set(std::optional<FaultPlan> plan);  // throws std::invalid_argument on a bad plan
  bool active() const { return plan_.has_value(); }
  // The code with which this step shall fail; Success for most. Counts the step when it matches.
  StreamError decide(const Step& step);

 private:
  std::optional<FaultPlan> plan_;
  int64_t matched_ = 0;
};

}  // namespace openspyre::card
