// The shared-memory statistics page: one small file per process, read by the live view.
//
// Torch-free. `openspyre/observe/stats_page.py` reads the same fixed structure without torch.
#pragma once

#include <cstdint>
#include <string>

namespace openspyre::card {

inline constexpr uint32_t kStatsMagic = 0x59505353;  // "SSPY"
inline constexpr uint32_t kStatsVersion = 1;
inline constexpr int kStatsMaxDevices = 16;
inline constexpr int kStatsEngines = 4;  // order of card::Engine

// Plain 64-bit words, written with relaxed atomics; a reader may see a torn set but no torn word.
struct StatsDevice {
  uint64_t capacity, reserved, allocated, allocations, frees, ooms, streams, handles_used;
  uint64_t engine_steps[kStatsEngines], engine_bytes[kStatsEngines], engine_busy_ns[kStatsEngines];
  uint64_t virtual_now_ns, fallback_calls, fallback_bytes, errors;
};
struct StatsPage {
  uint32_t magic, version;
  uint64_t pid, start_unix_ns, device_count, heartbeat_unix_ns;
  StatsDevice devices[kStatsMaxDevices];
};

// Creates <directory>/openspyre-<pid>.stats (mode 0600) and maps it. On failure returns a private
// page and says so in `error` (statistics must never stop a program).
StatsPage* open_stats_page(const std::string& directory, std::string* error);
void close_stats_page();  // unmaps and unlinks; also right in a fork child (unmaps only)
void stat_set(uint64_t& word, uint64_t value);
void stat_add(uint64_t& word, uint64_t value);

}  // namespace openspyre::card
