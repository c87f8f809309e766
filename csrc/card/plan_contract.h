// What a launch must satisfy: where an operand's elements lie for given symbols, and whether a
// tensor lies there in just that way.
//
// Torch-free, pure. Works on what a tensor is to the card: a strided view of the linear element
// space of a storage with a Layout. All results are exact: a view that is accepted has every
// element at the address that the program computes for it, and one that is refused has not (or
// would let a STORE of whole sticks overwrite a neighbour).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "card/stream.h"
#include "machine/layout.h"
#include "machine/program/program.h"

namespace openspyre::card {

using machine::kMaxRank;

// Bytes from an operand's address to its elements (openspyre/program/concrete.py OperandLayout).
struct OperandLayout {
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};  // bytes a step; of the stick dim: a stick
  int stick = -1;                  // the dim on the stick
  int64_t eps = 1;                 // elements of the format a stick
  int64_t nbytes = 0;              // to the end of the last stick
};

// Value of a launch-time expression (over symbols only) of a decoded program. Throws
// std::invalid_argument.
int64_t evaluate(const machine::Expr& expr, std::span<const int64_t> symbols);
bool is_constant(const machine::Expr& expr);

// Throws std::invalid_argument for sizes that cannot be laid out.
OperandLayout lay_operand(const machine::Operand& operand, std::span<const int64_t> symbols);

// A tensor: a strided view of the linear element space of a storage.
struct TensorView {
  const machine::Layout* layout = nullptr;
  int64_t offset = 0;  // linear element of the first one
  std::span<const int64_t> sizes, strides;
};

// Whether `view`, whose sizes are the operand's, lies as the operand does. On success `base` is the
// byte offset of its first element in the block and the result is "". Else one clause that says
// what differs. `written`: the program stores to it, so no stick may hold elements of others.
std::string match_layout(const OperandLayout& operand, const TensorView& view, bool written,
                         int64_t* base);

// The whole sticks of an operand at `base`, ascending, disjoint, joined.
std::vector<ByteRange> sticks_of(const OperandLayout& operand, int64_t base);

std::string dims_text(std::span<const int64_t> dims);  // "[2, 3]"

}  // namespace openspyre::card
