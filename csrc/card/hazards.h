// Hazards between streams: two steps touch the same bytes of the card, one of them writes, and
// nothing orders them.
//
// Internal to csrc/card, torch-free, guarded by the scheduler's lock. Order is kept as vector
// clocks: every stream counts its steps and knows, of every other stream, up to which step it runs
// behind. An event carries the clock of its signal, a wait takes it over, and so does the host when
// it waits. Submission order decides, never wall-clock time: a race is found even when it went
// well.
//
//   check   the later step is refused with both operations, streams, the byte range and the kind
//   insert  the missing event edge is added in silence, as upstream's hazard tracker does
//
// What it does not see: a wait for an event whose signal is submitted later orders only what is
// submitted after that signal; the host's waits count for all threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "card/stream.h"

namespace openspyre::card {

struct Stream;

// "behind the first n steps of that stream", for every stream named.
class VectorClock {
 public:
  uint64_t at(const Stream* stream) const;
  void reach(const Stream* stream, uint64_t step);
  void merge(const VectorClock& other);
  void forget(const Stream* stream);
  bool empty() const { return steps_.empty(); }

 private:
  std::vector<std::pair<const Stream*, uint64_t>> steps_;  // a handful: linear search
};

struct HazardFound {
  const char* kind;  // "RAW", "WAR", "WAW"
  Stream* earlier;   // stream of the earlier step
  std::string text;
};

class HazardTracker {
 public:
  // The first hazard of a step on `stream` behind `clock`; nothing is recorded.
  std::optional<HazardFound> find(const Stream& stream, const VectorClock& clock,
                                  const Step& step) const;
  // The step is submitted: its number on its stream is `number`, `clock` includes it.
  void record(Stream& stream, uint64_t number, const VectorClock& clock, const Step& step);
  void forget(const void* block);
  void forget_stream(const Stream* stream);  // it goes away
  size_t records() const;                    // of all blocks, for tests: superseded ones are gone

 private:
  struct Record {
    Stream* stream;
    uint64_t number;
    bool write;
    std::string name;
    std::vector<ByteRange> ranges;
  };
  std::unordered_map<const void*, std::vector<Record>> blocks_;
};

}  // namespace openspyre::card
