// The interpreter: transfers, tokens, cores that talk, faults; and loads that are not copied.
#include <atomic>
#include <numeric>
#include <random>

#include "check.h"
#include "machine/pool.h"
#include "machine/program/execute.h"
#include "program_images.h"

using namespace images;
using namespace openspyre::machine;
using Kind_ = LaunchFault::Kind;

namespace {

constexpr Format kF32 = Format::IEEE_FP32, kI32 = Format::IEEE_INT32;

struct Run {
  std::vector<std::vector<std::byte>> operands;
  ExecutionCounts counts;
};

std::vector<std::byte> numbered(size_t sticks, int seed = 1) {
  std::vector<std::byte> out(sticks * 128);
  for (size_t i = 0; i < out.size(); ++i) {
    // Small positive float32 numbers, so that no kernel changes them as NaN.
    const auto word =
        static_cast<uint32_t>(0x3F000000 + (i / 4 * 7919 + static_cast<size_t>(seed)) % 0x7FFFFF);
    std::memcpy(out.data() + i / 4 * 4, &word, 4);
  }
  return out;
}

Run run(const Image& image, std::vector<std::vector<std::byte>> operands, int threads = 1,
        int64_t max_tasks = int64_t(1) << 40, const std::atomic<bool>* stop = nullptr) {
  const Bytes bytes = image.bytes();
  const auto program = decode_program(bytes.data(), bytes.size());
  Run out{std::move(operands), {}};
  std::vector<Window> windows;
  for (auto& operand : out.operands) windows.push_back({operand.data(), operand.size()});
  Launch launch;
  launch.operands = windows;
  launch.threads = threads;
  launch.max_tasks = max_tasks;
  launch.stop = stop;
  out.counts = execute_program(*program, launch);
  return out;
}

template <class Body>
LaunchFault fault_of(const Body& body) {
  try {
    body();
  } catch (const LaunchFault& fault) {
    return fault;
  }
  throw check::Failure("no LaunchFault was thrown");
}

bool mentions(const LaunchFault& fault, const char* text) {
  return std::string(fault.what()).find(text) != std::string::npos;
}

// x [rows, cols] of float32 to y through two slots; each core a share of the rows, tiles of four.
// Variables: digit 0, core 1, loop 2.
Image copy_program(int64_t cores, int64_t rows_each, int64_t cols) {
  Image p;
  p.cores = static_cast<uint64_t>(cores);
  p.digits = {str("c") + u(static_cast<uint64_t>(cores))};
  const int64_t rows = cores * rows_each, sticks = (cols + 31) / 32;
  const uint64_t x = p.operand("x", 0, kF32, {rows, cols}),
                 y = p.operand("y", 1, kF32, {rows, cols});
  p.buffer(0, static_cast<uint64_t>(4 * sticks * 128), 2);
  const uint64_t full = p.token(2), free = p.token(2, 1);
  const Bytes row = op(Plus, op(Times, v(1), c(rows_each)), op(Times, v(2), c(4)));
  const Bytes left = op(Least, c(4), op(Minus, c(rows_each), op(Times, v(2), c(4))));
  const std::vector<Bytes> over = {label("r", row, left), label("c", c(0), c(cols))};
  const Bytes slot = op(Modulo, v(2), c(2)), steps = c((rows_each + 3) / 4);
  const auto memory = [&](uint64_t operand) {
    return Tile{
        operand, operand, kF32, {{0, c(128)}, {1, c(128 * rows)}}, 1, op(Times, row, c(128))};
  };
  const Tile lx{x, 2, kF32, {{0, c(128)}, {1, c(512)}}, 1, c(0), slot};
  Tile back = lx;
  back.value = y;
  p.queues[0] = {loop(steps, {wait(free, slot), load(over, memory(x), lx), signal(full, slot)})};
  p.queues[1] = {loop(steps, {wait(full, slot), store(over, back, memory(y)), signal(free, slot)})};
  return p;
}

}  // namespace

TEST(program_execute_copies_through_slots_on_any_number_of_threads) {
  for (const int threads : {1, 2, 4}) {
    const Image p = copy_program(3, 9, 70);
    const size_t sticks = 27 * 3;
    const Run done = run(p, {numbered(sticks), std::vector<std::byte>(sticks * 128)}, threads);
    CHECK(done.operands[0] == done.operands[1]);
    CHECK_EQ(done.counts.bytes_read, int64_t(sticks * 128));
    CHECK_EQ(done.counts.bytes_written, int64_t(sticks * 128));
    CHECK_EQ(done.counts.tasks, int64_t(3 * 3 * 6));
  }
}

TEST(program_execute_names_the_place_of_an_address_outside_an_operand) {
  const Image p = copy_program(3, 9, 70);
  const size_t sticks = 27 * 3;
  const LaunchFault fault =
      fault_of([&] { run(p, {numbered(sticks), std::vector<std::byte>((sticks - 1) * 128)}, 2); });
  CHECK(fault.kind == Kind_::Address);
  CHECK(mentions(fault, "store[0.1] store on core 2 at i=2: operand y: bytes "));
}

TEST(program_execute_refuses_an_operand_without_address) {
  const Bytes bytes = copy_program(1, 4, 32).bytes();
  const auto program = decode_program(bytes.data(), bytes.size());
  const Window windows[2] = {{nullptr, 512}, {nullptr, 512}};
  Launch launch;
  launch.operands = windows;
  CHECK(fault_of([&] { execute_program(*program, launch); }).kind == Kind_::Unpatched);
}

TEST(program_execute_finds_deadlocks) {
  Image p = copy_program(2, 4, 32);
  p.queues[1].clear();
  p.queues[0] = {wait(0, c(1), c(3))};
  const LaunchFault fault = fault_of([&] { run(p, {numbered(8), numbered(8)}, 2); });
  CHECK(fault.kind == Kind_::Deadlock);
  CHECK(mentions(fault, "core 0"));
  CHECK(mentions(fault, "for 3 of t0[1], which is at 0"));
}

TEST(program_execute_finds_deadlocks_of_cores_that_talk) {
  for (const int threads : {1, 3}) {
    Image p;
    p.cores = 3;
    p.digits = {str("c") + u(3)};
    p.token(1);
    // Everybody waits for the neighbour before it signals the other one.
    p.queues[0] = {wait(0), signal_core(0, c(0), op(Modulo, op(Plus, v(1), c(1)), c(3)))};
    const LaunchFault fault = fault_of([&] { run(p, {}, threads); });
    CHECK(fault.kind == Kind_::Deadlock);
    CHECK(mentions(fault, "core 0") && mentions(fault, "core 2"));
  }
}

TEST(program_execute_refuses_endless_programs) {
  Image p;
  p.token(1);
  p.queues[0] = {loop(c(int64_t(1) << 60), {loop(c(0), {signal(0)})})};
  CHECK(fault_of([&] { run(p, {}, 1, 10'000); }).kind == Kind_::Stopped);
  std::atomic<bool> stop{true};
  CHECK(fault_of([&] { run(p, {}, 1, int64_t(1) << 40, &stop); }).kind == Kind_::Stopped);
}

TEST(program_execute_checks_numbers_slots_tokens_and_cores) {
  const auto kind_of = [](const std::vector<Bytes>& queue) {
    Image p;
    p.buffer(0, 128, 2);
    p.token(2);
    p.operand("x", 0, kF32, {32});
    p.queues[0] = queue;
    return fault_of([&] { run(p, {numbered(1)}); }).kind;
  };
  const std::vector<Bytes> over = {label("i", c(0), c(32))};
  const Tile x{0, 0, kF32, {{0, c(128)}}, 0}, lx{0, 1, kF32, {{0, c(128)}}, 0};
  Tile other = lx;
  other.slot = c(2);
  CHECK(kind_of({load(over, x, other)}) == Kind_::Index);
  other = lx;
  other.offset = c(16384);
  CHECK(kind_of({load(over, x, other)}) == Kind_::Address);
  other.offset = c(64);
  CHECK(kind_of({load(over, x, other)}) == Kind_::Address);
  other.offset = c(-128);
  CHECK(kind_of({load(over, x, other)}) == Kind_::Address);
  CHECK(kind_of({load({label("i", c(0), c(-1))}, x, lx)}) == Kind_::Number);
  CHECK(kind_of({load({label("i", c(0), c(INT64_MAX))}, x, lx)}) != Kind_::Deadlock);
  CHECK(kind_of({wait(0, c(2))}) == Kind_::Index);
  CHECK(kind_of({signal(0, c(0), op(Times, c(INT64_MAX), c(2)))}) == Kind_::Number);
  CHECK(kind_of({signal(0, c(0), c(INT64_MAX)), signal(0)}) == Kind_::Number);
  CHECK(kind_of({signal(0, op(Over, c(1), c(0)))}) == Kind_::Number);
  CHECK(kind_of({loop(c(-1), {signal(0)})}) == Kind_::Number);
  CHECK(kind_of({signal_core(0, c(0), c(1))}) == Kind_::Index);
}

// Each core loads its own tile, tells its neighbour, takes the neighbour's tile and stores it.
TEST(program_execute_rings_move_tiles_between_cores) {
  constexpr int64_t kCores = 5;
  for (const int threads : {1, 2, 4}) {
    Image p;
    p.cores = kCores;
    p.digits = {str("c") + u(kCores)};
    const uint64_t x = p.operand("x", 0, kF32, {kCores, 64}),
                   y = p.operand("y", 1, kF32, {kCores, 64});
    p.buffer(0, 256, 1);
    p.buffer(256, 256, 1);
    const uint64_t told = p.token(1), taken = p.token(1);
    const std::vector<Bytes> over = {label("r", v(1), c(1)), label("c", c(0), c(64))};
    const auto memory = [&](uint64_t at) {
      return Tile{at, at, kF32, {{0, c(128)}, {1, c(128 * kCores)}}, 1, op(Times, v(1), c(128))};
    };
    const Tile own{x, 2, kF32, {{1, c(128)}}, 1, c(0), c(0), {0, 1}};
    Tile got = own;
    got.place = 3;
    const Bytes next = op(Modulo, op(Plus, v(1), c(1)), c(kCores));
    const Bytes last = op(Modulo, op(Plus, v(1), c(kCores - 1)), c(kCores));
    p.queues[0] = {load(over, memory(x), own), signal_core(told, c(0), last)};
    p.queues[2] = {wait(told), ring(c(1), next, over, own, got), signal(taken)};
    p.queues[1] = {wait(taken), store(over, got, memory(y))};
    const Run done = run(p, {numbered(kCores * 2), std::vector<std::byte>(kCores * 256)}, threads);
    for (int64_t core = 0; core < kCores; ++core) {
      for (const int64_t stick : {int64_t(0), kCores}) {
        CHECK(std::memcmp(done.operands[1].data() + 128 * (stick + core),
                          done.operands[0].data() + 128 * (stick + (core + 1) % kCores), 128) == 0);
      }
    }
    CHECK_EQ(done.counts.bytes_copied, kCores * 256);  // a RING's source is really in LX
  }
}

namespace {

// A table of rows and a list of row numbers; `tail`: what goes into the store queue.
Image by_index(const std::vector<Bytes>& loads, const std::vector<Bytes>& stores) {
  Image p;
  p.operand("table", 2, kI32, {8, 40});
  p.operand("index", 0, kI32, {6});
  p.operand("out", 2, kI32, {6, 40});
  p.buffer(0, 128, 1);
  p.buffer(128, 6 * 256, 1);
  p.token(1);
  p.queues[0] = loads;
  p.queues[0].push_back(signal(0));
  p.queues[1] = stores;
  p.queues[1].insert(p.queues[1].begin(), wait(0));
  return p;
}

std::vector<std::byte> ints(const std::vector<int32_t>& values) {
  std::vector<std::byte> out(values.size() * 4);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

const std::vector<Bytes> kRows = {label("r", c(0), c(6)), label("c", c(0), c(40))};
const Tile kTable{0, 0, kI32, {{0, c(128)}, {1, c(1024)}}, 1};
const Tile kOut{2, 2, kI32, {{0, c(128)}, {1, c(768)}}, 1};
const Tile kIndex{1, 3, kI32, {{0, c(128)}}, 0};
const Tile kRowsLx{0, 4, kI32, {{0, c(128)}, {1, c(768)}}, 1};
const Tile kOutLx{2, 4, kI32, {{0, c(128)}, {1, c(768)}}, 1};

Bytes load_index() {
  return load({label("r", c(0), c(6))}, Tile{1, 1, kI32, {{0, c(128)}}, 0}, kIndex);
}
std::vector<std::byte> index_stick(std::vector<int32_t> six) {
  six.resize(32, 0x7FFFFFFF);
  return ints(six);
}
int32_t int_at(const std::vector<std::byte>& data, size_t at) {
  int32_t value;
  std::memcpy(&value, data.data() + 4 * at, 4);
  return value;
}

}  // namespace

TEST(program_execute_gathers_rows_by_index) {
  const Image p = by_index({load_index(), load(kRows, kTable, kRowsLx, gather(0, kIndex, c(8)))},
                           {store(kRows, kOutLx, kOut)});
  std::vector<int32_t> table(512);
  std::iota(table.begin(), table.end(), 0);
  const std::vector<int32_t> rows = {7, 0, 3, 3, 1, 6};
  const Run done = run(p, {ints(table), index_stick(rows), std::vector<std::byte>(1536)});
  for (size_t r = 0; r < 6; ++r) {
    for (size_t col = 0; col < 40; ++col) {
      const size_t stick = col / 32, lane = col % 32;
      CHECK_EQ(int_at(done.operands[2], (stick * 6 + r) * 32 + lane),
               table[(stick * 8 + size_t(rows[r])) * 32 + lane]);
    }
  }
  for (const int32_t bad : {8, -1}) {
    const LaunchFault fault = fault_of([&] {
      run(p, {ints(table), index_stick({7, 0, bad, 3, 1, 6}), std::vector<std::byte>(1536)});
    });
    CHECK(fault.kind == Kind_::Index);
    CHECK(mentions(fault, "load[1] load on core 0"));
    CHECK(mentions(fault, "at r = 2 is outside 0..7"));
  }
}

TEST(program_execute_scatters_its_own_window_and_adds) {
  for (const bool adding : {false, true}) {
    const Image p =
        by_index({load_index(), load(kRows, kOut, kOutLx)},
                 {store(kRows, kRowsLx, kTable, scatter(0, kIndex, c(8), c(2), c(4), adding))});
    std::vector<int32_t> table(512, 1000), from(384);
    std::iota(from.begin(), from.end(), 0);
    const std::vector<int32_t> rows = {7, 2, 5, 5, 1, 2};
    const Run done = run(p, {ints(table), index_stick(rows), ints(from)});
    for (size_t row = 0; row < 8; ++row) {
      for (size_t col = 0; col < 40; ++col) {
        int32_t expected = 1000;
        for (size_t r = 0; r < 6; ++r) {
          if (size_t(rows[r]) != row || row < 2 || row >= 6) continue;
          const int32_t value = from[(col / 32 * 6 + r) * 32 + col % 32];
          expected = adding ? expected + value : value;
        }
        CHECK_EQ(int_at(done.operands[0], (col / 32 * 8 + row) * 32 + col % 32), expected);
      }
    }
    CHECK(fault_of([&] {
            run(p, {ints(table), index_stick({7, 2, 5, 5, 8, 2}), ints(from)});
          }).kind == Kind_::Index);
  }
}

// --- loads that are not copied

namespace {

// A random straight-line program of loads, maps and stores on overlapping tiles of a small LX, one
// step after another. `role` 0: x may be read late; 2: it is copied at once.
Image random_steps(uint64_t seed, int role) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  constexpr int64_t kSticks = 24;  // of LX, x and y
  Image p;
  p.lx = kSticks * 128;
  const uint64_t x = p.operand("x", role, kF32, {kSticks, 32});
  const uint64_t y = p.operand("y", 2, kF32, {kSticks, 32});
  p.buffer(0, kSticks * 128, 1);
  const auto steps = static_cast<uint64_t>(pick(4, 14));
  p.token(steps);
  // A grid of sticks a x b that fits in kSticks with these strides.
  struct Grid {
    int64_t a, b;
  };
  int64_t low = 0, high = 0;  // sticks of the tile that was made last
  const auto tile = [&](uint64_t operand, uint64_t place, const Grid& grid, bool spread) {
    for (;;) {
      int64_t sa = pick(0, 2) == 0 ? grid.b : pick(1, 6),
              sb = pick(0, 2) == 0 ? grid.a : pick(1, 3);
      if (pick(0, 3) == 0) sa = 1;
      if (pick(0, 3) == 0) sb = 1;
      if (pick(0, 15) == 0 && !spread) sa = 0;
      const int64_t span = (grid.a - 1) * sa + (grid.b - 1) * sb + 1;
      if (span > kSticks) continue;
      // An output of a map must have a place for every point.
      if (spread && !(sa >= grid.b * sb || sb >= grid.a * sa)) continue;
      const int64_t offset = pick(0, 1) == 0 ? 0 : pick(0, kSticks - span);
      low = offset;
      high = offset + span;
      return Tile{operand, place, kF32, {{0, c(sa * 128)}, {1, c(sb * 128)}}, 1, c(offset * 128)};
    }
  };
  const std::vector<Bytes> all = {label("a", c(0), c(kSticks)), label("b", c(0), c(32))};
  const Tile all_y{y, 1, kF32, {{0, c(128)}, {1, c(128)}}, 1};
  Tile all_lx = all_y;
  all_lx.place = 2;
  // Before the first step LX holds something.
  p.queues[0] = {load(all, all_y, all_lx), signal(0)};
  for (uint64_t i = 1; i < steps; ++i) {
    const Grid grid{pick(1, 6), pick(1, 3)};
    const std::vector<Bytes> over = {label("a", c(0), c(grid.a)), label("b", c(0), c(grid.b * 32))};
    const int64_t kind = i + 1 == steps ? 3 : pick(0, 3);
    const size_t queue = kind <= 1 ? 0 : kind == 2 ? 4 : 1;
    p.queues[queue].push_back(wait(0, c(static_cast<int64_t>(i) - 1)));
    if (kind <= 1) {
      p.queues[queue].push_back(load(over, tile(x, 0, grid, false), tile(x, 2, grid, false)));
    } else if (kind == 2) {
      const Tile to = tile(x, 2, grid, true);
      const int64_t to_low = low, to_high = high;
      // Input and output must be the same or apart: what an overlap gives is not defined.
      Tile from = tile(x, 2, grid, false);
      for (int tries = 0; tries < 20 && low < to_high && to_low < high; ++tries) {
        from = tile(x, 2, grid, false);
      }
      if (low < to_high && to_low < high) from = to;
      p.queues[queue].push_back(copy_map(over, from, to));
    } else {
      p.queues[queue].push_back(store(over, tile(y, 2, grid, false), tile(y, 1, grid, true)));
    }
    p.queues[queue].push_back(signal(0, c(static_cast<int64_t>(i))));
  }
  // In the end all of LX is stored: nothing that was put off is lost.
  p.queues[1].push_back(store(all, all_lx, all_y));
  return p;
}

}  // namespace

TEST(program_execute_late_loads_are_as_good_as_copies) {
  int64_t saved = 0;
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(3000)); ++seed) {
    const auto x = numbered(24, 1), y = numbered(24, 100'000);
    const Image late = random_steps(seed, 0), early = random_steps(seed, 2);
    const Run a = run(late, {x, y}), b = run(early, {x, y});
    CHECK(a.operands[1] == b.operands[1]);
    CHECK(a.counts.bytes_copied <= b.counts.bytes_copied);
    saved += b.counts.bytes_copied - a.counts.bytes_copied;
  }
  CHECK(saved > 0);
}

TEST(program_execute_reads_an_operand_in_place_and_copies_it_when_it_aliases_an_output) {
  Image p;
  const uint64_t x = p.operand("x", 0, kF32, {8, 96}), y = p.operand("y", 1, kF32, {8, 96});
  p.buffer(0, 8 * 3 * 128, 1);
  p.buffer(3072, 8 * 3 * 128, 1);
  p.token(1);
  p.token(1);
  const std::vector<Bytes> all = {label("r", c(0), c(8)), label("c", c(0), c(96))};
  const auto memory = [&](uint64_t at) {
    return Tile{at, at, kF32, {{0, c(128)}, {1, c(1024)}}, 1};
  };
  const auto lx = [&](uint64_t value, uint64_t place) {
    return Tile{value, place, kF32, {{0, c(384)}, {1, c(128)}}, 1};
  };
  p.queues[0] = {load(all, memory(x), lx(x, 2)), signal(0)};
  // Two parts of the tile, by labels of other names and in another order.
  std::vector<Bytes> maps = {wait(0)};
  for (const int64_t row : {0, 5}) {
    const std::vector<Bytes> part = {label("q", c(0), c(96)),
                                     label("s", c(row), c(row == 0 ? 5 : 3))};
    const auto tile = [&](uint64_t value, uint64_t place) {
      return Tile{value, place, kF32, {{1, c(384)}, {0, c(128)}}, 0, c(row * 384)};
    };
    maps.push_back(copy_map(part, tile(x, 2), tile(y, 3)));
  }
  maps.push_back(signal(1));
  p.queues[4] = maps;
  p.queues[1] = {wait(1), store(all, lx(y, 3), memory(y))};
  const Run done = run(p, {numbered(24), std::vector<std::byte>(24 * 128)});
  CHECK(done.operands[0] == done.operands[1]);
  CHECK_EQ(done.counts.bytes_read, 24 * 128);
  CHECK_EQ(done.counts.bytes_copied, 0);

  const Bytes bytes = p.bytes();
  const auto program = decode_program(bytes.data(), bytes.size());
  auto shared = numbered(25);
  const auto before = shared;
  // y begins one stick behind x: x must be taken before y is stored.
  const Window windows[2] = {{shared.data(), 24 * 128}, {shared.data() + 128, 24 * 128}};
  Launch launch;
  launch.operands = windows;
  launch.threads = 1;
  CHECK_EQ(execute_program(*program, launch).bytes_copied, 24 * 128);
  CHECK(std::memcmp(shared.data() + 128, before.data(), 24 * 128) == 0);
}
