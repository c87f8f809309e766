// Kernels that move elements by number or by order, and the small ones of RING and STORE.
//
// Torch-free. docs/program.md section 3 is the meaning. One version for all instruction sets: the
// time goes into memory. Like every kernel they trust the addresses of the task.
#pragma once

#include "machine/kernels/kernels.h"

namespace openspyre::machine {

// The interpreter has checked the source of a gather, and the output of a scatter, for positions
// 0..limit-1 along the instruction's label instead of its box; the outputs of a topk for `limit`
// positions. Throw LaunchFault(Index) with the point for an index outside 0..limit-1.
void gather(const ComputeTask& task);
void scatter(const ComputeTask& task);
void sort(const ComputeTask& task);
void merge(const ComputeTask& task);
void topk(const ComputeTask& task);

// RING reduce, see Kernels. Views of one format, stick and form; `sum` to `all`.
void combine(Combine op, int labels, const int64_t* size, const View& target, const View& source);

// Kind::Map whose body only passes its input on, between tiles of one format with different stick
// labels: a transpose of sticks, dense to sparse, sparse to dense. False, with nothing done, for
// any other task.
bool map_relayout(const ComputeTask& task);

// "" or the rule that a Gather, Scatter, Sort, Merge or TopK breaks; the kernels rely on it.
const char* unsupported_index(const Instruction& compute);

}  // namespace openspyre::machine
