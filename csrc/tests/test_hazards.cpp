// RT43: unordered accesses of two streams are found by submission order alone, or ordered.
#include <vector>

#include "card/hazards.h"
#include "machine/footprint.h"
#include "stream_helpers.h"

using namespace stream_test;

namespace {

StreamConfig tracking(HazardMode mode) {
  StreamConfig config = plain_config();
  config.hazards = mode;
  return config;
}

int block, other_block;  // their addresses stand for blocks of the card

Step touching(const char* name, bool write, uint64_t begin, uint64_t end,
              std::function<void()> work = {}, const void* of = &block) {
  Step s = step(Engine::H2D, name, 100, std::move(work));
  s.accesses.push_back({of, write, {{begin, end}}});
  return s;
}

}  // namespace

TEST(rt43_check_names_operations_streams_bytes_and_kind) {
  struct Case {
    bool first, second;
    const char* kind;
  };
  for (const Case& c :
       {Case{true, false, "RAW"}, Case{false, true, "WAR"}, Case{true, true, "WAW"}}) {
    TestDevice device(tracking(HazardMode::Check));
    device.submit(1, touching("first", c.first, 0, 256));
    const int64_t time = device.host_time_ns();
    const Hazard error =
        expect<Hazard>([&] { device.submit(2, touching("second", c.second, 128, 512)); });
    const std::string text = error.what();
    CHECK(contains(text, c.kind) && contains(text, "'first'") && contains(text, "'second'"));
    CHECK(contains(text, "stream 1") && contains(text, "stream 2"));
    CHECK(contains(text, "[128, 256)"));
    // Refused means: nothing happened, and both streams go on.
    CHECK_EQ(device.host_time_ns(), time);
    CHECK(device.query(2));
    device.submit(2, touching("elsewhere", true, 256, 512));
    device.submit(2, touching("another block", true, 0, 512, {}, &other_block));
    device.synchronize_all();
    device.submit(2, touching("second", c.second, 128, 512));  // the host has waited
    device.forget_block(&block);
    device.forget_block(&other_block);
  }
}

TEST(rt43_ordered_or_reading_steps_are_no_hazard) {
  TestDevice device(tracking(HazardMode::Check));
  device.submit(1, touching("write", true, 0, 512));
  EventPtr event = device.make_event();
  device.signal(1, event);
  device.wait(2, event);
  device.submit(2, touching("read", false, 0, 512));
  EventPtr second = device.make_event();
  device.signal(2, second);
  device.wait(3, second);
  device.submit(3, touching("read too", false, 0, 128));  // ordered through stream 2
  device.submit(2, touching("read again", false, 0, 128));
  // Both readers must be behind a new writer; one is not enough.
  device.wait(4, second);
  const Hazard error = expect<Hazard>([&] { device.submit(4, touching("write", true, 0, 64)); });
  CHECK(contains(error.what(), "WAR"));
  for (const StreamId reader : {2, 3}) {
    EventPtr done = device.make_event();
    device.signal(reader, done);
    device.wait(4, done);
  }
  device.submit(4, touching("write", true, 0, 512));
  CHECK_EQ(device.hazard_records(), size_t{1});  // everything before it is superseded
  device.forget_block(&block);
  CHECK_EQ(device.hazard_records(), size_t{0});
}

TEST(rt43_a_wait_submitted_before_its_signal_orders_what_comes_after_it) {
  TestDevice device(tracking(HazardMode::Check));
  EventPtr event = device.make_event();
  device.wait(2, event);
  device.submit(1, touching("write", true, 0, 128));
  expect<Hazard>([&] { device.submit(2, touching("early", false, 0, 128)); });
  device.signal(1, event);
  device.submit(2, touching("late", false, 0, 128));
  device.synchronize_all();
  device.forget_block(&block);
}

TEST(rt43_insert_adds_the_missing_edge) {
  for (int round = 0; round < 20; ++round) {
    TestDevice device(tracking(HazardMode::Insert));
    Gate gate;
    int value = 0, seen = -1;
    device.submit(1, touching("write", true, 0, 128, [&, hold = gate.waiter()] {
                    hold();
                    value = 42;
                  }));
    Step read = touching("read", false, 64, 128, [&] { seen = value; });
    read.engine = Engine::D2H;
    device.submit(2, std::move(read));
    gate.wait_entered();
    CHECK(!device.idle(2));
    gate.open();
    device.synchronize(2);
    CHECK_EQ(seen, 42);
    // Virtual time as well: the read starts where the write ends.
    CHECK_EQ(device.stream_time_ns(2), device.stream_time_ns(1) + 100);
    device.forget_block(&block);
  }
}

TEST(rt43_insert_hands_the_poison_of_a_failed_writer_on) {
  TestDevice device(tracking(HazardMode::Insert));
  Gate gate;
  device.submit(1, touching("write", true, 0, 128, [hold = gate.waiter()] {
                  hold();
                  throw std::runtime_error("kaput");
                }));
  Step read = touching("read", false, 0, 128);
  read.engine = Engine::D2H;
  device.submit(2, std::move(read));
  gate.open();
  const StreamFailure error = expect<StreamFailure>([&] { device.synchronize(2); });
  CHECK_EQ(error.origin, std::string("write"));
  device.reset(1);
  device.reset(2);
  device.submit(2, touching("read", false, 0, 128));
  device.synchronize(2);
  device.forget_block(&block);
}

TEST(rt43_footprints_are_exact) {
  using namespace openspyre::machine;
  const int64_t shape[] = {4, 100};
  const Layout layout = Layout::make(shape, Format::SEN169_FP16);  // [2, 4, 64]
  const auto of = [&](int64_t offset, std::vector<int64_t> sizes, std::vector<int64_t> strides) {
    std::string text;
    for (const Extent& e : footprint(layout, {offset, strides}, sizes))
      text += std::to_string(e.begin) + "-" + std::to_string(e.end) + " ";
    return text;
  };
  CHECK_EQ(of(0, {4, 100}, {100, 1}), "0-1024 ");
  CHECK_EQ(of(100, {1, 100}, {100, 1}), "128-256 640-712 ");  // row 1: a stick and 36 elements
  CHECK_EQ(of(0, {4, 2}, {100, 1}), "0-4 128-132 256-260 384-388 ");
  CHECK_EQ(of(2, {2, 4}, {1, 100}), "4-8 132-136 260-264 388-392 ");
  CHECK_EQ(of(5, {}, {}), "10-12 ");
  CHECK_EQ(of(5, {7}, {0}), "10-12 ");  // expanded
  CHECK_EQ(of(0, {0, 3}, {3, 1}), "");
}
