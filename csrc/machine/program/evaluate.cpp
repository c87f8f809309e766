// See evaluate.h.
#include "machine/program/evaluate.h"

#include <algorithm>

namespace openspyre::machine {

void too_large(const char* what) {
  throw Fault{LaunchFault::Kind::Number, std::string(what) + " does not fit in 64 bits"};
}

int64_t evaluate_steps(const ExprStep* steps, size_t n, const int64_t* environment) {
  int64_t stack[kMaxExprDepth + 1];  // decode() has bounded the depth
  int64_t* top = stack;              // behind the last value
  for (const ExprStep* step = steps; step != steps + n; ++step) {
    if (step->code == ExprStep::Const) {
      *top++ = step->value;
      continue;
    }
    if (step->code == ExprStep::Var) {
      *top++ = environment[step->value];
      continue;
    }
    const int64_t b = *--top;
    const int64_t a = *--top;
    int64_t value = 0;
    switch (step->code) {
      case ExprStep::Add:
        value = add(a, b);
        break;
      case ExprStep::Sub:
        if (__builtin_sub_overflow(a, b, &value)) too_large("a difference");
        break;
      case ExprStep::Mul:
        value = multiply(a, b);
        break;
      case ExprStep::FloorDiv:
      case ExprStep::Mod: {
        if (b < 1) {
          throw Fault{LaunchFault::Kind::Number,
                      "a divisor is " + std::to_string(b) + " and must be at least 1"};
        }
        const int64_t rest = a % b + (a % b < 0 ? b : 0);
        value = step->code == ExprStep::Mod ? rest : a / b - (a % b < 0 ? 1 : 0);
        break;
      }
      case ExprStep::Min:
        value = std::min(a, b);
        break;
      case ExprStep::Max:
        value = std::max(a, b);
        break;
      case ExprStep::Eq:
        value = a == b;
        break;
      case ExprStep::Lt:
        value = a < b;
        break;
      default:
        value = a <= b;
        break;
    }
    *top++ = value;
  }
  return stack[0];
}

}  // namespace openspyre::machine
