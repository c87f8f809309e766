// The role checker of a plan's steps (RT44).

#include "card/step_order.h"
#include "check.h"

using namespace openspyre::card;

namespace {
constexpr Engine kHost = Engine::Host, kH2D = Engine::H2D, kD2H = Engine::D2H,
                 kCompute = Engine::Compute;
constexpr StreamRole kPrep = StreamRole::Prep, kDev = StreamRole::Dev;
}  // namespace

TEST(rt44_valid_orders_are_accepted) {
  CHECK_EQ(check_step_ordering({kHost, kH2D, kCompute}, {kPrep, kPrep, kDev}), std::string());
  CHECK_EQ(check_step_ordering({kHost, kH2D, kCompute, kD2H}, {kPrep, kPrep, kDev, kDev}),
           std::string());
  CHECK_EQ(
      check_step_ordering({kHost, kH2D, kHost, kH2D, kCompute}, {kPrep, kPrep, kPrep, kPrep, kDev}),
      std::string());
  // Without HostCompute there is nothing to check.
  CHECK_EQ(check_step_ordering({kD2H, kH2D}, {kDev, kPrep}), std::string());
  CHECK_EQ(check_step_ordering({}, {}), std::string());
}

TEST(rt44_invalid_orders_are_refused_with_a_sentence) {
  const auto refused = [](const std::vector<Engine>& kinds, const std::vector<StreamRole>& roles,
                          const char* part) {
    return check_step_ordering(kinds, roles).find(part) != std::string::npos;
  };
  CHECK(refused({kHost, kH2D, kCompute}, {kPrep, kPrep, kPrep}, "step 2 (Compute) is on the prep"));
  CHECK(refused({kHost, kH2D, kD2H}, {kPrep, kPrep, kDev}, "step 2 (D2H) begins the device"));
  CHECK(refused({kHost, kH2D}, {kPrep}, "2 step kinds but 1 stream roles"));
  CHECK(refused({kH2D, kHost, kCompute}, {kPrep, kPrep, kDev}, "step 0 (H2D) begins the prep"));
  CHECK(refused({kHost, kHost, kH2D, kCompute}, {kPrep, kPrep, kPrep, kDev}, "is second"));
  CHECK(refused({kHost, kH2D, kCompute}, {kDev, kPrep, kDev}, "on the device stream"));
  CHECK(refused({kHost, kH2D, kCompute, kH2D}, {kPrep, kPrep, kDev, kDev}, "on the device stream"));
  CHECK(refused({kHost, kCompute}, {kPrep, kDev}, "no H2D"));
  CHECK(refused({kHost, kH2D}, {kPrep, kPrep}, "no Compute"));
}
