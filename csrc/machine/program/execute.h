// Executes a decoded Program: the native machine.
//
// Torch-free. Units run as their tokens allow; cores run on the process's pool. The bits of the
// result depend on nothing but the Program, the operands' bytes, the symbols and the numerics: not
// on the number of threads, not on the instruction set. They are those of openspyre/reference.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "machine/program/program.h"

namespace openspyre::machine {

// Where an operand's bytes are. `base` is its address 0; the window is what the launch may touch.
struct Window {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
};

struct Launch {
  std::span<const Window> operands;  // one per operand of the program, CONST and SCRATCH too
  std::span<const int64_t> symbols;  // one per symbol; FLOAT: the float32's bits
  Numerics numerics;
  int threads = 0;                       // 0: as many cores at a time as the pool has threads
  int64_t max_tasks = int64_t(1) << 40;  // more instructions than this: refused as endless
  const std::atomic<bool>* stop = nullptr;
};

// A launch that failed while it ran: an address outside an argument, an index beyond its limit, a
// wait that nothing will end, a number that does not fit. what() names instruction, core, loop
// indices, operand and bytes. Operands that the program writes may have been written in part.
class LaunchFault : public std::runtime_error {
 public:
  enum class Kind { Address, Index, Deadlock, Number, Unpatched, Stopped };
  LaunchFault(Kind kind, const std::string& text) : std::runtime_error(text), kind(kind) {}
  Kind kind;
};

// What an execution did, for tests and tools.
struct ExecutionCounts {
  int64_t tasks = 0;       // instructions executed, waits and signals included
  int64_t bytes_read = 0;  // LPDDR5 bytes that LOADs named, every core counted
  int64_t bytes_written = 0;
  int64_t bytes_copied = 0;  // of those read, how many were really copied into LX
};

// Throws LaunchFault. Validates sizes and addresses itself: safe for programs that no verifier saw.
ExecutionCounts execute_program(const Program& program, const Launch& launch);

}  // namespace openspyre::machine
