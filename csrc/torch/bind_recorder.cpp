// The card's recorder for Python (openspyre/observe/recorded.py).
#include "card/recorder.h"
#include "torch/bind.h"

namespace openspyre::device {

namespace {

const char* kind_of(const card::RecordedStep& step) {
  if (step.engine == card::Engine::Host) return "host_compute";
  if (step.kind == card::StepKind::Set) return "memset";
  if (step.engine == card::Engine::H2D) return "h2d";
  if (step.engine == card::Engine::D2H) return "d2h";
  return step.kind == card::StepKind::Copy ? "d2d" : "kernel";
}

// (rows, dropped): a row has the fields of recorded.Event, in its order.
py::tuple rows_of(const card::Recorder::Recording& recording) {
  py::list rows;
  for (const card::RecordedStep& s : recording.steps) {
    rows.append(py::make_tuple(s.name, kind_of(s), s.device, s.stream, card::engine_name(s.engine),
                               s.begin_wall, s.end_wall, s.begin_virtual, s.end_virtual, s.bytes,
                               card::source_text(s.sources), status_name(s.status), s.correlation,
                               s.operation, s.submit_begin_wall, s.submit_end_wall,
                               s.submit_virtual, s.submit_thread, s.run_thread));
  }
  return py::make_tuple(std::move(rows), recording.dropped);
}

}  // namespace

void bind_recorder(py::module_& m) {
  m.def("recorder_start", [] {
    const WithoutGil released;
    return card::Recorder::get().start();
  });
  const auto take = [](auto method) {
    return [method](uint64_t begin) {
      card::Recorder::Recording recording;
      {
        const WithoutGil released;
        recording = (card::Recorder::get().*method)(begin);
      }
      return rows_of(recording);
    };
  };
  m.def("recorder_peek", take(&card::Recorder::peek),
        "Rows since a start, and how many were lost.");
  m.def("recorder_stop", take(&card::Recorder::stop));
  m.def("recorder_on", [] { return card::Recorder::get().on(); });
}

}  // namespace openspyre::device
