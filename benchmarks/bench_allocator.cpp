// Benchmark of the card's allocator, torch-free: the fast index beside the exact best-fit
// reference, in one run.
//
//   bench_allocator [trace.csv]
//
// Prints nanoseconds per allocate/free pair (statistics on, one thread, tokens included), then
// replays a recorded trace (columns op,id,bytes; see record_trace.py) under the PF and the VF
// policy and prints peak reserved over peak live bytes. Live bytes are what the trace
// requested, before any rounding.
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

// The best of `rounds`: noise of a shared machine only ever adds.
template <class F>
double best(int rounds, F&& f) {
  double least = 1e300;
  for (int i = 0; i < rounds; ++i) least = std::min(least, f());
  return least;
}

double pair_ns(DeviceMemory& memory, uint64_t bytes) {
  constexpr int kPairs = 20000;
  return best(50, [&] {
    auto start = Clock::now();
    for (int i = 0; i < kPairs; ++i) memory.free(memory.allocate(bytes, bytes, 0));
    return ns_since(start, kPairs);
  });
}

// Pairs among 1000 live blocks of mixed sizes, freed in random order: no pair repeats the last.
double mixed_ns(DeviceMemory& memory) {
  constexpr int kLive = 1000, kPairs = 20000;
  uint32_t seed = 1;
  auto next = [&] { return seed = seed * 1664525u + 1013904223u, seed >> 8; };
  auto size = [&] { return 1 + (next() & ((1u << (7 + next() % 12)) - 1)); };
  std::vector<Block*> live(kLive);
  for (Block*& b : live) b = memory.allocate(size(), 0, 0);
  double ns = best(50, [&] {
    auto start = Clock::now();
    for (int i = 0; i < kPairs; ++i) {
      Block*& b = live[next() % kLive];
      memory.free(b);
      b = memory.allocate(size(), 0, 0);
    }
    return ns_since(start, kPairs);
  });
  for (Block* b : live) memory.free(b);
  return ns;
}

// Two streams that allocate in turn, so that each free records a marker and each hand-out asks.
double two_streams_ns(DeviceMemory& memory) {
  constexpr int kPairs = 20000;
  uint64_t submitted = 0;
  MemoryHooks hooks;
  hooks.record_marker = [&](int) { return ++submitted; };
  hooks.marker_passed = [&](int, uint64_t marker) { return marker + 4 <= submitted; };
  memory.set_hooks(hooks);
  double ns = best(50, [&] {
    auto start = Clock::now();
    for (int i = 0; i < kPairs; ++i) memory.free(memory.allocate(8192, 8192, i & 1));
    return ns_since(start, kPairs);
  });
  memory.set_hooks({});
  return ns;
}

void replay(const std::vector<Row>& rows, bool exact, FunctionKind kind) {
  auto memory = make(exact, kind);
  size_t ids = 0;
  for (const Row& row : rows) ids = std::max(ids, row.id + 1);
  std::vector<Block*> blocks(ids);
  auto start = Clock::now();
  for (const Row& row : rows) {
    if (row.alloc) {
      blocks[row.id] = memory->allocate(row.bytes, row.bytes, 0);
    } else {
      memory->free(blocks[row.id]);
    }
  }
  double ns = ns_since(start, static_cast<double>(rows.size()) / 2);
  MemoryStats stats = memory->stats();
  double live = static_cast<double>(stats.requested_bytes[kAggregate].peak);
  double reserved = static_cast<double>(stats.reserved_bytes[kAggregate].peak);
  std::printf(
      "  %s %-9s  peak live %8.2f MiB  peak reserved %8.2f MiB  ratio %.4f  regions %d"
      "  %.0f ns a pair\n",
      kind == FunctionKind::PF ? "PF" : "VF", exact ? "reference" : "fast", live / (1 << 20),
      reserved / (1 << 20), reserved / live, memory->info().handles_used, ns);
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("allocate/free pair, ns          fast  reference\n");
  for (uint64_t bytes : {128ull, 8192ull, 1ull << 20, 64ull << 20})
    std::printf("  %9llu B                %8.0f   %8.0f\n", static_cast<unsigned long long>(bytes),
                pair_ns(*make(false, FunctionKind::PF), bytes),
                pair_ns(*make(true, FunctionKind::PF), bytes));
  std::printf("  1000 live, mixed sizes     %8.0f   %8.0f\n",
              mixed_ns(*make(false, FunctionKind::PF)), mixed_ns(*make(true, FunctionKind::PF)));
  std::printf("  8192 B, two streams in turn %7.0f   %8.0f\n",
              two_streams_ns(*make(false, FunctionKind::PF)),
              two_streams_ns(*make(true, FunctionKind::PF)));
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
  std::printf("trace %s, %zu rows\n", argv[1], rows.size());
  for (FunctionKind kind : {FunctionKind::PF, FunctionKind::VF})
    for (bool exact : {false, true}) replay(rows, exact, kind);
  return 0;
}
