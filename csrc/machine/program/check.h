// The rules of docs/program.md sections 2 and 3 that need no numbers: decode() refuses what breaks
// them, so that the interpreter and the kernels can rely on arities, places, formats and types.
//
// Torch-free.
#pragma once

#include <string>

#include "machine/program/program.h"

namespace openspyre::machine {

// True when `label` moves the tile: it has a stride or lies on the stick.
bool moves(const Access& access, int label);

// "" or one sentence naming the rule that the instruction breaks. `unit`: the queue it is in. All
// its indices are in range. Loops: of the loop itself, not of what it repeats.
std::string broken_rule(const Program& program, const Instruction& instruction, Unit unit);

}  // namespace openspyre::machine
