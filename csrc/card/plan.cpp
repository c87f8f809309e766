// Preparation: a description becomes a plan, or an error before anything has changed.

#include "card/plan.h"

#include <algorithm>
#include <stdexcept>

#include "card/plan_internal.h"
#include "card/step_order.h"

namespace openspyre::card {

using machine::Program;

namespace {

[[noreturn]] void refuse(const std::string& text) { throw std::invalid_argument(text); }

std::string at(size_t step, const PlanStep& what) {
  return "step " + std::to_string(step) + " (" + engine_name(what.kind) + " '" + what.name + "')";
}

PlanSymbol::Kind kind_of(machine::SymbolKind kind) {
  switch (kind) {
    case machine::SymbolKind::Dimension:
      return PlanSymbol::Kind::Dimension;
    case machine::SymbolKind::Int:
      return PlanSymbol::Kind::Int;
    case machine::SymbolKind::Float:
      return PlanSymbol::Kind::Float;
  }
  return PlanSymbol::Kind::Int;
}

}  // namespace

// --- the parts that never change

void Plan::Core::decode() {
  programs.resize(spec.steps.size());
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const PlanStep& step = spec.steps[i];
    if (step.kind != Engine::Compute) continue;
    for (size_t j = 0; j < i && !programs[i]; ++j)
      if (programs[j] && spec.steps[j].program_ptr == step.program_ptr) programs[i] = programs[j];
    for (const ImageInit& init : spec.inits) {
      if (programs[i] || step.program_ptr < init.dev_ptr ||
          step.program_ptr - init.dev_ptr >= init.data->size())
        continue;
      const uint64_t skip = step.program_ptr - init.dev_ptr;
      programs[i] = machine::decode_program(init.data->data() + skip, init.data->size() - skip);
    }
    if (!programs[i]) refuse(at(i, step) + ": no InitTransfer puts an image at its job_bin_ptr");
    const Program& program = *programs[i];
    if (step.args.size() != program.arguments.size())
      refuse(at(i, step) + ": it passes " + std::to_string(step.args.size()) +
             " arguments, its program takes " + std::to_string(program.arguments.size()));
    for (const int argument : step.args) {
      if (argument < 0 || argument > 4095)
        refuse(at(i, step) + ": launch argument " + std::to_string(argument) + " cannot be");
      arguments = std::max(arguments, argument + 1);
    }
  }
}

int Plan::Core::value_of(const PlanSymbol& symbol) const {
  if (symbol.kind == PlanSymbol::Kind::Address)
    return symbol.argument >= 0 && symbol.argument < arguments ? symbol.argument : -1;
  if (symbol.kind == PlanSymbol::Kind::Dynamic) return static_cast<int>(dynamic_value());
  for (size_t i = 0; i < symbols.size(); ++i)
    if (symbols[i].same(symbol)) return static_cast<int>(first_symbol() + i);
  return -1;
}

void Plan::Core::collect_symbols() {
  const auto add = [&](PlanSymbol symbol) {
    for (size_t i = 0; i < symbols.size(); ++i)
      if (symbols[i].same(symbol)) return static_cast<int>(i);
    symbols.push_back(std::move(symbol));
    return static_cast<int>(symbols.size()) - 1;
  };
  places.resize(spec.steps.size());
  sources.resize(spec.steps.size());
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const PlanStep& step = spec.steps[i];
    if (!programs[i]) continue;
    for (const machine::Symbol& symbol : programs[i]->symbols) {
      PlanSymbol wanted{kind_of(symbol.kind), -1, -1, symbol.name};
      if (symbol.kind == machine::SymbolKind::Dimension) {
        if (symbol.argument < 0 || static_cast<size_t>(symbol.argument) >= step.args.size() ||
            symbol.dim < 0)
          refuse(at(i, step) + ": symbol " + symbol.name + " is the size of no argument's dim");
        wanted.argument = step.args[static_cast<size_t>(symbol.argument)];
        wanted.dim = static_cast<int>(symbol.dim);
      }
      places[i].push_back(add(std::move(wanted)));
    }
  }
  for (const PlanStep& step : spec.steps)
    if (step.correction)
      for (const PlanCorrection::Symbol& symbol : step.correction->symbols)
        if (symbol.what.kind >= PlanSymbol::Kind::Dimension) add(symbol.what);
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const PlanStep& step = spec.steps[i];
    if (!step.correction) continue;
    for (const PlanCorrection::Symbol& symbol : step.correction->symbols) {
      const int value = value_of(symbol.what);
      if (value < 0)
        refuse(at(i, step) + ": a correction symbol names launch argument " +
               std::to_string(symbol.what.argument) + " of " + std::to_string(arguments));
      sources[i].push_back(value);
    }
  }
}

void Plan::Core::check_order() const {
  std::vector<Engine> kinds;
  std::vector<StreamRole> roles;
  for (const PlanStep& step : spec.steps) {
    kinds.push_back(step.kind);
    const bool prep = prepares && (step.kind == Engine::Host || step.kind == Engine::H2D);
    if (prep && !roles.empty() && roles.back() == StreamRole::Dev)
      refuse(at(roles.size(), step) +
             " comes after work of the card: preparation (HostCompute, H2D) stands first");
    roles.push_back(prep ? StreamRole::Prep : StreamRole::Dev);
  }
  if (const std::string wrong = check_step_ordering(kinds, roles); !wrong.empty()) refuse(wrong);
}

void Plan::Core::place_transfers() {
  targets.resize(spec.steps.size());
  std::vector<std::string> handles;
  const auto known = [&](const std::string& handle) {
    return std::find(handles.begin(), handles.end(), handle) != handles.end();
  };
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    const PlanStep& step = spec.steps[i];
    if (step.kind == Engine::Host) {
      if (known(step.handle)) refuse(at(i, step) + ": handle '" + step.handle + "' exists");
      if (!step.input.empty() && !known(step.input))
        refuse(at(i, step) + ": no earlier step makes its input '" + step.input + "'");
      if (step.size > spec.static_size)
        refuse(at(i, step) + ": its blob is larger than the allocation");
      handles.push_back(step.handle);
      check_correction(i);
    } else if (step.kind == Engine::H2D) {
      if (!known(step.handle))
        refuse(at(i, step) + ": no earlier step makes its buffer '" + step.handle + "'");
      if (step.dev_ptr < kProgramBase || step.dev_ptr - kProgramBase > spec.static_size ||
          step.size > spec.static_size - (step.dev_ptr - kProgramBase))
        refuse(at(i, step) + ": its target is outside the allocation");
      targets[i] = slot_bytes;
      slot_bytes += round_up_block(step.size);
    } else if (step.kind == Engine::D2H) {
      if (known(step.handle)) refuse(at(i, step) + ": handle '" + step.handle + "' exists");
      const auto [segment, offset] = split_dmva(step.dev_ptr);
      if (segment == kProgramSegment) {
        if (offset > spec.static_size || step.size > spec.static_size - offset)
          refuse(at(i, step) + ": its source is outside the allocation");
      } else if (prepares) {
        refuse(at(i, step) +
               ": it reads a tensor by its argument number, which works with bound addresses only; "
               "in a plan with correction, read program memory (segment 7)");
      }
      handles.push_back(step.handle);
    }
  }
}

void Plan::Core::check_correction(size_t i) const {
  const PlanStep& step = spec.steps[i];
  if (!step.correction) return;
  for (const PlanPatch& patch : step.correction->patches) {
    const bool width = patch.width == 1 || patch.width == 2 || patch.width == 4 || patch.width == 8;
    if (!width || patch.shift < 0 || patch.shift > 63)
      refuse(at(i, step) + ": a patch has width " + std::to_string(patch.width) + ", shift " +
             std::to_string(patch.shift) + "; widths are 1, 2, 4, 8 and shifts 0 to 63");
    if (patch.blob_offset > step.size ||
        static_cast<uint64_t>(patch.width) > step.size - patch.blob_offset)
      refuse(at(i, step) + ": a patch at " + std::to_string(patch.blob_offset) +
             " is outside its blob of " + std::to_string(step.size) + " bytes");
    if (patch.symbol < 0 || static_cast<size_t>(patch.symbol) >= step.correction->symbols.size())
      refuse(at(i, step) + ": a patch names no symbol of its correction");
  }
}

// Where each Compute reads its symbol table, and that what is written there is what it expects: a
// table in another order would give wrong numbers, not an error.
void Plan::Core::place_words() {
  words.resize(spec.steps.size());
  for (size_t i = 0; i < spec.steps.size(); ++i) {
    if (!programs[i]) continue;
    const Program& program = *programs[i];
    const PlanStep& step = spec.steps[i];
    for (int w = 0; w < program.words; ++w) {
      const uint64_t where =
          step.program_ptr + program.symbols_offset + 8 * static_cast<uint64_t>(w);
      Core::Word word{false, where - kProgramBase};
      for (size_t j = 0; j < i; ++j) {
        const PlanStep& move = spec.steps[j];
        if (move.kind != Engine::H2D || where < move.dev_ptr ||
            where + 8 > move.dev_ptr + move.size)
          continue;
        word = {true, targets[j] + (where - move.dev_ptr)};
        for (size_t h = 0; h < j; ++h) {
          const PlanStep& host = spec.steps[h];
          if (host.kind != Engine::Host || host.handle != move.handle || !host.correction) continue;
          if (host.correction->checksum != program.symbol_checksum)
            refuse(at(h, host) + ": its correction was made for another symbol table (checksum " +
                   std::to_string(host.correction->checksum) + ") than that of " + at(i, step) +
                   " (" + std::to_string(program.symbol_checksum) +
                   "): symbols in another order, or another program");
          for (const PlanPatch& patch : host.correction->patches) {
            if (patch.blob_offset != where - move.dev_ptr) continue;
            const PlanSymbol& given =
                host.correction->symbols[static_cast<size_t>(patch.symbol)].what;
            PlanSymbol wanted;
            const auto word_number = static_cast<size_t>(w), count = step.args.size();
            if (word_number < count)
              wanted = {PlanSymbol::Kind::Address, step.args[word_number], -1, ""};
            else if (program.has_scratch && word_number == count)
              wanted = {PlanSymbol::Kind::Dynamic, -1, -1, ""};
            else
              wanted = symbols[static_cast<size_t>(
                  places[i][word_number - count - (program.has_scratch ? 1 : 0)])];
            if (!wanted.same(given) && wanted.kind != PlanSymbol::Kind::Dynamic)
              refuse(at(h, host) + ": its correction puts another symbol into word " +
                     std::to_string(w) + " than " + at(i, step) + " expects there");
          }
        }
      }
      words[i].push_back(word);
    }
  }
}

// --- the plan

Plan::Plan(Device& device, PlanSpec spec, StreamId stream, Executor executor)
    : device_(device), core_(std::make_shared<Core>()), results_(std::make_shared<Results>()) {
  const PlanSettings& settings = Runtime::get().config().plans;
  Core& core = *core_;
  core.spec = std::move(spec);
  core.executor = executor ? std::move(executor) : Executor(&machine::execute_program);
  core.device = device.index;
  if (core.spec.static_size > kSegmentSize || core.spec.dynamic_size > kSegmentSize)
    refuse("plan '" + core.spec.name + "': its allocation is larger than a segment");
  for (const ImageInit& init : core.spec.inits)
    if (init.dev_ptr < kProgramBase || init.dev_ptr - kProgramBase > core.spec.static_size ||
        init.data->size() > core.spec.static_size - (init.dev_ptr - kProgramBase))
      refuse("plan '" + core.spec.name + "': an InitTransfer is outside its allocation");
  core.prepares = std::any_of(core.spec.steps.begin(), core.spec.steps.end(),
                              [](const PlanStep& s) { return s.kind == Engine::Host; });
  core.decode();
  core.check_order();
  core.collect_symbols();
  core.place_transfers();
  core.place_words();
  overlap_ = core.spec.overlap < 0 ? settings.overlap : core.spec.overlap != 0;
  const int slots = core.spec.slots > 0 ? core.spec.slots : settings.slots;
  if (slots < 1 || slots > 64) refuse("a plan has 1 to 64 correction slots");

  image_ = Image::of(device, core.spec.hash, core.spec.static_size, core.spec.inits);
  if (core.slot_bytes > 0) {
    const uint64_t bytes = core.slot_bytes * static_cast<uint64_t>(slots);
    slot_block_ = device.memory->allocate(bytes, bytes, stream, MemoryType::ProgramStatic);
    for (int i = 0; i < slots; ++i) {
      auto slot = std::make_unique<Slot>();
      slot->offset = core.slot_bytes * static_cast<uint64_t>(i);
      slot->memory = slot_block_->host ? slot_block_->host + slot->offset : nullptr;
      slots_.push_back(std::move(slot));
    }
  }
  try {
    const Block* block = nullptr;
    image_->pin(stream, &block);
    if (slot_block_) {
      // The place of the slots may have been freed by work that is still queued on `stream`.
      const EventPtr free_now = device.streams->make_event();
      device.streams->signal(stream, free_now);
      for (const auto& slot : slots_) slot->users.emplace_back(stream, free_now);
    }
  } catch (...) {
    if (slot_block_) device.memory->free(slot_block_);
    throw;
  }
  Images::get().keep_within(device, settings.image_budget);
}

Plan::~Plan() {
  if (!slot_block_ || Runtime::get().in_forked_child()) return;
  // Work in flight may still read the slots: the allocator was told on which streams.
  device_.streams->forget_block(slot_block_->token);
  device_.memory->free(slot_block_);
}

const PlanSpec& Plan::spec() const { return core_->spec; }
int Plan::argument_count() const { return core_->arguments; }
const std::vector<PlanSymbol>& Plan::symbols() const { return core_->symbols; }
const Program* Plan::program(size_t step) const { return core_->programs.at(step).get(); }
const std::vector<int>& Plan::symbol_places(size_t step) const { return core_->places.at(step); }

StreamRole Plan::role_of(size_t step) const {
  const Engine kind = core_->spec.steps.at(step).kind;
  return core_->prepares && (kind == Engine::Host || kind == Engine::H2D) ? StreamRole::Prep
                                                                          : StreamRole::Dev;
}

PlanCounters Plan::counters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

std::optional<std::vector<std::byte>> Plan::host_data(const std::string& handle) const {
  std::lock_guard<std::mutex> lock(results_->mutex);
  const auto found = results_->by_handle.find(handle);
  if (found == results_->by_handle.end()) return std::nullopt;
  return found->second;
}

}  // namespace openspyre::card
