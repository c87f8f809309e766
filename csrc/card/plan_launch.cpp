// One launch: which slot, which steps on which streams, and what runs in them.
//
// With HostCompute and overlap, HostCompute and H2D go to stream 65 and the rest to the launching
// stream (runtime.md 2.2):
//
//   stream 65      HostCompute  [wait: slot free]  H2D  (ready)
//   launching                                      [wait: ready]  Compute  D2H  (done)
//
// "Slot free" is a soft wait: a launch that failed gives its slot back all the same.

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "card/plan.h"
#include "card/plan_internal.h"

namespace openspyre::card {

using machine::LaunchFault;
using machine::Program;
using machine::Window;

namespace {

constexpr size_t kTensorSegments = 5;
constexpr uint64_t kDynamicSegment = 6;

std::string hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llX", static_cast<unsigned long long>(value));
  return text;
}

StreamError code_of(LaunchFault::Kind kind) {
  switch (kind) {
    case LaunchFault::Kind::Address:
    case LaunchFault::Kind::Index:
    case LaunchFault::Kind::Unpatched:
      return StreamError::MemoryFault;
    case LaunchFault::Kind::Deadlock:
      return StreamError::Timeout;
    case LaunchFault::Kind::Stopped:
      return StreamError::Shutdown;
    case LaunchFault::Kind::Number:
      return StreamError::HardwareFault;
  }
  return StreamError::HardwareFault;
}

}  // namespace

void fill_blob(const PlanCorrection& correction, const std::vector<int64_t>& inputs, Bytes& blob) {
  for (const PlanPatch& patch : correction.patches) {
    const auto index = static_cast<size_t>(patch.symbol);
    const PlanCorrection::Symbol& symbol = correction.symbols[index];
    // Wraps at 64 bits like the registers that it is made for; the shift keeps the sign.
    const uint64_t number =
        static_cast<uint64_t>(inputs[index]) * static_cast<uint64_t>(symbol.scale) +
        static_cast<uint64_t>(symbol.offset);
    const uint64_t sum =
        number * static_cast<uint64_t>(patch.scale) + static_cast<uint64_t>(patch.addend);
    const uint64_t value =
        static_cast<uint64_t>(static_cast<int64_t>(sum) >> patch.shift) & patch.mask;
    for (int b = 0; b < patch.width; ++b)
      blob[patch.blob_offset + static_cast<size_t>(b)] =
          static_cast<std::byte>(value >> (8 * b) & 0xFF);
  }
}

// --- slots

size_t Plan::choose_slot(const std::vector<int64_t>& values, StreamId stream, bool* reuse) {
  const DeviceStreams& streams = *device_.streams;
  *reuse = false;
  for (size_t i = 0; i < slots_.size() && core_->prepares; ++i) {
    Slot& slot = *slots_[i];
    if (slot.values != values) continue;
    // Filled on a stream that this launch is not behind: its errors would become this stream's.
    if (slot.prep != stream && !(overlap_ && slot.prep == kFirstHostCompute)) continue;
    const bool over = slot.ready ? DeviceStreams::query(slot.ready) : streams.idle(slot.prep);
    if (over) {
      std::lock_guard<std::mutex> lock(slot.bytes->mutex);
      if (slot.bytes->filled != slot.bytes->wanted) continue;  // cancelled
    }
    *reuse = true;
    return i;
  }
  size_t oldest = 0;
  for (size_t i = 1; i < slots_.size(); ++i)
    if (slots_[i]->last_use < slots_[oldest]->last_use) oldest = i;
  return oldest;
}

void Plan::tell_allocator(StreamId stream) {
  if (slot_streams_.test(static_cast<size_t>(stream))) return;
  device_.memory->record_use(slot_block_, stream);
  slot_streams_.set(static_cast<size_t>(stream));
}

void Plan::start_slot(Launch& launch, StreamId prep) {
  Slot& slot = *launch.slot;
  slot.values.clear();  // until the filling is submitted whole
  slot.ready = nullptr;
  slot.ordered.reset();
  slot.prep = prep;
  launch.filling = ++slot.bytes->wanted;
}

// --- steps

void Plan::submit_host_compute(Launch& launch, size_t i, StreamId on) {
  const PlanStep& what = core_->spec.steps[i];
  auto blob = std::make_shared<Bytes>(static_cast<size_t>(what.size));
  std::shared_ptr<Bytes> input;
  if (!what.input.empty()) input = launch.memory->buffers.at(what.input);
  launch.memory->buffers[what.handle] = blob;
  Step step;
  step.engine = Engine::Host;
  step.name = what.name;
  step.cost_ns = what.cost_ns >= 0 ? what.cost_ns : device_.streams->cost().host_submit_ns;
  step.bytes = static_cast<int64_t>(what.size);
  step.may_run_inline = true;
  if (what.correction)
    step.work = [core = core_, i, blob, input, memory = launch.memory] {
      const PlanStep& what = core->spec.steps[i];
      const std::vector<int>& sources = core->sources[i];
      std::vector<int64_t> inputs(sources.size());
      for (size_t s = 0; s < sources.size(); ++s) {
        if (!input) {
          inputs[s] = memory->values[static_cast<size_t>(sources[s])];
        } else if (8 * (s + 1) <= input->size()) {
          std::memcpy(&inputs[s], input->data() + 8 * s, 8);
        } else {
          throw StreamFailure("its input '" + what.input + "' holds " +
                                  std::to_string(input->size()) + " bytes, too few for " +
                                  std::to_string(sources.size()) + " symbols",
                              StreamError::MemoryFault, what.name, core->device, 0);
        }
      }
      fill_blob(*what.correction, inputs, *blob);
    };
  device_.streams->submit(on, std::move(step));
  ++counters_.host_computes;
}

void Plan::submit_h2d(Launch& launch, size_t i, StreamId on) {
  const PlanStep& what = core_->spec.steps[i];
  Slot& slot = *launch.slot;
  Step step;
  step.engine = Engine::H2D;
  step.name = what.name;
  step.bytes = static_cast<int64_t>(what.size);
  step.cost_ns = what.cost_ns >= 0 ? what.cost_ns
                                   : device_.streams->cost().transfer_ns(Engine::H2D, step.bytes);
  step.may_run_inline = true;
  const uint64_t target = core_->targets[i];
  if (device_.streams->tracks_hazards()) {
    const uint64_t begin = slot.offset + target;
    step.accesses = {
        {slot_block_->token, true, {{begin, begin + std::max<uint64_t>(what.size, 1)}}}};
  }
  const bool last = std::none_of(core_->spec.steps.begin() + static_cast<ptrdiff_t>(i) + 1,
                                 core_->spec.steps.end(),
                                 [](const PlanStep& s) { return s.kind == Engine::H2D; });
  step.work = [core = core_, i, to = slot.memory ? slot.memory + target : nullptr,
               bytes = slot.bytes, filling = launch.filling, last,
               from = launch.memory->buffers.at(what.handle)] {
    const PlanStep& what = core->spec.steps[i];
    std::lock_guard<std::mutex> lock(bytes->mutex);
    if (to && from->size() < what.size)
      throw StreamFailure("its buffer '" + what.handle + "' holds " + std::to_string(from->size()) +
                              " of " + std::to_string(what.size) + " bytes",
                          StreamError::MemoryFault, what.name, core->device, 0);
    if (to) std::memcpy(to, from->data(), what.size);
    if (last) bytes->filled = filling;
  };
  device_.streams->submit(on, std::move(step));
  ++counters_.corrections;
}

namespace {

// Runs a decoded program on the card's bytes: reads its symbol table, turns addresses into places.
struct ComputeJob {
  const Program* program;
  const PlanStep* what;
  const LaunchMemory* memory;
  int device;
  StreamId stream;

  [[noreturn]] void fault(StreamError code, const std::string& text) const {
    throw StreamFailure("program " + program->name + ": " + text, code, what->name, device, stream);
  }

  Window place(uint64_t word, const LaunchMemory::Place& where, const std::string& who) const {
    if (word == machine::kUnpatched)
      fault(StreamError::MemoryFault,
            "unpatched symbol: the address of " + who + " still holds the sentinel " + hex(word) +
                ", an address in the segment that is never mapped. The plan has no HostCompute and "
                "H2D that write it");
    if (word < where.begin || word - where.begin >= where.size)
      fault(StreamError::MemoryFault, who + ": the address " + hex(word) +
                                          " lies outside its allocation at " + hex(where.begin) +
                                          " of " + std::to_string(where.size) + " bytes");
    const uint64_t skip = word - where.begin;
    return {where.host + skip, where.size - skip};
  }

  void run(const std::vector<uint64_t>& words, const Executor& executor) const {
    std::vector<Window> windows(program->operands.size());
    size_t argument = 0;
    const size_t arguments = program->arguments.size();
    for (size_t o = 0; o < windows.size(); ++o) {
      const machine::Operand& operand = program->operands[o];
      if (operand.role == machine::Role::Const) {
        const uint64_t skip = std::min(operand.offset, program->data_bytes);
        windows[o] = {
            memory->image + (what->program_ptr - kProgramBase) + program->data_offset + skip,
            program->data_bytes - skip};
      } else if (operand.role == machine::Role::Scratch) {
        windows[o] = place(words[arguments], memory->dynamic, "the dynamic region");
        const uint64_t skip = std::min(operand.offset, windows[o].bytes);
        windows[o] = {windows[o].base + skip, windows[o].bytes - skip};
      } else {
        const int number = what->args[argument];
        windows[o] = place(words[argument], memory->arguments[static_cast<size_t>(number)],
                           "argument " + std::to_string(number) + " ('" + operand.name + "')");
        ++argument;
      }
    }
    std::vector<int64_t> symbols;
    for (size_t s = 0; s < program->symbols.size(); ++s) {
      const machine::Symbol& symbol = program->symbols[s];
      const uint64_t word = words[arguments + (program->has_scratch ? 1 : 0) + s];
      if (word == machine::kUnpatched)
        fault(StreamError::MemoryFault,
              "unpatched symbol: " + symbol.name + " still holds the sentinel " + hex(word));
      const auto value = static_cast<int64_t>(word);
      if (symbol.kind != machine::SymbolKind::Float &&
          (value < symbol.minimum || value > symbol.maximum))
        fault(StreamError::HardwareFault, "symbol " + symbol.name + " is " + std::to_string(value) +
                                              ", outside " + std::to_string(symbol.minimum) + ".." +
                                              std::to_string(symbol.maximum));
      symbols.push_back(symbol.kind == machine::SymbolKind::Float ? value & 0xFFFFFFFF : value);
    }
    machine::Launch launch;
    launch.operands = windows;
    launch.symbols = symbols;
    launch.numerics = memory->numerics;
    try {
      executor(*program, launch);
    } catch (const LaunchFault& error) {
      fault(code_of(error.kind), error.what());
    }
  }
};

}  // namespace

void Plan::submit_compute(Launch& launch, size_t i) {
  const PlanStep& what = core_->spec.steps[i];
  const Program& program = *core_->programs[i];
  Step step;
  step.engine = Engine::Compute;
  step.name = what.name;
  step.sources = what.sources;
  step.cost_ns = what.cost_ns >= 0 ? what.cost_ns : launch.request.costs.at(launch.computes);
  if (device_.streams->tracks_hazards()) {
    for (size_t a = 0; a < what.args.size(); ++a) {
      const LaunchArgument& argument = launch.request.arguments[static_cast<size_t>(what.args[a])];
      const machine::Role role = program.operands[static_cast<size_t>(program.arguments[a])].role;
      if (role != machine::Role::Out)
        step.accesses.push_back({argument.block->token, false, argument.footprint});
      if (role != machine::Role::In)
        step.accesses.push_back({argument.block->token, true, argument.footprint});
    }
    step.accesses.push_back({launch.image->token, false, {{0, launch.image->size}}});
    if (launch.slot)
      step.accesses.push_back({slot_block_->token,
                               false,
                               {{launch.slot->offset, launch.slot->offset + core_->slot_bytes}}});
    if (launch.dynamic && program.has_scratch)
      step.accesses.push_back({launch.dynamic->token, true, {{0, launch.dynamic->size}}});
  }
  if (launch.image->host) {
    Slot* slot = launch.slot;
    step.work = [core = core_, i, memory = launch.memory, stream = launch.request.stream,
                 slot_memory = slot ? slot->memory : nullptr, bytes = slot ? slot->bytes : nullptr,
                 filling = slot ? slot->bytes->wanted : 0] {
      const Program& program = *core->programs[i];
      const ComputeJob job{&program, &core->spec.steps[i], memory.get(), core->device, stream};
      std::vector<uint64_t> words(core->words[i].size());
      {
        std::unique_lock<std::mutex> lock;
        if (bytes) {
          lock = std::unique_lock<std::mutex>(bytes->mutex);
          if (bytes->filled != filling)
            job.fault(StreamError::Shutdown,
                      "its correction slot was given to another launch after a reset");
        }
        for (size_t w = 0; w < words.size(); ++w) {
          const Core::Word& word = core->words[i][w];
          std::memcpy(&words[w], (word.in_slot ? slot_memory : memory->image) + word.offset, 8);
        }
      }
      job.run(words, core->executor);
    };
  }
  device_.streams->submit(launch.request.stream, std::move(step));
  ++launch.computes;
  ++counters_.computes;
}

void Plan::submit_d2h(Launch& launch, size_t i) {
  const PlanStep& what = core_->spec.steps[i];
  auto buffer = std::make_shared<Bytes>(static_cast<size_t>(what.size));
  launch.memory->buffers[what.handle] = buffer;
  const auto [segment, offset] = split_dmva(what.dev_ptr);
  const bool tensor = segment != kProgramSegment;
  const std::byte* from = nullptr;
  Step step;
  if (tensor) {
    const LaunchArgument& argument = launch.request.arguments[segment];
    const uint64_t begin = argument.offset + offset;
    if (argument.block->host) from = argument.block->host + begin;
    if (device_.streams->tracks_hazards())
      step.accesses = {{argument.block->token, false, {{begin, begin + what.size}}}};
  } else if (launch.memory->image) {
    from = launch.memory->image + offset;
  }
  step.engine = Engine::D2H;
  step.name = what.name;
  step.bytes = static_cast<int64_t>(what.size);
  step.cost_ns = what.cost_ns >= 0 ? what.cost_ns
                                   : device_.streams->cost().transfer_ns(Engine::D2H, step.bytes);
  // What H2D steps of this launch wrote over the image lies in the slot.
  struct Patch {
    uint64_t in_buffer, in_slot, size;
  };
  std::vector<Patch> patches;
  for (size_t j = 0; j < i && launch.slot && !tensor; ++j) {
    const PlanStep& move = core_->spec.steps[j];
    if (move.kind != Engine::H2D) continue;
    const uint64_t begin = std::max(move.dev_ptr, what.dev_ptr);
    const uint64_t end = std::min(move.dev_ptr + move.size, what.dev_ptr + what.size);
    if (begin < end)
      patches.push_back(
          {begin - what.dev_ptr, core_->targets[j] + (begin - move.dev_ptr), end - begin});
  }
  if (device_.streams->tracks_hazards() && !tensor) {
    step.accesses = {{launch.image->token, false, {{offset, offset + what.size}}}};
    if (!patches.empty())
      step.accesses.push_back({slot_block_->token,
                               false,
                               {{launch.slot->offset, launch.slot->offset + core_->slot_bytes}}});
  }
  launch.reads_slot |= !patches.empty();
  Slot* slot = patches.empty() ? nullptr : launch.slot;
  step.work = [from, buffer, handle = what.handle, results = results_, core = core_, i,
               stream = launch.request.stream, patches = std::move(patches),
               slot_memory = slot ? slot->memory : nullptr, bytes = slot ? slot->bytes : nullptr,
               filling = slot ? slot->bytes->wanted : 0] {
    if (from) std::memcpy(buffer->data(), from, buffer->size());
    if (slot_memory) {
      std::lock_guard<std::mutex> lock(bytes->mutex);
      if (bytes->filled != filling)
        throw StreamFailure("its correction slot was given to another launch after a reset",
                            StreamError::Shutdown, core->spec.steps[i].name, core->device, stream);
      for (const Patch& patch : patches)
        std::memcpy(buffer->data() + patch.in_buffer, slot_memory + patch.in_slot, patch.size);
    }
    std::lock_guard<std::mutex> lock(results->mutex);
    results->by_handle[handle] = *buffer;
  };
  device_.streams->submit(launch.request.stream, std::move(step));
}

// --- the launch

void Plan::submit_steps(Launch& launch) {
  DeviceStreams& streams = *device_.streams;
  const StreamId stream = launch.request.stream;
  const auto& steps = core_->spec.steps;
  StreamId prep = stream;
  // A preparation stream in error is its owner's to reset: meanwhile launches prepare themselves.
  if (core_->prepares && overlap_ &&
      streams.stream_error(kFirstHostCompute) == StreamError::Success)
    prep = kFirstHostCompute;
  Slot* slot = launch.slot;
  if (slot && !launch.reuse) {
    tell_allocator(prep);
    start_slot(launch, prep);
  }
  if (slot) tell_allocator(stream);
  bool fresh_slot = slot != nullptr, ready_due = slot != nullptr;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool preparing = role_of(i) == StreamRole::Prep || steps[i].kind == Engine::H2D;
    if (preparing) {
      if (launch.reuse) continue;
      if (steps[i].kind == Engine::Host) {
        submit_host_compute(launch, i, prep);
        continue;
      }
      if (std::exchange(fresh_slot, false)) {
        for (const auto& [user, done] : slot->users)
          if (user != prep) streams.wait(prep, done, /*soft=*/true);
        slot->users.clear();
      }
      submit_h2d(launch, i, prep);
      continue;
    }
    if (std::exchange(ready_due, false)) {
      if (!launch.reuse && core_->prepares) {
        if (prep != stream) {
          slot->ready = streams.make_event();
          streams.signal(prep, slot->ready);
        }
        slot->values = launch.memory->values;
      }
      if (slot->ready && !slot->ordered.test(static_cast<size_t>(stream))) {
        streams.wait(stream, slot->ready);
        slot->ordered.set(static_cast<size_t>(stream));
      }
    }
    if (steps[i].kind == Engine::Compute)
      submit_compute(launch, i);
    else
      submit_d2h(launch, i);
  }
}

void Plan::launch(const LaunchRequest& request) {
  const auto& steps = core_->spec.steps;
  const auto arguments = static_cast<size_t>(core_->arguments);
  if (request.arguments.size() != arguments || request.symbols.size() != core_->symbols.size())
    throw LaunchError("plan '" + core_->spec.name + "' takes " + std::to_string(arguments) +
                      " tensors, not " + std::to_string(request.arguments.size()));
  DeviceStreams& streams = *device_.streams;
  DeviceMemory& memory = *device_.memory;

  auto shared = std::make_shared<LaunchMemory>();
  shared->numerics = request.numerics;
  shared->values.reserve(arguments + 1 + request.symbols.size());
  uint32_t regions[kTensorSegments];
  size_t mapped = 0;
  for (size_t a = 0; a < arguments; ++a) {
    const Block& block = *request.arguments[a].block;
    size_t segment = 0;
    while (segment < mapped && regions[segment] != block.region) ++segment;
    if (segment == kTensorSegments)
      throw LaunchError("plan '" + core_->spec.name +
                        "': its tensors lie in more than five memory regions of the card, and a "
                        "launch maps five (segments 1 to 5); tensor " +
                        std::to_string(a) +
                        " is in the sixth. Allocate tensors that are used "
                        "together together, or copy some of them");
    if (segment == mapped) regions[mapped++] = block.region;
    const uint64_t begin = dmva(segment + 1, block.offset);
    shared->arguments.push_back({begin, block.size, block.host});
    shared->values.push_back(static_cast<int64_t>(begin + request.arguments[a].offset));
  }
  for (const PlanStep& step : steps) {
    if (step.kind != Engine::D2H) continue;
    const auto [segment, offset] = split_dmva(step.dev_ptr);
    if (segment == kProgramSegment) continue;
    if (segment >= arguments)
      throw LaunchError("step '" + step.name + "' reads launch argument " +
                        std::to_string(segment) + ", which is out of range: there are " +
                        std::to_string(arguments));
    const LaunchArgument& argument = request.arguments[segment];
    const uint64_t span = argument.span ? argument.span : argument.block->size - argument.offset;
    if (offset > span || step.size > span - offset)
      throw LaunchError("step '" + step.name + "' reads bytes " + std::to_string(offset) + " to " +
                        std::to_string(offset + step.size) + " of launch argument " +
                        std::to_string(segment) + ", which is out of bounds: it has " +
                        std::to_string(span));
  }
  // Refused before anything is submitted, elsewhere too.
  if (streams.stream_error(request.stream) != StreamError::Success) streams.query(request.stream);

  std::lock_guard<std::mutex> lock(mutex_);
  Launch launch{request, shared};
  const Image::Pin pin = image_->pin(request.stream, &launch.image);
  shared->image = launch.image->host;
  struct DynamicRegion {  // given back in stream order, whatever happens
    Device& device;
    Block* block = nullptr;
    ~DynamicRegion() {
      if (!block) return;
      device.streams->forget_block(block->token);
      device.memory->free(block);
    }
  } dynamic{device_};
  if (core_->spec.dynamic_size > 0) {
    const uint64_t bytes = core_->spec.dynamic_size;
    launch.dynamic = dynamic.block =
        memory.allocate(bytes, bytes, request.stream, MemoryType::ProgramDynamic);
    shared->dynamic = {dmva(kDynamicSegment, dynamic.block->offset), dynamic.block->size,
                       dynamic.block->host};
  }
  shared->values.push_back(static_cast<int64_t>(shared->dynamic.begin));
  shared->values.insert(shared->values.end(), request.symbols.begin(), request.symbols.end());
  for (const LaunchArgument& argument : request.arguments)
    if (argument.block->stream != request.stream) memory.record_use(argument.block, request.stream);

  if (!slots_.empty()) {
    launch.slot = slots_[choose_slot(shared->values, request.stream, &launch.reuse)].get();
    launch.slot->last_use = static_cast<uint64_t>(counters_.launches) + 1;
  }
  ++counters_.launches;
  counters_.reused += launch.reuse;
  const auto note_use = [&] {
    if (!launch.slot || (launch.computes == 0 && !launch.reads_slot)) return;
    EventPtr done = streams.make_event();
    streams.signal(request.stream, done);
    for (auto& [user, event] : launch.slot->users)
      if (user == request.stream) {
        event = std::move(done);
        return;
      }
    launch.slot->users.emplace_back(request.stream, std::move(done));
  };
  try {
    submit_steps(launch);
  } catch (...) {
    note_use();
    throw;
  }
  note_use();
}

}  // namespace openspyre::card
