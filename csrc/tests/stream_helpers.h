// What the stream tests share: a device with a plain cost model, short step makers, a gate.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "card/stream.h"
#include "check.h"

namespace stream_test {

using namespace openspyre::card;

// Host submissions are free, so that the tests' arithmetic shows in the virtual times.
inline StreamConfig plain_config() {
  StreamConfig config;
  config.cost.host_submit_ns = 0;
  return config;
}

struct TestDevice : DeviceStreams {
  explicit TestDevice(StreamConfig config = plain_config(), int index = 0,
                      std::shared_ptr<EngineSet> engines = make_engine_set())
      : DeviceStreams(index, std::move(engines), std::move(config)) {}
};

inline Step step(Engine engine, std::string name, int64_t cost_ns,
                 std::function<void()> work = {}) {
  Step s;
  s.engine = engine;
  s.name = std::move(name);
  s.cost_ns = cost_ns;
  s.work = std::move(work);
  return s;
}

inline Step inline_step(Engine engine, std::string name, int64_t cost_ns,
                        std::function<void()> work) {
  Step s = step(engine, std::move(name), cost_ns, std::move(work));
  s.may_run_inline = true;
  return s;
}

// Holds steps back until opened; opens itself at the end of a test so that no failure hangs.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    {
      std::lock_guard<std::mutex> lock(state_->mutex);
      state_->open = true;
    }
    state_->changed.notify_all();
  }
  std::function<void()> waiter() const {
    return [state = state_] {
      std::unique_lock<std::mutex> lock(state->mutex);
      state->entered = true;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return state->open; });
    };
  }
  // Until some step stands at the gate, that is, until it runs.
  void wait_entered() {
    std::unique_lock<std::mutex> lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->entered; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false, entered = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

template <class Error, class Body>
Error expect(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  throw check::Failure("the expected error was not thrown");
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace stream_test
