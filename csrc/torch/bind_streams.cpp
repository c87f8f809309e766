// Streams, card events, synthetic steps, faults, the virtual clock and the Timeline.
#include <chrono>
#include <memory>
#include <thread>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

using card::DeviceStreams;
using card::StreamId;

DeviceStreams& streams_of(int device) { return *card::Runtime::get().device(device).streams; }

// Streams of a device whose ids come from outside: an unknown id is an IndexError.
DeviceStreams& streams_with(int device, StreamId stream) {
  DeviceStreams& streams = streams_of(device);
  if (!streams.valid(stream)) {
    throw std::out_of_range("stream " + std::to_string(stream) + " of device " +
                            std::to_string(device) +
                            " does not exist: 0, 1-32 (low), 33-64 (high), 65 and up (host "
                            "compute)");
  }
  return streams;
}

// A step without bits of its own: it costs virtual time, may hold its engine for real seconds, and
// may fail. For tests, demonstrations and benchmarks of ordering.
uint64_t submit_synthetic(int device, StreamId stream, const std::string& engine,
                          const std::string& name, int64_t cost_ns, int64_t bytes,
                          double hold_seconds, const std::string& fail) {
  if (cost_ns < 0 || bytes < 0 || !(hold_seconds >= 0)) {
    throw py::value_error("submit '" + name + "': cost, bytes and hold must not be negative");
  }
  card::Step step;
  step.engine = parse_engine(engine);
  step.name = name;
  step.cost_ns = cost_ns;
  step.bytes = bytes;
  if (hold_seconds > 0 || !fail.empty()) {
    step.work = [hold_seconds, fail] {
      if (hold_seconds > 0) {
        std::this_thread::sleep_for(std::chrono::duration<double>(hold_seconds));
      }
      if (!fail.empty()) throw std::runtime_error(fail);
    };
  }
  DeviceStreams& streams = streams_with(device, stream);
  WithoutGil released;
  return streams.submit(stream, std::move(step));
}

// One one-shot event of the card. Unlike torch.Event it may be waited for before its signal is
// submitted, which is what the deadlock detection is about.
class Signal {
 public:
  explicit Signal(int device) : device_(device), event_(streams_of(device).make_event()) {}
  void signal(StreamId stream) {
    DeviceStreams& streams = streams_with(device_, stream);
    WithoutGil released;
    streams.signal(stream, event_);
  }
  void wait(StreamId stream) {
    DeviceStreams& streams = streams_with(device_, stream);
    WithoutGil released;
    streams.wait(stream, event_);
  }
  bool query() const { return DeviceStreams::query(event_); }
  void synchronize() {
    DeviceStreams& streams = streams_of(device_);
    interruptible([&](const auto& interrupt) { streams.synchronize_event(event_, interrupt); });
  }
  std::optional<int64_t> time_ns() const { return DeviceStreams::event_time_ns(event_); }
  int device() const { return device_; }

 private:
  int device_;
  card::EventPtr event_;
};

py::list timeline(int device) {
  py::list rows;
  for (const card::TimelineEntry& e : streams_of(device).timeline()) {
    rows.append(py::make_tuple(e.correlation, e.name, card::engine_name(e.engine), e.stream,
                               e.start_ns, e.end_ns, e.submit_ns, e.bytes, status_name(e.status)));
  }
  return rows;
}

void inject_faults(int device, double rate, int64_t nth, uint64_t seed,
                   const std::string& name_contains, const std::optional<std::string>& engine,
                   int code) {
  if (!(rate >= 0 && rate <= 1)) throw py::value_error("inject_faults: rate must lie in [0, 1]");
  if (code < 1 || code > 5) throw py::value_error("inject_faults: code must lie in 1..5");
  card::FaultPlan plan;
  plan.rate = rate;
  plan.nth = nth;
  plan.seed = seed;
  plan.name_contains = name_contains;
  if (engine) plan.engine = parse_engine(*engine);
  plan.code = static_cast<card::StreamError>(code);
  streams_of(device).inject_faults(plan);
}

int device_state(int device) {
  card::Runtime& runtime = card::Runtime::get();
  if (!runtime.started()) return static_cast<int>(card::DeviceState::NotInitialized);
  return static_cast<int>(runtime.device(device).streams->state());
}

void bind_clock(py::module_& m) {
  m.def("host_time_ns", [](int device) { return streams_of(device).host_time_ns(); });
  m.def("advance_host", [](int device, int64_t ns) {
    if (ns < 0) throw py::value_error("advance_host: time does not run backwards");
    streams_of(device).advance_host(ns);
  });
  m.def("stream_time_ns", [](int device, StreamId stream) {
    return streams_with(device, stream).stream_time_ns(stream);
  });
  m.def("device_time_ns", [](int device) { return streams_of(device).device_time_ns(); });
  m.def("transfer_ns", [](int device, const std::string& engine, int64_t bytes) {
    return streams_of(device).cost().transfer_ns(parse_engine(engine), bytes);
  });
  m.def("timeline", &timeline, py::arg("device"),
        "Rows (correlation, name, engine, stream, start_ns, end_ns, submit_ns, bytes, status).");
  m.def("clear_timeline", [](int device) { streams_of(device).clear_timeline(); });
  m.def("engine_totals", [](int device, const std::string& engine) {
    const auto totals = streams_of(device).totals(parse_engine(engine));
    return py::make_tuple(totals.steps, totals.bytes, totals.busy_ns);
  });
}

}  // namespace

void bind_streams(py::module_& m) {
  m.def("stream_from_pool",
        [](int device, int priority) { return streams_of(device).stream_from_pool(priority); });
  m.def("host_compute_stream", [](int device) { return streams_of(device).host_compute_stream(); });
  m.def("stream_priority", [](StreamId stream) { return DeviceStreams::priority_of(stream); });
  m.def("stream_valid",
        [](int device, StreamId stream) { return streams_of(device).valid(stream); });
  m.def("used_streams", [](int device) { return streams_of(device).used_streams(); });
  m.def("submit", &submit_synthetic, py::arg("device"), py::arg("stream"), py::arg("engine"),
        py::arg("name"), py::arg("cost_ns"), py::arg("bytes") = 0, py::arg("hold_seconds") = 0.0,
        py::arg("fail") = "", "Submits a synthetic step; gives its correlation id.");
  m.def("stream_query", [](int device, StreamId stream) {
    DeviceStreams& streams = streams_with(device, stream);
    WithoutGil released;
    return streams.query(stream);
  });
  m.def("stream_idle",
        [](int device, StreamId stream) { return streams_with(device, stream).idle(stream); });
  m.def("stream_synchronize", [](int device, StreamId stream) {
    DeviceStreams& streams = streams_with(device, stream);
    interruptible([&](const auto& interrupt) { streams.synchronize(stream, interrupt); });
  });
  m.def("device_synchronize", [](int device) {
    DeviceStreams& streams = streams_of(device);
    interruptible([&](const auto& interrupt) { streams.synchronize_all(interrupt); });
  });
  m.def("stream_error", [](int device, StreamId stream) {
    return static_cast<int>(streams_with(device, stream).stream_error(stream));
  });
  m.def("stream_error_text", [](int device, StreamId stream) {
    return streams_with(device, stream).stream_error_text(stream);
  });
  m.def("device_state", &device_state);
  m.def("reset_stream", [](int device, StreamId stream) {
    DeviceStreams& streams = streams_with(device, stream);
    WithoutGil released;
    streams.reset(stream);
  });
  m.def("inject_faults", &inject_faults, py::arg("device"), py::arg("rate") = 0.0,
        py::arg("nth") = -1, py::arg("seed") = 0, py::arg("name_contains") = "",
        py::arg("engine") = py::none(), py::arg("code") = 2);
  m.def("clear_faults", [](int device) { streams_of(device).inject_faults(std::nullopt); });
  bind_clock(m);

  py::class_<Signal>(m, "Signal", "A one-shot event of the card.")
      .def(py::init<int>(), py::arg("device"))
      .def("signal", &Signal::signal, py::arg("stream"))
      .def("wait", &Signal::wait, py::arg("stream"))
      .def("query", &Signal::query)
      .def("synchronize", &Signal::synchronize)
      .def_property_readonly("time_ns", &Signal::time_ns)
      .def_property_readonly("device", &Signal::device);
}

}  // namespace openspyre::device
