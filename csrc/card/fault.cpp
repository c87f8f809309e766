// Seeded fault injection.

#include "card/fault.h"

#include <stdexcept>
#include <string>

namespace openspyre::card {

namespace {
// splitmix64 (Steele, Lea, Flood 2014): one well-mixed word per counter value, no state to carry.
uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
}  // namespace

void FaultInjector::set(std::optional<FaultPlan> plan) {
  if (plan) {
    if (!(plan->rate >= 0 && plan->rate <= 1))
      throw std::invalid_argument("fault rate " + std::to_string(plan->rate) +
                                  " is no probability; give 0 to 1");
    if (plan->code == StreamError::Success)
      throw std::invalid_argument("a fault with the code Success is none; give another code");
  }
  plan_ = std::move(plan);
  matched_ = 0;
}

StreamError FaultInjector::decide(const Step& step) {
  if (!plan_) return StreamError::Success;
  if (plan_->engine && *plan_->engine != step.engine) return StreamError::Success;
  if (!plan_->name_contains.empty() && step.name.find(plan_->name_contains) == std::string::npos)
    return StreamError::Success;
  const int64_t ordinal = matched_++;
  bool fails;
  if (plan_->nth >= 0) {
    fails = ordinal == plan_->nth;
  } else {
    const double uniform =
        static_cast<double>(mix(mix(plan_->seed) ^ static_cast<uint64_t>(ordinal)) >> 11) *
        0x1.0p-53;
    fails = uniform < plan_->rate;
  }
  return fails ? plan_->code : StreamError::Success;
}

}  // namespace openspyre::card
