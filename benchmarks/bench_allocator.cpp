// Benchmark of the card's allocator, torch-free: the fast index beside the exact best-fit
// reference, in one run.
//
//   bench_allocator [trace.csv]
//
// Measures nanoseconds per allocate/free pair (statistics on, one thread, tokens included), then
// replays a recorded trace (columns op,id,bytes; see record_trace.py) under the PF and the VF
// policy and compares peak reserved with peak live bytes. Live bytes are what the trace
// requested, before any rounding. One line a figure: kind (pair | replay | peak), name, fast,
// reference, separated by tabs; allocator.py prints the table.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "card/memory.h"

using namespace openspyre::card;

// Processor time of this thread: the machine may be shared.
struct Clock {
  using time_point = int64_t;
  static time_point now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
  }
};

namespace {

struct Row {
  bool alloc;
  size_t id;
  uint64_t bytes;
};

double ns_since(Clock::time_point start, double operations) {
  return static_cast<double>(Clock::now() - start) / operations;
}

std::unique_ptr<DeviceMemory> make(bool exact, FunctionKind kind) {
  MemoryConfig config;
  config.kind = kind;
  config.exact_best_fit = exact;
  return std::make_unique<DeviceMemory>(0, std::make_shared<PhysicalMemory>(config.capacity, true),
                                        config);
}

// One memory of each index, and the median of each over interleaved rounds.
struct Twins {
  std::unique_ptr<DeviceMemory> fast = make(false, FunctionKind::PF);
  std::unique_ptr<DeviceMemory> exact = make(true, FunctionKind::PF);
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// `round(memory)` returns nanoseconds per pair.
template <class Round>
void report_pair(const std::string& name, const Twins& twins, Round&& round) {
  constexpr int kRounds = 101;
  std::vector<double> fast, exact;
  for (int i = 0; i < kRounds; ++i) {
    fast.push_back(round(*twins.fast));
    exact.push_back(round(*twins.exact));
  }
  std::printf("pair\t%s\t%.1f\t%.1f\n", name.c_str(), median(fast), median(exact));
}

void same_size(uint64_t bytes) {
  constexpr int kPairs = 2000;
  report_pair("allocate + free " + std::to_string(bytes) + " B", Twins(),
              [&](DeviceMemory& memory) {
                const auto start = Clock::now();
                for (int i = 0; i < kPairs; ++i) memory.free(memory.allocate(bytes, bytes, 0));
                return ns_since(start, kPairs);
              });
}

// Pairs among 1000 live blocks of mixed sizes, freed in random order: no pair repeats the last.
void mixed_sizes() {
  constexpr int kLive = 1000, kPairs = 4000;
  uint32_t seed = 1;
  auto next = [&] { return seed = seed * 1664525u + 1013904223u, seed >> 8; };
  auto size = [&] { return 1 + (next() & ((1u << (7 + next() % 12)) - 1)); };
  Twins twins;
  std::vector<Block*> fast(kLive), exact(kLive);
  for (Block*& block : fast) block = twins.fast->allocate(size(), 0, 0);
  for (Block*& block : exact) block = twins.exact->allocate(size(), 0, 0);
  report_pair("allocate + free among 1000 mixed", twins, [&](DeviceMemory& memory) {
    std::vector<Block*>& live = &memory == twins.fast.get() ? fast : exact;
    const auto start = Clock::now();
    for (int i = 0; i < kPairs; ++i) {
      Block*& block = live[next() % kLive];
      memory.free(block);
      block = memory.allocate(size(), 0, 0);
    }
    return ns_since(start, kPairs);
  });
  for (Block* block : fast) twins.fast->free(block);
  for (Block* block : exact) twins.exact->free(block);
}

// Two streams that allocate in turn, so that each free records a marker and each hand-out asks.
void two_streams() {
  constexpr int kPairs = 2000;
  Twins twins;
  uint64_t submitted = 0;
  MemoryHooks hooks;
  hooks.record_marker = [&](int) { return ++submitted; };
  hooks.marker_passed = [&](int, uint64_t marker) { return marker + 4 <= submitted; };
  twins.fast->set_hooks(hooks);
  twins.exact->set_hooks(hooks);
  report_pair("allocate + free 8192 B, two streams", twins, [&](DeviceMemory& memory) {
    const auto start = Clock::now();
    for (int i = 0; i < kPairs; ++i) memory.free(memory.allocate(8192, 8192, i & 1));
    return ns_since(start, kPairs);
  });
  twins.fast->set_hooks({});
  twins.exact->set_hooks({});
}

struct Replay {
  double ns;
  double live;
  double reserved;
};

Replay replay(const std::vector<Row>& rows, bool exact, FunctionKind kind) {
  auto memory = make(exact, kind);
  size_t ids = 0;
  for (const Row& row : rows) ids = std::max(ids, row.id + 1);
  std::vector<Block*> blocks(ids);
  const auto start = Clock::now();
  for (const Row& row : rows) {
    if (row.alloc) {
      blocks[row.id] = memory->allocate(row.bytes, row.bytes, 0);
    } else {
      memory->free(blocks[row.id]);
    }
  }
  const double ns = ns_since(start, static_cast<double>(rows.size()) / 2);
  const MemoryStats stats = memory->stats();
  return {ns, static_cast<double>(stats.requested_bytes[kAggregate].peak),
          static_cast<double>(stats.reserved_bytes[kAggregate].peak)};
}

void report_replay(const std::vector<Row>& rows, FunctionKind kind) {
  const Replay fast = replay(rows, false, kind), exact = replay(rows, true, kind);
  const char* function = kind == FunctionKind::PF ? "PF" : "VF";
  std::printf("replay\ttransformer trace, %s, a pair\t%.1f\t%.1f\n", function, fast.ns, exact.ns);
  std::printf("peak\ttransformer trace, %s, reserved/live\t%.4f\t%.4f\n", function,
              fast.reserved / fast.live, exact.reserved / exact.live);
}

}  // namespace

int main(int argc, char** argv) {
  for (uint64_t bytes : {128ull, 8192ull, 1ull << 20, 64ull << 20}) same_size(bytes);
  mixed_sizes();
  two_streams();
  if (argc < 2) return 0;
  std::ifstream file(argv[1]);
  std::string line;
  std::vector<Row> rows;
  std::getline(file, line);  // header
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string op, id, bytes;
    std::getline(in, op, ',');
    std::getline(in, id, ',');
    std::getline(in, bytes, ',');
    rows.push_back({op == "alloc", std::stoull(id), std::stoull(bytes)});
  }
  if (rows.empty()) {
    std::fprintf(stderr, "no rows in %s\n", argv[1]);
    return 1;
  }
  for (FunctionKind kind : {FunctionKind::PF, FunctionKind::VF}) report_replay(rows, kind);
  return 0;
}
