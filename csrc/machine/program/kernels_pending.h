// Until csrc/machine/kernels/kernels.cpp is there: the library links without it. To be removed.
#pragma once

#include "machine/kernels/kernels.h"

namespace openspyre::machine {
const Kernels& kernels_for(Isa isa) __attribute__((weak));
void add_elements(Format, void*, const void*, int64_t, const Numerics&) __attribute__((weak));
void apply_op(Op, Register, const void* const*, void*, int64_t, int64_t, const Numerics&)
    __attribute__((weak));
const char* unsupported(const Instruction&) __attribute__((weak));
}  // namespace openspyre::machine
