// A slow SFU for tests: point by point, from the words of docs/program.md section 3. It shares the
// functions with the kernels (apply_op, one element at a time) and nothing of tiles, blocks, codes.
#pragma once

#include <cmath>

#include "check.h"
#include "kernel_tiles.h"
#include "machine/kernels/kernels.h"
#include "machine/program/op_table.h"

namespace slow {

using namespace tiles;

struct Number {
  Register type = Register::F32;
  float f = 0;
  int64_t i = 0;  // I32, I64; truth 0 or 1
};

inline Number decoded(Format format, uint64_t bits, const Numerics& numerics) {
  Number x;
  register_of(format, &x.type);
  if (x.type == Register::F32) {
    x.f = value_of(format, bits, numerics);
    return x;
  }
  x.i = integer_of(format, bits);
  return x;
}
inline uint64_t encoded(Format format, const Number& x, const Numerics& numerics) {
  if (x.type == Register::F32) return encoded_float(format, x.f, numerics);
  if (x.type == Register::Bool && is_float(format)) {
    return encoded_float(format, float(x.i), numerics);
  }
  const int width = 8 * format_bytes(format);
  return width == 64 ? uint64_t(x.i) : uint64_t(x.i) & ((uint64_t(1) << width) - 1);
}

inline Number applied(const Node& node, const Number* args, const Numerics& numerics) {
  union Cell {
    float f;
    int32_t i;
    int64_t l;
    uint8_t b;
  };
  Cell in[3] = {}, out = {};
  const void* pointers[3] = {&in[0], &in[1], &in[2]};
  for (int a = 0; a < node.arity; ++a) {
    switch (args[a].type) {
      case Register::F32:
        in[a].f = args[a].f;
        break;
      case Register::I32:
        in[a].i = int32_t(args[a].i);
        break;
      case Register::I64:
        in[a].l = args[a].i;
        break;
      case Register::Bool:
        in[a].b = uint8_t(args[a].i);
    }
  }
  apply_op(node.op, node.type, pointers, &out, 1, node.immediate, numerics);
  Number x;
  x.type = node.result;
  switch (x.type) {
    case Register::F32:
      x.f = out.f;
      break;
    case Register::I32:
      x.i = out.i;
      break;
    case Register::I64:
      x.i = out.l;
      break;
    case Register::Bool:
      x.i = out.b;
  }
  return x;
}

// All values of a body at one point.
inline std::vector<Number> body(const ComputeTask& task, std::vector<Tile>& inputs,
                                const std::vector<int64_t>& point) {
  std::vector<Number> values;
  for (const Node& node : task.code->body.nodes) {
    Number x;
    x.type = node.result;
    if (node.op == Op::Input) {
      Tile& tile = inputs[size_t(node.immediate)];
      x = decoded(tile.view.format, tile.bits(point), *task.numerics);
    } else if (node.op == Op::Index) {
      x.i = task.start[node.immediate] + point[size_t(node.immediate)];
    } else if (node.op == Op::Const || node.op == Op::Scalar) {
      const int64_t bits =
          node.op == Op::Const ? node.immediate : task.symbols[size_t(node.immediate)];
      const auto word = uint32_t(bits);
      if (x.type == Register::F32) std::memcpy(&x.f, &word, 4);
      x.i = bits;
    } else {
      Number args[3];
      for (int a = 0; a < node.arity; ++a) args[a] = values[size_t(node.args[a])];
      x = applied(node, args, *task.numerics);
    }
    values.push_back(x);
  }
  return values;
}

// One combination of partial results: value, or (value, index), or (mean, M2, count).
using Parts = std::vector<Number>;
inline bool beats(Combine how, const Number& b, const Number& a) {
  const bool largest = how == Combine::Max || how == Combine::ArgMax;
  if (a.type == Register::F32) {
    if (std::isnan(a.f)) return false;
    if (std::isnan(b.f)) return true;
    return largest ? b.f > a.f : b.f < a.f;
  }
  return largest ? b.i > a.i : b.i < a.i;
}
inline Number wrapped(Register type, int64_t value) {
  Number x;
  x.type = type;
  x.i = type == Register::I32 ? int64_t(int32_t(uint32_t(uint64_t(value)))) : value;
  return x;
}
inline Number one_of(Combine how, const Number& a, const Number& b) {
  Number x = a;
  const bool f = a.type == Register::F32;
  switch (how) {
    case Combine::Sum:
      if (!f) return wrapped(a.type, int64_t(uint64_t(a.i) + uint64_t(b.i)));
      x.f = a.f + b.f;
      return x;
    case Combine::Prod:
      if (!f) return wrapped(a.type, int64_t(uint64_t(a.i) * uint64_t(b.i)));
      x.f = a.f * b.f;
      return x;
    case Combine::Any:
      x.i = a.i | b.i;
      return x;
    case Combine::All:
      x.i = a.i & b.i;
      return x;
    default:
      return beats(how, b, a) || (f && std::isnan(b.f)) ? b : a;
  }
}
inline Parts identity(Combine how, Register type) {
  Number x;
  x.type = type;
  const bool largest = how == Combine::Max || how == Combine::ArgMax;
  const bool extreme = largest || how == Combine::Min || how == Combine::ArgMin;
  if (extreme) {
    x.f = largest ? -INFINITY : INFINITY;
    const int64_t low = type == Register::I32 ? INT32_MIN : INT64_MIN;
    x.i = largest ? low : -(low + 1);
  }
  if (how == Combine::Prod) x.f = 1, x.i = 1;
  if (how == Combine::All) x.i = 1;
  if (how == Combine::Welford) return {x, x, x};
  Number index;
  index.type = Register::I64;
  index.i = -1;
  if (how == Combine::ArgMax || how == Combine::ArgMin) return {x, index};
  return {x};
}
inline void join(Combine how, Parts& a, const Parts& b) {
  if (how == Combine::Welford) {
    if (b[2].f == 0) return;
    if (a[2].f == 0) {
      a = b;
      return;
    }
    const float n = a[2].f + b[2].f, d = b[0].f - a[0].f;
    const float part = b[2].f / n, shift = d * part, square = d * d;
    const float weight = a[2].f * b[2].f / n, more = square * weight;
    a[0].f = a[0].f + shift;
    a[1].f = (a[1].f + b[1].f) + more;
    a[2].f = n;
  } else if (a.size() == 2) {
    const bool same = !beats(how, a[0], b[0]) && !beats(how, b[0], a[0]);
    if (b[1].i < 0) return;
    if (a[1].i < 0 || beats(how, b[0], a[0]) || (same && b[1].i < a[1].i)) a = b;
  } else {
    a[0] = one_of(how, a[0], b[0]);
  }
}

inline void take(Combine how, Parts& a, const Number& x, int64_t index) {
  if (how == Combine::Welford) {
    const float n = a[2].f + 1.0f;
    const float d = x.f - a[0].f;
    const float step = d / n;
    a[0].f = a[0].f + step;
    const float product = d * (x.f - a[0].f);
    a[1].f = a[1].f + product;
    a[2].f = n;
  } else if (a.size() == 2) {
    Number at = a[1];
    at.i = index;
    join(how, a, {x, at});
  } else {
    a[0] = one_of(how, a[0], x);
  }
}
}  // namespace slow
