// What each body operation takes and gives: the C++ twin of BODY_OPS in openspyre/program/ops.py.
//
// Torch-free. decode() checks bodies against it; tests hold the two tables equal.
#pragma once

#include "machine/program/program.h"

namespace openspyre::machine {

// What the immediate of a node is.
enum class Immediate : uint8_t { None, Int, Typed, Format, Type, Input, Symbol, Label };

struct OpInfo {
  const char* name;
  const char* types;     // letters of the register types it exists for
  const char* operands;  // a letter each; 'T': the node's type
  char result;           // a letter; 'T': the node's type; '*': the immediate
  Immediate immediate;
};
const OpInfo& op_info(Op op);

const char* op_name(Op op);
const char* combine_name(Combine combine);
const char* tag_name(Instruction::Tag tag);
char register_letter(Register type);
Register register_of_letter(char letter);

// The register in which elements of `format` are computed; false for host formats, which no unit
// computes.
bool register_of(Format format, Register* out);

// A format that holds its register as it is. `type` may be Bool, which IEEE_INT32 holds.
bool is_exact(Format format, Register type);

}  // namespace openspyre::machine
