// Philox4x32-10, the counter-based random number generator of the card.
//
// Torch-free. Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011);
// the known answers in csrc/tests/test_philox.cpp are those of its Random123 distribution. A block
// of four words depends on (seed, counter) alone, so any split of the work gives the same numbers.
#pragma once

#include <array>
#include <cstdint>

namespace openspyre::machine {

using PhiloxBlock = std::array<uint32_t, 4>;

inline constexpr int kPhiloxWords = 4;  // 32-bit words of one block

// Ten rounds on a 128-bit counter with a 64-bit key.
inline PhiloxBlock philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// Block `counter` of the sequence of `seed`.
inline PhiloxBlock philox_block(uint64_t seed, uint64_t counter) {
  return philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

// Uniform in the open interval (0, 1), from 32 and from 64 random bits (52 of them used: one more
// and the largest would round to 1).
inline double open_unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }
inline double open_unit(uint64_t word) { return (static_cast<double>(word >> 12) + 0.5) * 0x1p-52; }
// Uniform in [0, 1) with the 24 bits of a float, and with 53 bits.
inline float half_open_unit(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }
inline double half_open_unit(uint64_t word) { return static_cast<double>(word >> 11) * 0x1p-53; }

}  // namespace openspyre::machine
