// The SFU's kinds of COMPUTE on tiles: map, reduce, fold, scan. docs/program.md section 3.
//
// Torch-free. The tasks are checked (program/check.h, kernels.h `unsupported`).
#pragma once

#include "machine/kernels/kernels.h"
#include "machine/kernels/sfu_isa.h"

namespace openspyre::machine::sfu {

void map(const Isa& isa, const ComputeTask& task);
void reduce(const Isa& isa, const ComputeTask& task);
void fold(const Isa& isa, const ComputeTask& task);
void scan(const Isa& isa, const ComputeTask& task);

}  // namespace openspyre::machine::sfu
