// The process's runtime: start, sharing of cards, hooks between memory and streams, fork, end.

#include "card/runtime.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "card/plan_image.h"
#include "machine/pool.h"

namespace openspyre::card {

namespace {

uint32_t pack(const machine::Numerics& n) {
  return static_cast<uint32_t>(n.mode) | static_cast<uint32_t>(n.tie) << 8 |
         static_cast<uint32_t>(n.merged_is_nan) << 16;
}
machine::Numerics unpack(uint32_t word) {
  return {static_cast<machine::Mode>(word & 0xFF), static_cast<machine::TieRule>(word >> 8 & 0xFF),
          (word >> 16 & 1) != 0};
}

uint64_t unix_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

[[noreturn]] void throw_forked() {
  throw ForkedChild(
      "the spyre runtime was started before this process was forked and cannot be used in the "
      "child; use the 'spawn' start method of multiprocessing, or fork before the first use");
}

void check(const RuntimeConfig& config) {
  if (!config.error.empty()) throw ConfigError(config.error);
  if (config.devices.empty())
    throw ConfigError("no spyre device is configured; the device count is 0");
  if (config.threads < 0)
    throw ConfigError("the thread budget is " + std::to_string(config.threads) +
                      "; give 1 or more, or 0 for the default");
  std::map<int, uint64_t> capacity;
  std::map<std::pair<int, int>, size_t> functions;
  for (size_t i = 0; i < config.devices.size(); ++i) {
    const DeviceConfig& d = config.devices[i];
    const std::string who = "device " + std::to_string(i);
    if (d.card < 0) throw ConfigError(who + " names card " + std::to_string(d.card));
    const auto [known, fresh] = capacity.emplace(d.card, d.card_capacity);
    if (!fresh && known->second != d.card_capacity)
      throw ConfigError(who + " says that card " + std::to_string(d.card) + " has " +
                        std::to_string(d.card_capacity) + " bytes, an earlier device says " +
                        std::to_string(known->second));
    const auto [twin, new_function] = functions.emplace(std::pair{d.card, d.vf}, i);
    if (!new_function)
      throw ConfigError(who + " and device " + std::to_string(twin->second) +
                        " are the same function of card " + std::to_string(d.card) +
                        "; a function belongs to one device");
  }
}

}  // namespace

struct Runtime::Impl {
  mutable std::mutex mutex;  // configuration, start and shutdown
  RuntimeConfig config;
  std::vector<std::unique_ptr<Device>> devices;  // unchanged once started
  std::atomic<uint32_t> numerics{0};
  std::atomic<int> count{0};
  std::atomic<bool> execute{true};
  std::atomic<bool> forked{false};
  std::atomic<bool> starting{false};  // the start has touched the pool or later
  std::atomic<StatsPage*> page{nullptr};
  std::string page_error;
  bool ended = false;
};

Runtime& Runtime::get() {
  static Runtime* runtime = new Runtime;  // leaked on purpose
  return *runtime;
}

Runtime::Runtime() : impl_(new Impl) {
  static Runtime* runtime = this;  // for the handler, which gets no argument
  // In the child the parent's threads do not exist. Nothing of the parent's runtime is touched
  // again there: its locks may have been held by threads that are gone.
  pthread_atfork(nullptr, nullptr, [] {
    machine::Pool::get().abandon();
    Impl* impl = runtime->impl_;
    if (!impl->starting.load(std::memory_order_relaxed)) return;
    impl->forked.store(true, std::memory_order_relaxed);
    runtime->started_.store(false, std::memory_order_relaxed);  // so ensure_started() says why
    impl->page.store(nullptr, std::memory_order_relaxed);
    close_stats_page();
  });
}

void Runtime::configure(RuntimeConfig config) {
  if (in_forked_child()) throw_forked();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (impl_->starting.load(std::memory_order_relaxed))
    throw std::logic_error("the spyre runtime has started; configure it before its first use");
  impl_->numerics.store(pack(config.numerics), std::memory_order_release);
  impl_->execute.store(config.execute, std::memory_order_release);
  impl_->count.store(config.error.empty() ? static_cast<int>(config.devices.size()) : 0,
                     std::memory_order_release);
  impl_->config = std::move(config);
}

const RuntimeConfig& Runtime::config() const { return impl_->config; }

int Runtime::device_count() const noexcept { return impl_->count.load(std::memory_order_acquire); }

bool Runtime::execute() const noexcept { return impl_->execute.load(std::memory_order_acquire); }

bool Runtime::in_forked_child() const noexcept {
  return impl_->forked.load(std::memory_order_relaxed);
}

StatsPage* Runtime::stats_page() const noexcept {
  return impl_->page.load(std::memory_order_acquire);
}

void Runtime::start() {
  if (in_forked_child()) throw_forked();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (started_.load(std::memory_order_relaxed)) return;
  const RuntimeConfig& config = impl_->config;
  check(config);

  // Everything that can fail is built first; on an exception the runtime is as before.
  std::map<int, std::shared_ptr<PhysicalMemory>> cards;
  std::map<int, std::shared_ptr<EngineSet>> engines;
  std::vector<std::unique_ptr<Device>> devices;
  for (const DeviceConfig& wanted : config.devices) {
    auto& physical = cards[wanted.card];
    auto& engine_set = engines[wanted.card];
    if (!physical)
      physical = std::make_shared<PhysicalMemory>(wanted.card_capacity, config.execute);
    if (!engine_set) engine_set = make_engine_set();
    const int index = static_cast<int>(devices.size());
    auto device = std::make_unique<Device>();
    device->index = index;
    device->config = wanted;
    device->memory = std::make_unique<DeviceMemory>(index, physical, wanted.memory);
    device->streams = std::make_unique<DeviceStreams>(index, engine_set, wanted.streams);

    DeviceStreams* streams = device->streams.get();
    MemoryHooks hooks;
    hooks.pressure = config.pressure;
    hooks.frames = config.frames;
    hooks.record_marker = [streams](int stream) { return streams->record_marker(stream); };
    hooks.marker_passed = [streams](int stream, uint64_t marker) {
      return streams->marker_passed(stream, marker);
    };
    hooks.synchronize = [streams] {
      // Work on an engine cannot wait for the engines; and the allocator only wants the queues
      // to be empty: who submitted a failed step learns of it at his own synchronize.
      if (DeviceStreams::inside_step()) return;
      try {
        streams->synchronize_all();
      } catch (const std::exception&) {
      }
    };
    hooks.evict = [owner = device.get()] { return Images::get().evict(*owner); };
    device->memory->set_hooks(std::move(hooks));
    devices.push_back(std::move(device));
  }
  impl_->starting.store(true, std::memory_order_relaxed);
  if (config.threads > 0) machine::Pool::get().set_threads(config.threads);
  impl_->devices = std::move(devices);

  StatsPage* page = nullptr;
  if (!config.stats_directory.empty())
    page = open_stats_page(config.stats_directory, &impl_->page_error);
  if (page) {
    stat_set(page->device_count, static_cast<uint64_t>(impl_->devices.size()));
    const size_t shown = std::min<size_t>(impl_->devices.size(), kStatsMaxDevices);
    for (size_t i = 0; i < shown; ++i)
      impl_->devices[i]->streams->attach_stats(&page->devices[i], [this] { refresh_stats(); });
    impl_->page.store(page, std::memory_order_release);
  }
  started_.store(true, std::memory_order_release);
  refresh_stats();
}

Device& Runtime::device(int index) {
  if (in_forked_child()) throw_forked();
  ensure_started();
  const auto& devices = impl_->devices;
  if (index < 0 || static_cast<size_t>(index) >= devices.size())
    throw std::out_of_range("device index " + std::to_string(index) + " is not valid; there " +
                            (devices.size() == 1
                                 ? "is 1 spyre device"
                                 : "are " + std::to_string(devices.size()) + " spyre devices") +
                            ", counted from 0");
  return *devices[static_cast<size_t>(index)];
}

DeviceState Runtime::state(int index) {
  if (in_forked_child()) throw_forked();
  if (!started()) return DeviceState::NotInitialized;
  return device(index).streams->state();
}

machine::Numerics Runtime::numerics() const noexcept {
  return unpack(impl_->numerics.load(std::memory_order_acquire));
}

void Runtime::set_numerics(const machine::Numerics& numerics) {
  if (in_forked_child()) throw_forked();
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (numerics == this->numerics()) return;
  for (const auto& device : impl_->devices) {
    const int64_t held = device->memory->stats().allocation[kAggregate].current;
    if (held > 0)
      throw std::logic_error("the numerics cannot change while device " +
                             std::to_string(device->index) + " holds " + std::to_string(held) +
                             " tensor block(s), whose bits would be misread; free all tensors, "
                             "or choose the numerics before the first use");
  }
  impl_->numerics.store(pack(numerics), std::memory_order_release);
}

void Runtime::refresh_stats() noexcept {
  StatsPage* page = stats_page();
  if (!page) return;
  try {
    const size_t shown = std::min<size_t>(impl_->devices.size(), kStatsMaxDevices);
    for (size_t i = 0; i < shown; ++i) {
      const DeviceMemory& memory = *impl_->devices[i]->memory;
      StatsDevice& words = page->devices[i];
      const MemoryInfo info = memory.info();
      const MemoryStats stats = memory.stats();
      stat_set(words.capacity, info.total);
      stat_set(words.reserved, info.reserved);
      stat_set(words.handles_used, static_cast<uint64_t>(info.handles_used));
      stat_set(words.allocated, static_cast<uint64_t>(stats.allocated_bytes[kAggregate].current));
      stat_set(words.allocations, static_cast<uint64_t>(stats.allocation[kAggregate].allocated));
      stat_set(words.frees, static_cast<uint64_t>(stats.allocation[kAggregate].freed));
      stat_set(words.ooms, static_cast<uint64_t>(stats.num_ooms));
    }
    stat_set(page->heartbeat_unix_ns, unix_ns());
  } catch (const std::exception&) {
    // Statistics never stop a program.
  }
}

void Runtime::shutdown() noexcept {
  if (!started() || in_forked_child()) return;
  std::lock_guard<std::mutex> lock(impl_->mutex);
  if (std::exchange(impl_->ended, true)) return;
  for (const auto& device : impl_->devices) {
    device->streams->drain();
    device->streams->attach_stats(nullptr);
  }
  impl_->page.store(nullptr, std::memory_order_release);
  close_stats_page();
  try {
    machine::Pool::get().shutdown();
  } catch (const std::exception&) {
    // Called from a worker, which cannot join itself; the process is ending anyway.
  }
}

}  // namespace openspyre::card
