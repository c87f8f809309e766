// The queues of one core: control flow, tokens, faults. What tasks do to bytes is in tasks.cpp.
#include "machine/program/core.h"

#include <algorithm>

#include "machine/program/op_table.h"

namespace openspyre::machine {

namespace {

// Steps between looks at the shared limit and at the stop flag.
constexpr int64_t kFlushEvery = 1024;

}  // namespace

Core::Core(Shared* shared, int64_t number, std::byte* lx)
    : shared_(*shared), number_(number), lx_(lx) {
  const Program& program = shared_.program;
  semaphores_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(program.semaphores));
  for (const Token& token : program.tokens) {
    for (int64_t i = 0; i < token.count; ++i) {
      semaphores_[static_cast<size_t>(token.first + i)].store(token.initial,
                                                              std::memory_order_relaxed);
    }
  }
  lazy_.start(lx);
  std::vector<int64_t> environment(static_cast<size_t>(program.environment));
  size_t at = 0;
  for (const int64_t symbol : shared_.launch.symbols) environment[at++] = symbol;
  int64_t rest = number;
  for (size_t i = program.grid.size(); i-- > 0;) {
    environment[at + i] = rest % program.grid[i].size;
    rest /= program.grid[i].size;
  }
  at += program.grid.size();
  environment[at++] = number;
  for (const Let& let : program.lets) {
    try {
      environment[at] = evaluate(let.value, environment.data());
    } catch (const Fault& broken) {
      fault.emplace(broken.kind,
                    "let " + let.name + " on core " + std::to_string(number) + ": " + broken.text);
      return;
    }
    ++at;
  }
  for (int unit = 0; unit < kUnits; ++unit) {
    Queue& queue = queues_[unit];
    queue.unit = static_cast<Unit>(unit);
    queue.environment = environment;
    queue.frames.reserve(kMaxLoops + 1);
    if (!program.queues[unit].empty()) {
      queue.frames.push_back({&program.queues[unit], 0, 0, 1, -1, nullptr});
    }
  }
}

std::string Core::place(const Queue& queue) const {
  std::string path, loops;
  for (const Frame& frame : queue.frames) {
    if (!path.empty()) path += '.';
    path += std::to_string(frame.at);
    if (frame.name == nullptr || frame.name->empty()) continue;
    loops += loops.empty() ? " at " : ", ";
    loops += *frame.name;
    loops += '=';
    loops += std::to_string(frame.step);
  }
  const char* name = queue.current == nullptr ? "" : tag_name(queue.current->tag);
  return std::string(unit_name(queue.unit)) + "[" + path + "] " + name + " on core " +
         std::to_string(number_) + loops;
}

LaunchFault Core::located(const Queue& queue, LaunchFault::Kind kind,
                          const std::string& text) const {
  return LaunchFault(kind, place(queue) + ": " + text);
}

ExecutionCounts Core::counts() const {
  ExecutionCounts counts = counts_;
  counts.bytes_copied += lazy_.copied();  // which others may have had done after this core ended
  return counts;
}

std::string Core::waits() const {
  std::string out;
  for (const Queue& queue : queues_) {
    if (!queue.waiting || queue.frames.empty()) continue;
    const Instruction& code = *queue.current;
    int64_t index = 0, amount = 0;
    try {
      index = evaluate(code.first, queue.environment.data());
      amount = evaluate(code.count, queue.environment.data());
    } catch (const Fault&) {
      continue;
    }
    const Token& token = shared_.program.tokens[static_cast<size_t>(code.token)];
    out += (out.empty() ? "" : "; ") + place(queue) + " for " + std::to_string(amount) + " of " +
           token.name + "[" + std::to_string(index) + "], which is at " +
           std::to_string(semaphores_[static_cast<size_t>(token.first + index)].load());
  }
  return out;
}

void Core::flush() {
  const Launch& launch = shared_.launch;
  const int64_t all = shared_.steps.fetch_add(pending_steps_, std::memory_order_relaxed);
  if (pending_steps_ > launch.max_tasks || all > launch.max_tasks - pending_steps_) {
    throw Fault{LaunchFault::Kind::Stopped,
                "the launch has done more than the " + std::to_string(launch.max_tasks) +
                    " steps it may take: the program is endless, or the limit too low"};
  }
  pending_steps_ = 0;
  if (launch.stop != nullptr && launch.stop->load(std::memory_order_relaxed)) {
    throw Fault{LaunchFault::Kind::Stopped, "the launch was stopped"};
  }
}

// Work that a single instruction asks for counts like instructions, before it is done: so a box of
// 2^60 points is refused as endless and not begun.
void Core::charge(int64_t work) {
  pending_steps_ += work;
  if (pending_steps_ >= kFlushEvery) flush();
}

Core::Status Core::run() {
  if (fault) return Status::Failed;
  Queue* at = &queues_[0];
  try {
    for (bool progress = true; progress;) {
      if (shared_.failed_core.load(std::memory_order_relaxed) < number_) return Status::GaveUp;
      progress = false;
      done_ = true;
      for (Queue& queue : queues_) {
        at = &queue;
        progress = run_queue(queue) || progress;
        done_ = done_ && queue.frames.empty();
      }
    }
    at = &queues_[0];
    flush();
  } catch (const Fault& broken) {
    fault.emplace(located(*at, broken.kind, broken.text));
  } catch (const LaunchFault& broken) {  // of a kernel, which does not know where it is
    fault.emplace(located(*at, broken.kind, broken.what()));
  } catch (...) {
    other = std::current_exception();
  }
  if (fault || other) return Status::Failed;
  return done_ ? Status::Done : Status::Blocked;
}

// Runs the queue until it ends or waits. False when it could not do anything.
bool Core::run_queue(Queue& queue) {
  bool progress = false;
  int64_t* const env = queue.environment.data();
  while (!queue.frames.empty()) {
    Frame& frame = queue.frames.back();
    if (frame.at == frame.list->size()) {
      charge(1);
      if (++frame.step < frame.count) {
        frame.at = 0;
        if (frame.variable >= 0) env[frame.variable] = frame.step;
      } else {
        queue.frames.pop_back();
        if (!queue.frames.empty()) ++queue.frames.back().at;
      }
      continue;
    }
    const Instruction& code = (*frame.list)[frame.at];
    queue.current = &code;
    charge(1);
    if (code.tag == Instruction::Loop) {
      const int64_t count = evaluate(code.count, env);
      if (count < 0) {
        throw Fault{LaunchFault::Kind::Number, "the loop's count is " + std::to_string(count)};
      }
      progress = true;
      if (count == 0 || code.children.empty()) {
        ++frame.at;
        continue;
      }
      if (code.variable >= 0) env[code.variable] = 0;
      queue.frames.push_back({&code.children, 0, 0, count, code.variable, &code.variable_name});
      continue;
    }
    switch (code.tag) {
      case Instruction::Load:
        load(code, env);
        break;
      case Instruction::Store:
        store(code, env);
        break;
      case Instruction::Ring:
        ring(code, env);
        break;
      case Instruction::Compute:
        compute(code, env);
        break;
      case Instruction::Wait:
        queue.waiting = !wait(code, env);
        if (queue.waiting) return progress;
        break;
      default:
        signal(code, env);
        break;
    }
    ++counts_.tasks;
    ++frame.at;
    progress = true;
  }
  return progress;
}

int64_t Core::semaphore(const Instruction& code, const int64_t* env) const {
  const Token& token = shared_.program.tokens[static_cast<size_t>(code.token)];
  const int64_t index = evaluate(code.first, env);
  if (index < 0 || index >= token.count) {
    throw Fault{LaunchFault::Kind::Index, "token " + token.name + " has indices 0.." +
                                              std::to_string(token.count - 1) + ", not " +
                                              std::to_string(index)};
  }
  return token.first + index;
}

bool Core::wait(const Instruction& code, const int64_t* env) {
  std::atomic<int64_t>& value = semaphores_[static_cast<size_t>(semaphore(code, env))];
  const int64_t amount = evaluate(code.count, env);
  if (amount < 0) {
    throw Fault{LaunchFault::Kind::Number, "it waits for " + std::to_string(amount)};
  }
  if (!shared_.program.talks) {  // nobody else looks at it
    const int64_t now = value.load(std::memory_order_relaxed);
    if (now < amount) return false;
    value.store(now - amount, std::memory_order_relaxed);
    return true;
  }
  if (value.load(std::memory_order_acquire) < amount) return false;
  value.fetch_sub(amount, std::memory_order_relaxed);  // only this thread takes
  return true;
}

void Core::give(int64_t semaphore, int64_t amount) {
  std::atomic<int64_t>& value = semaphores_[static_cast<size_t>(semaphore)];
  int64_t now = value.load(std::memory_order_relaxed);
  if (!shared_.program.talks) {
    value.store(add(now, amount), std::memory_order_relaxed);
    return;
  }
  while (!value.compare_exchange_weak(now, add(now, amount), std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

void Core::signal(const Instruction& code, const int64_t* env) {
  const int64_t which = semaphore(code, env);
  const int64_t amount = evaluate(code.count, env);
  if (amount < 0) throw Fault{LaunchFault::Kind::Number, "it signals " + std::to_string(amount)};
  if (!code.has_core) return give(which, amount);
  const int64_t target = evaluate(code.core, env);
  if (target < 0 || target >= shared_.program.cores) {
    throw Fault{LaunchFault::Kind::Index, "there is no core " + std::to_string(target) + " among " +
                                              std::to_string(shared_.program.cores)};
  }
  if (target == number_) return give(which, amount);
  shared_.cores[static_cast<size_t>(target)]->give(which, amount);
  shared_.wake(shared_.scheduler, target);
}

}  // namespace openspyre::machine
