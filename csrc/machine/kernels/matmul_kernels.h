// Matrix products of the PT, one entry for each instruction set, the same bits in all of them.
//
// Torch-free. docs/program.md section 3 "matmul" is the meaning. Every entry may be called on every
// thread; `avx2` and `avx512` only on processors that have them.
#pragma once

#include "machine/kernels/kernels.h"

namespace openspyre::machine {

namespace portable {
void matmul(const ComputeTask& task);
}
#if defined(__x86_64__)
namespace avx2 {
void matmul(const ComputeTask& task);
}
namespace avx512 {
void matmul(const ComputeTask& task);
}
#endif

// "" or the rule that a Kind::MatMul breaks; the kernels rely on it (see kernels.h unsupported).
const char* unsupported_matmul(const Instruction& compute);

}  // namespace openspyre::machine
