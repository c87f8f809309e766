// What the boxed fallback must know about an operation, read once from its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "torch/fallback.h"

namespace openspyre::device {

enum class ArgumentKind : uint8_t {
  Other,
  Tensor,
  TensorList,
  OptionalTensorList,
  Device,
  Generator
};

struct ArgumentFacts {
  uint16_t position;  // in the schema
  ArgumentKind kind;  // never Other
  bool written;       // Tensor(a!)
  bool if_training;   // written only when the argument `training` is true
  bool write_only;    // out=: its old values are never read
  bool any_cpu;       // CUDA takes CPU tensors of any rank here (index tensors, lengths)
};

struct OperatorFacts {
  FallbackAccount* account;
  uint16_t argument_count, return_count;
  std::vector<ArgumentFacts> arguments;  // those that are not Other
  // Per return: the schema position of the argument it is (Tensor(a!)), or -1 for a new value.
  std::vector<int16_t> returns;
  int generator = -1;          // schema position of a Generator argument
  int dtype = -1;              // schema position of the result's dtype
  int training = -1;           // schema position of `training`, for arguments that need it
  bool seeded = false;         // draws random numbers
  bool view = false;           // returns an alias: a copy would lose writes
  bool refused = false;        // the CPU's result cannot be carried over (files, memory identity)
  bool cpu_kernel = false;     // the CPU has one
  bool sparse_kernel = false;  // and one for sparse COO tensors
  bool wide = false;           // 16-bit operands: computed in float32
  bool mixed = false;          // under `wide`: float32 arguments beside 16-bit ones are part of it
  uint32_t kept_returns = 0;   // bit i: under `wide`, return i stays float32
};

// Facts of `op`. `owner` holds them for operations that may be deregistered (all but aten's, which
// are kept for ever); keep it while using the reference.
const OperatorFacts& facts_of(const c10::OperatorHandle& op, std::unique_ptr<OperatorFacts>& owner);

}  // namespace openspyre::device
