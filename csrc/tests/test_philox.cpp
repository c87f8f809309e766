// Philox4x32-10 against the known answers of the Random123 distribution (file kat_vectors).

#include "check.h"
#include "machine/philox.h"

using namespace openspyre::machine;

namespace {

void expect(const PhiloxBlock& got, const PhiloxBlock& want) {
  for (int i = 0; i < kPhiloxWords; ++i) CHECK_EQ(got[i], want[i]);
}

}  // namespace

TEST(philox_zero_counter_and_key) {
  expect(philox4x32({0, 0, 0, 0}, {0, 0}), {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
}

TEST(philox_all_ones) {
  const uint32_t f = 0xffffffff;
  expect(philox4x32({f, f, f, f}, {f, f}), {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST(philox_digits_of_pi) {
  expect(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(philox_block_splits_seed_and_counter_into_words) {
  const uint64_t seed = 0x299f31d0a4093822ull, counter = 0x85a308d3243f6a88ull;
  expect(philox_block(seed, counter),
         philox4x32({0x243f6a88, 0x85a308d3, 0, 0}, {0xa4093822, 0x299f31d0}));
}

TEST(philox_units_stay_inside_their_intervals) {
  const uint32_t low = 0, high = 0xffffffff;
  CHECK(open_unit(low) > 0.0 && open_unit(high) < 1.0);
  CHECK(open_unit(uint64_t{0}) > 0.0 && open_unit(~uint64_t{0}) < 1.0);
  CHECK(half_open_unit(low) == 0.0f && half_open_unit(high) < 1.0f);
  CHECK(half_open_unit(uint64_t{0}) == 0.0 && half_open_unit(~uint64_t{0}) < 1.0);
}
