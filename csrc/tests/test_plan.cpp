// Plans: streams of a launch, correction slots, images, errors. The programs are empty; an executor
// of the tests stands in for them where bits matter.

#include <thread>

#include "plan_helpers.h"

using namespace plan_test;

namespace {

int64_t program_bytes(const Device& device) { return device.memory->stats().program_bytes.current; }

struct Times {
  int64_t total;
  std::vector<float> results;
};

// Four launches with different tensors: host 0.5, transfer 0.2, compute 1.0 ms.
Times overlap(int slots, int overlap) {
  auto device = make_device();
  PlanSpec spec = plan_of(ImageWriter::program("p", "io"), "io");
  spec.slots = slots;
  spec.overlap = overlap;
  for (ImageInit& init : spec.inits) (void)init;
  Plan plan(*device, spec, 0, &add_number);
  device->streams->synchronize_all();
  const int64_t start = device->streams->device_time_ns();
  std::vector<std::unique_ptr<Stick>> in, out;
  for (int i = 0; i < 4; ++i) {
    in.push_back(std::make_unique<Stick>(*device));
    out.push_back(std::make_unique<Stick>(*device));
    in.back()->fill(static_cast<float>(i));
    plan.launch(request(0, {in.back().get(), out.back().get()}));
  }
  device->streams->synchronize_all();
  Times times{device->streams->device_time_ns() - start, {}};
  for (const auto& tensor : out) times.results.push_back(tensor->get());
  return times;
}

}  // namespace

TEST(rt42_slots_let_launches_overlap_on_the_virtual_clock) {
  const Times serial = overlap(2, 0), one = overlap(1, 1), two = overlap(2, 1);
  CHECK_EQ(serial.total, 6800000);
  CHECK_EQ(one.total, 5300000);
  CHECK_EQ(two.total, 4700000);
  CHECK(serial.results == one.results && one.results == two.results);
  for (int i = 0; i < 4; ++i) CHECK_EQ(one.results[static_cast<size_t>(i)], 1.0f + i);
}

TEST(rt67_equal_symbols_need_no_host_work) {
  auto device = make_device();
  Plan plan(*device, plan_of(ImageWriter::program("p", "io"), "io"), 0, &add_number);
  const Stick in(*device), out(*device), other(*device);
  for (int i = 0; i < 10; ++i) plan.launch(request(0, {&in, &out}));
  CHECK_EQ(plan.counters().host_computes, 1);
  CHECK_EQ(plan.counters().corrections, 1);
  CHECK_EQ(plan.counters().reused, 9);
  // Two slots hold two vectors; a third turns out the one that was used longest ago.
  plan.launch(request(0, {&in, &other}));
  plan.launch(request(0, {&in, &out}));
  CHECK_EQ(plan.counters().host_computes, 2);
  plan.launch(request(0, {&other, &out}));
  plan.launch(request(0, {&in, &out}));
  CHECK_EQ(plan.counters().host_computes, 3);
  plan.launch(request(0, {&in, &other}));
  CHECK_EQ(plan.counters().host_computes, 4);
  device->streams->synchronize_all();
  CHECK_EQ(plan.counters().computes, 15);
}

TEST(rt63_two_threads_launch_one_plan_on_two_streams) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io", {"n"});
  Plan plan(*device, plan_of(image, "io", {"n"}), 0, &add_number);
  std::atomic<int> wrong{0};
  const auto work = [&](StreamId stream) {
    std::vector<std::unique_ptr<Stick>> in, out;
    for (int i = 0; i < 8; ++i) {
      in.push_back(std::make_unique<Stick>(*device, stream));
      out.push_back(std::make_unique<Stick>(*device, stream));
    }
    for (int round = 0; round < 125; ++round) {
      for (int i = 0; i < 8; ++i) {
        const auto at = static_cast<size_t>(i);
        in[at]->fill(static_cast<float>(1000 * stream + 8 * round + i));
        plan.launch(request(stream, {in[at].get(), out[at].get()}, {stream}));
      }
      device->streams->synchronize(stream);
      for (int i = 0; i < 8; ++i)
        wrong += out[static_cast<size_t>(i)]->get(i) !=
                 static_cast<float>(1000 * stream + 8 * round + i + stream);
    }
  };
  std::thread first(work, 1), second(work, 2);
  first.join();
  second.join();
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(plan.counters().launches, 2000);
}

TEST(rt66_unpatched_symbols_trap_and_other_streams_go_on) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io");
  Plan bare(*device, plan_of(image, "io", {}, /*correct=*/false), 0, &add_number);
  Plan plan(*device, plan_of(image, "io"), 0, &add_number);
  Stick in(*device, 1), out(*device, 1);
  in.fill(4);
  bare.launch(request(2, {&in, &out}));
  const auto failure = expect<StreamFailure>([&] { device->streams->synchronize(2); });
  CHECK(failure.code == StreamError::MemoryFault);
  CHECK(contains(failure.what(), "unpatched symbol"));
  CHECK(contains(failure.what(), "0x3BAD5BAD5"));
  CHECK_THROWS(plan.launch(request(2, {&in, &out})), StreamFailure);
  plan.launch(request(1, {&in, &out}));
  device->streams->synchronize(1);
  CHECK_EQ(out.get(), 5.0f);
}

TEST(a_launch_that_fails_gives_its_slot_back) {
  auto device = make_device();
  PlanSpec spec = plan_of(ImageWriter::program("p", "io"), "io");
  spec.slots = 1;
  std::atomic<bool> fail{true};
  Plan plan(*device, spec, 0, [&](const machine::Program& p, const machine::Launch& l) {
    if (fail.exchange(false))
      throw machine::LaunchFault(machine::LaunchFault::Kind::Deadlock, "on purpose");
    return add_number(p, l);
  });
  const Stick in(*device), out(*device), other(*device);
  plan.launch(request(1, {&in, &out}));
  plan.launch(request(2, {&in, &other}));  // needs the slot of the first
  const auto failure = expect<StreamFailure>([&] { device->streams->synchronize(1); });
  CHECK(failure.code == StreamError::Timeout);
  device->streams->synchronize(2);
  device->streams->synchronize(kFirstHostCompute);
  plan.launch(request(2, {&in, &out}));
  device->streams->synchronize(2);
}

TEST(a_failed_preparation_stream_does_not_stop_other_streams) {
  auto device = make_device();
  Plan plan(*device, plan_of(ImageWriter::program("p", "io"), "io"), 0, &add_number);
  Stick in(*device), out(*device), other(*device);
  in.fill(1);
  FaultPlan faults;
  faults.nth = 0;
  faults.name_contains = "host";
  device->streams->inject_faults(faults);
  const auto launch_and_wait = [&] {  // a preparation run on this thread fails in the launch
    plan.launch(request(1, {&in, &out}));
    device->streams->synchronize(1);
  };
  CHECK_THROWS((launch_and_wait(), 0), StreamFailure);
  device->streams->inject_faults(std::nullopt);
  for (int i = 0; i < 3; ++i) plan.launch(request(2, {&in, &other}));
  plan.launch(request(2, {&in, &out}));
  device->streams->synchronize(2);
  CHECK_EQ(other.get(), 2.0f);
  CHECK_EQ(out.get(), 2.0f);
  device->streams->reset(kFirstHostCompute);
  plan.launch(request(3, {&in, &other}));
  device->streams->synchronize(3);
}

TEST(rt51_a_launch_on_another_stream_runs_behind_the_load) {
  auto device = make_device();
  Gate gate;
  device->streams->submit(1, step(Engine::H2D, "busy", 100, gate.waiter()));
  Plan plan(*device, plan_of(ImageWriter::program("p", "io"), "io"), 1, &add_number);
  Stick in(*device), out(*device);
  in.fill(6);
  plan.launch(request(2, {&in, &out}));
  CHECK(!device->streams->query(2));
  gate.open();
  device->streams->synchronize(2);
  CHECK_EQ(out.get(), 7.0f);
}

TEST(rt25_plans_share_images_and_leave_nothing_behind) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io");
  CHECK_EQ(program_bytes(*device), 0);
  {
    Plan first(*device, plan_of(image, "io"), 0);
    const int64_t one = program_bytes(*device);
    Plan second(*device, plan_of(image, "io"), 0);
    CHECK_EQ(program_bytes(*device) - one, 2 * 128);  // its own two slots
    CHECK_EQ(Images::get().list(*device).size(), size_t{1});
    CHECK_EQ(Images::get().list(*device)[0].plans, 2);
  }
  const Stick in(*device), out(*device);
  for (int i = 0; i < 1000; ++i) {
    Plan plan(*device, plan_of(image, "io"), 0, &add_number);
    if (i % 10 == 0) plan.launch(request(i % 3, {&in, &out}));
  }
  device->streams->synchronize_all();
  CHECK_EQ(program_bytes(*device), 0);
  CHECK(Images::get().list(*device).empty());
  device->memory->check_invariants();
}

TEST(rt52_a_refused_plan_changes_nothing) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io");
  PlanSpec good = plan_of(image, "io");
  std::vector<PlanSpec> bad(6, good);
  bad[0].steps[0].correction->checksum ^= 1;
  std::swap(bad[1].steps[0], bad[1].steps[2]);
  bad[2].steps[2].args = {0};
  bad[3].steps[2].program_ptr += 128;
  bad[4].steps[1].size = 1 << 20;
  bad[5].inits[0].dev_ptr += 1 << 20;
  for (PlanSpec& spec : bad) {
    bool refused = false;
    try {
      Plan plan(*device, spec, 0);
    } catch (const std::invalid_argument&) {
      refused = true;
    } catch (const machine::FormatError&) {
      refused = true;
    }
    CHECK(refused);
  }
  PlanSpec large = good;
  large.static_size = 32 * kMiB;
  CHECK_THROWS(Plan(*device, large, 0), OutOfMemory);
  CHECK_EQ(program_bytes(*device), 0);
  CHECK_EQ(device->memory->stats().program_allocation.current, 0);
  CHECK(device->streams->used_streams().empty());
  CHECK(Images::get().list(*device).empty());
}

TEST(rt64_symbols_in_another_order_are_refused) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io", {"n", "m"});
  PlanSpec spec = plan_of(image, "io", {"n", "m"});
  std::swap(spec.steps[0].correction->symbols[2], spec.steps[0].correction->symbols[3]);
  const auto error = expect<std::invalid_argument>([&] { Plan(*device, spec, 0); });
  CHECK(contains(error.what(), "another symbol into word 2"));
  PlanSpec made_for_another = plan_of(image, "io", {"m", "n"});
  const auto other = expect<std::invalid_argument>([&] { Plan(*device, made_for_another, 0); });
  CHECK(contains(other.what(), "checksum"));
}

TEST(rt69_the_dynamic_region_lives_for_one_launch) {
  auto device = make_device();
  PlanSpec spec = plan_of(ImageWriter::program("p", "io"), "io");
  spec.dynamic_size = 64 << 10;
  Plan plan(*device, spec, 0, &add_number);
  const int64_t before = program_bytes(*device);
  const Stick in(*device), out(*device);
  Gate gate;
  device->streams->submit(1, step(Engine::Compute, "busy", 1, gate.waiter()));
  plan.launch(request(1, {&in, &out}));
  CHECK_EQ(device->memory->stats().program_bytes.peak, before + (64 << 10));
  CHECK_EQ(program_bytes(*device), before);
  // Its place is for its own stream at once, for others when the launch has run.
  Block* mine = device->memory->allocate(64 << 10, 64 << 10, 1, MemoryType::ProgramDynamic);
  Block* theirs = device->memory->allocate(64 << 10, 64 << 10, 2, MemoryType::ProgramDynamic);
  CHECK_EQ(mine->offset, 0u);
  CHECK(theirs->offset != 0);
  device->memory->free(mine);
  device->memory->free(theirs);
  gate.open();
  device->streams->synchronize_all();
}

TEST(images_are_evicted_under_pressure_and_come_back) {
  auto device = make_device(2 * kMiB, kMiB);
  const auto image = ImageWriter::program("p", "io");
  PlanSpec spec = plan_of(image, "io");
  spec.static_size = 256 << 10;
  Plan plan(*device, spec, 0, &add_number);
  Stick in(*device), out(*device);
  in.fill(1);
  plan.launch(request(0, {&in, &out}));
  CHECK(plan.resident());
  device->streams->synchronize_all();
  // Fill the card: the image's memory goes to tensors.
  std::vector<Block*> blocks;
  try {
    for (;;) blocks.push_back(device->memory->allocate(128 << 10, 128 << 10, 0));
  } catch (const OutOfMemory&) {
  }
  CHECK(!plan.resident());
  CHECK_EQ(Images::get().list(*device)[0].evictions, 1);
  CHECK_THROWS(plan.launch(request(0, {&in, &out})), OutOfMemory);
  for (Block* block : blocks) device->memory->free(block);
  in.fill(2);
  plan.launch(request(3, {&in, &out}));
  device->streams->synchronize_all();
  CHECK(plan.resident());
  CHECK_EQ(Images::get().list(*device)[0].loads, 2);
  CHECK_EQ(out.get(), 3.0f);
}

TEST(a_budget_keeps_the_images_launched_last) {
  auto device = make_device();
  std::vector<std::unique_ptr<Plan>> plans;
  for (int i = 0; i < 4; ++i) {
    PlanSpec spec = plan_of(ImageWriter::program("p", "io"), "io", {}, true, std::to_string(i));
    spec.static_size = 64 << 10;
    plans.push_back(std::make_unique<Plan>(*device, spec, 0, &add_number));
  }
  const Stick in(*device), out(*device);
  plans[0]->launch(request(0, {&in, &out}));
  Images::get().keep_within(*device, 128 << 10);
  CHECK(plans[0]->resident() && plans[3]->resident());
  CHECK(!plans[1]->resident() && !plans[2]->resident());
  device->streams->synchronize_all();
}

TEST(a_load_that_failed_is_tried_again) {
  auto device = make_device();
  FaultPlan faults;
  faults.nth = 0;
  faults.name_contains = "program image";
  device->streams->inject_faults(faults);
  Plan plan(*device, plan_of(ImageWriter::program("p", "io"), "io"), 1, &add_number);
  device->streams->inject_faults(std::nullopt);
  CHECK_THROWS(device->streams->synchronize(1), StreamFailure);
  Stick in(*device), out(*device);
  in.fill(1);
  plan.launch(request(2, {&in, &out}));
  device->streams->synchronize(2);
  CHECK_EQ(out.get(), 2.0f);
}

TEST(threads_prepare_launch_and_evict_at_once) {
  auto device = make_device();
  const auto image = ImageWriter::program("p", "io");
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::thread evictor([&] {
    while (!stop) {
      Images::get().evict(*device);
      Images::get().list(*device);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> workers;
  for (int t = 1; t <= 3; ++t)
    workers.emplace_back([&, t] {
      Stick in(*device, t), out(*device, t);
      for (int i = 0; i < 60; ++i) {
        Plan plan(*device, plan_of(image, "io"), t, &add_number);
        in.fill(static_cast<float>(t + i));
        for (int k = 0; k < 3; ++k) plan.launch(request(t, {&in, &out}));
        device->streams->synchronize(t);
        wrong += out.get() != static_cast<float>(t + i + 1);
      }
    });
  for (std::thread& worker : workers) worker.join();
  stop = true;
  evictor.join();
  CHECK_EQ(wrong.load(), 0);
  device->streams->synchronize_all();
  device->memory->poll_pending_frees();
  CHECK_EQ(program_bytes(*device), 0);
}

TEST(rt63_a_reset_in_the_middle_never_mixes_launches) {
  auto device = make_device();
  PlanSpec spec = plan_of(ImageWriter::program("p", "io"), "io");
  spec.slots = 1;
  Plan plan(*device, spec, 0, &add_number);
  std::vector<std::unique_ptr<Stick>> in, out;
  for (int i = 0; i < 4; ++i) {
    in.push_back(std::make_unique<Stick>(*device));
    out.push_back(std::make_unique<Stick>(*device));
    in.back()->fill(static_cast<float>(10 * i));
  }
  for (int round = 0; round < 200; ++round) {
    for (size_t i = 0; i < 4; ++i) {
      try {
        plan.launch(request(1 + round % 2, {in[i].get(), out[i].get()}));
      } catch (const StreamFailure&) {
      }
    }
    device->streams->reset(1 + round % 2);
  }
  device->streams->synchronize(kFirstHostCompute);
  for (size_t i = 0; i < 4; ++i) plan.launch(request(3, {in[i].get(), out[i].get()}));
  device->streams->synchronize(3);
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(out[i]->get(), 10.0f * static_cast<float>(i) + 1);
}
