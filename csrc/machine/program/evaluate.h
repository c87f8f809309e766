// Evaluates a Program's expressions: a postfix machine on a stack of the thread, no allocation.
//
// Torch-free. Values are signed 64-bit; leaving that range, or dividing by less than one, is a
// fault, as in openspyre/program/expr.py.
#pragma once

#include <string>

#include "machine/program/execute.h"

namespace openspyre::machine {

// A fault before its place in the program is known.
struct Fault {
  LaunchFault::Kind kind;
  std::string text;
};

int64_t evaluate_steps(const ExprStep* steps, size_t n, const int64_t* environment);

// Throws Fault(Number).
inline int64_t evaluate(const Expr& expr, const int64_t* environment) {
  const ExprStep* step = expr.steps.data();
  if (expr.steps.size() == 1) {
    return step->code == ExprStep::Const ? step->value : environment[step->value];
  }
  return evaluate_steps(step, expr.steps.size(), environment);
}

[[noreturn]] void too_large(const char* what);

inline int64_t add(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_add_overflow(a, b, &out)) too_large("a sum");
  return out;
}
inline int64_t multiply(int64_t a, int64_t b) {
  int64_t out;
  if (__builtin_mul_overflow(a, b, &out)) too_large("a product");
  return out;
}

}  // namespace openspyre::machine
