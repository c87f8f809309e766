// The configuration of the process, from the nested dict that openspyre/env.py makes.
//
// Keys are the field names of RuntimeConfig, DeviceConfig, MemoryConfig, StreamConfig, CostModel
// and Numerics; enums are lower-case strings; a missing key keeps the field's default, an unknown
// key is an error.
#include <set>

#include "torch/bind.h"

namespace openspyre::device {

namespace {

// Reads the fields of one dict and, at the end, complains about keys that nobody asked for.
class Fields {
 public:
  Fields(const py::dict& dict, std::string path) : dict_(dict), path_(std::move(path)) {}

  template <class T>
  void get(const char* key, T& field) {
    if (const auto value = find(key)) field = cast<T>(key, value);
  }
  template <class Enum, class Parse>
  void get_enum(const char* key, Enum& field, Parse parse) {
    if (const auto value = find(key)) field = parse(cast<std::string>(key, value));
  }
  template <class Read>
  void get_dict(const char* key, Read read) {
    if (const auto value = find(key)) {
      Fields inner(cast<py::dict>(key, value), path_ + key + ".");
      read(inner);
      inner.done();
    }
  }
  py::handle find(const char* key) {
    seen_.insert(key);
    return dict_.contains(key) ? py::handle(dict_[key]) : py::handle();
  }
  void done() const {
    for (const auto& [key, value] : dict_) {
      const auto name = py::cast<std::string>(key);
      if (!seen_.contains(name)) {
        throw py::value_error("configure: unknown setting '" + path_ + name + "'");
      }
    }
  }
  const std::string& path() const { return path_; }

 private:
  template <class T>
  T cast(const char* key, py::handle value) const {
    try {
      return py::cast<T>(value);
    } catch (const py::cast_error&) {
      throw py::type_error("configure: setting '" + path_ + key + "' cannot be " +
                           py::cast<std::string>(py::repr(value)));
    }
  }
  py::dict dict_;
  std::string path_;
  std::set<std::string> seen_;
};

void read_memory(Fields& fields, card::MemoryConfig& memory) {
  fields.get_enum("kind", memory.kind, parse_kind);
  fields.get("capacity", memory.capacity);
  fields.get("max_handles", memory.max_handles);
  fields.get("max_region", memory.max_region);
  fields.get("min_region", memory.min_region);
  fields.get("small_limit", memory.small_limit);
  fields.get("poison", memory.poison);
  fields.get("guard", memory.guard);
  fields.get("exact_best_fit", memory.exact_best_fit);
}

void read_cost(Fields& fields, card::CostModel& cost) {
  fields.get("h2d_bytes_per_ns", cost.h2d_bytes_per_ns);
  fields.get("d2h_bytes_per_ns", cost.d2h_bytes_per_ns);
  fields.get("d2d_bytes_per_ns", cost.d2d_bytes_per_ns);
  fields.get("transfer_latency_ns", cost.transfer_latency_ns);
  fields.get("host_submit_ns", cost.host_submit_ns);
}

void read_streams(Fields& fields, card::StreamConfig& streams) {
  fields.get("host_compute_streams", streams.host_compute_streams);
  fields.get("timeline_capacity", streams.timeline_capacity);
  fields.get_enum("hazards", streams.hazards, parse_hazards);
  fields.get_dict("cost", [&](Fields& inner) { read_cost(inner, streams.cost); });
}

void read_device(Fields& fields, card::DeviceConfig& device) {
  fields.get("card", device.card);
  fields.get("vf", device.vf);
  fields.get("card_capacity", device.card_capacity);
  fields.get_dict("memory", [&](Fields& inner) { read_memory(inner, device.memory); });
  fields.get_dict("streams", [&](Fields& inner) { read_streams(inner, device.streams); });
}

void configure(const py::dict& dict) {
  card::RuntimeConfig config;
  Fields fields(dict, "");
  if (const auto devices = fields.find("devices")) {
    int index = 0;
    for (const auto& item : devices) {
      Fields inner(py::cast<py::dict>(item), "devices[" + std::to_string(index++) + "].");
      read_device(inner, config.devices.emplace_back());
      inner.done();
    }
  }
  fields.get_dict("numerics", [&](Fields& inner) {
    inner.get_enum("mode", config.numerics.mode, parse_mode);
    inner.get_enum("tie", config.numerics.tie, parse_tie);
    inner.get("merged_is_nan", config.numerics.merged_is_nan);
  });
  fields.get("execute", config.execute);
  fields.get("poison_pads", config.poison_pads);
  fields.get("threads", config.threads);
  fields.get("stats_directory", config.stats_directory);
  fields.get_dict("plans", [&](Fields& inner) {
    inner.get("overlap", config.plans.overlap);
    inner.get("slots", config.plans.slots);
    inner.get("image_budget", config.plans.image_budget);
  });
  fields.get("error", config.error);
  fields.done();
  config.pressure = &collect_garbage;
  config.frames = &capture_python_frames;
  card::Runtime::get().configure(std::move(config));
}

py::dict memory_dict(const card::MemoryConfig& memory) {
  py::dict out;
  out["kind"] = kind_name(memory.kind);
  out["capacity"] = memory.capacity;
  out["max_handles"] = memory.max_handles;
  out["max_region"] = memory.max_region;
  out["min_region"] = memory.min_region;
  out["small_limit"] = memory.small_limit;
  out["poison"] = memory.poison;
  out["guard"] = memory.guard;
  out["exact_best_fit"] = memory.exact_best_fit;
  return out;
}

py::dict cost_dict(const card::CostModel& cost) {
  py::dict out;
  out["h2d_bytes_per_ns"] = cost.h2d_bytes_per_ns;
  out["d2h_bytes_per_ns"] = cost.d2h_bytes_per_ns;
  out["d2d_bytes_per_ns"] = cost.d2d_bytes_per_ns;
  out["transfer_latency_ns"] = cost.transfer_latency_ns;
  out["host_submit_ns"] = cost.host_submit_ns;
  return out;
}

// What configure() was given, with the defaults filled in: the same shape as its argument.
py::dict configuration() {
  const card::RuntimeConfig& config = card::Runtime::get().config();
  py::list devices;
  for (const auto& device : config.devices) {
    py::dict streams;
    streams["host_compute_streams"] = device.streams.host_compute_streams;
    streams["timeline_capacity"] = device.streams.timeline_capacity;
    streams["hazards"] = hazards_name(device.streams.hazards);
    streams["cost"] = cost_dict(device.streams.cost);
    py::dict entry;
    entry["card"] = device.card;
    entry["vf"] = device.vf;
    entry["card_capacity"] = device.card_capacity;
    entry["memory"] = memory_dict(device.memory);
    entry["streams"] = streams;
    devices.append(entry);
  }
  py::dict numerics;
  numerics["mode"] = mode_name(config.numerics.mode);
  numerics["tie"] = tie_name(config.numerics.tie);
  numerics["merged_is_nan"] = config.numerics.merged_is_nan;
  py::dict plans;
  plans["overlap"] = config.plans.overlap;
  plans["slots"] = config.plans.slots;
  plans["image_budget"] = config.plans.image_budget;
  py::dict out;
  out["plans"] = plans;
  out["devices"] = devices;
  out["numerics"] = numerics;
  out["execute"] = config.execute;
  out["poison_pads"] = config.poison_pads;
  out["threads"] = config.threads;
  out["stats_directory"] = config.stats_directory;
  out["error"] = config.error;
  return out;
}

}  // namespace

void bind_config(py::module_& m) {
  m.def("configure", &configure, py::arg("configuration"),
        "Sets the configuration of the process. RuntimeError once the runtime has started.");
  m.def("configuration", &configuration);
}

}  // namespace openspyre::device
