// The process's runtime: which devices exist, and their memory and streams once started.
//
// Torch-free. Configuration is decided in Python (openspyre/env.py, card.py) and handed over by
// configure(); nothing starts before the first ensure_started(). Leaked on purpose; shutdown()
// drains and stops the threads at interpreter exit. In a forked child everything but
// device_count() throws ForkedChild.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "card/memory.h"
#include "card/stats_page.h"
#include "card/stream.h"
#include "machine/formats.h"

namespace openspyre::card {

struct DeviceConfig {
  int card = 0;  // physical card
  int vf = -1;   // -1: the Physical Function
  uint64_t card_capacity = 112ull << 30;
  MemoryConfig memory;
  StreamConfig streams;
};
// Defaults and limits of plans, from the configuration of the process.
struct PlanSettings {
  bool overlap = true;        // prepare on stream 65
  int slots = 2;              // correction slots of a plan
  uint64_t image_budget = 0;  // bytes of images on a device; 0: as many as fit
};

struct RuntimeConfig {
  std::vector<DeviceConfig> devices;
  machine::Numerics numerics;
  bool execute = true;  // false: addresses and times, no bytes
  bool poison_pads = false;
  int threads = 0;  // 0: leave the pool's budget
  PlanSettings plans;
  std::string stats_directory;  // "" = no page
  std::string error;            // a configuration error to raise at first use (kind ValueError)
  // Put into the MemoryHooks of every device at the start; both are called with no lock held.
  std::function<bool()> pressure;                 // garbage collection; takes the GIL
  std::function<std::shared_ptr<void>()> frames;  // a stack for the memory history, or null
};

class ConfigError : public std::runtime_error {  // becomes ValueError
 public:
  using std::runtime_error::runtime_error;
};
class ForkedChild : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
class NoBacking : public std::runtime_error {  // a read of data under execute=off
 public:
  using std::runtime_error::runtime_error;
};

struct Device {
  int index;
  DeviceConfig config;
  std::unique_ptr<DeviceMemory> memory;
  std::unique_ptr<DeviceStreams> streams;
};

class Runtime {
 public:
  static Runtime& get();

  void configure(RuntimeConfig config);  // throws std::logic_error once started
  const RuntimeConfig& config() const;
  int device_count() const noexcept;  // configured devices; 0 on a configuration error
  bool started() const noexcept { return started_.load(std::memory_order_acquire); }
  void ensure_started() {
    if (!started()) start();
  }
  // Starts if needed; throws std::out_of_range naming index and count.
  Device& device(int index);

  // Numerics may change before the start or while no device holds a tensor; else logic_error.
  machine::Numerics numerics() const noexcept;
  void set_numerics(const machine::Numerics& numerics);
  bool execute() const noexcept;

  DeviceState state(int index);  // NotInitialized before the start; never starts anything
  // Brings the memory words and the heartbeat of the statistics page up to date. Submissions and
  // waits call it, at most every 100 ms.
  void refresh_stats() noexcept;

  bool in_forked_child() const noexcept;
  void shutdown() noexcept;                // idempotent
  StatsPage* stats_page() const noexcept;  // null before the start

 private:
  Runtime();
  void start();
  std::atomic<bool> started_{false};
  struct Impl;
  Impl* impl_;
};

}  // namespace openspyre::card
