// One body operation on plain arrays, for the reference executor. See kernels.h.
//
// It runs the portable code: the machine, which runs the others, is held equal to it.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "machine/kernels/float_control.h"
#include "machine/kernels/kernels.h"
#include "machine/kernels/sfu_isa.h"
#include "machine/program/op_table.h"

namespace openspyre::machine {
namespace {

constexpr int64_t kChunk = 256;

size_t bytes_of(Register type) {
  return type == Register::I64 ? 8 : type == Register::Bool ? 1 : 4;
}

// Truth is a byte outside and a mask inside.
void take(Register type, const char* from, int64_t n, void* to) {
  if (type != Register::Bool) {
    std::memcpy(to, from, size_t(n) * bytes_of(type));
    return;
  }
  for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(to)[i] = from[i] ? -1 : 0;
}
void give(Register type, const void* from, int64_t n, char* to) {
  if (type != Register::Bool) {
    std::memcpy(to, from, size_t(n) * bytes_of(type));
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<const int32_t*>(from)[i] ? 1 : 0;
}

}  // namespace

void apply_op(Op op, Register type, const void* const* args, void* out, int64_t n,
              int64_t immediate, const Numerics& numerics) {
  const OpInfo& info = op_info(op);
  const sfu::OpLoop loop = sfu::kPortable.op[int(op)][int(type)];
  const bool bad = (op == Op::Round && !(immediate >= 0 && immediate < sfu::kCardFormats)) ||
                   ((op == Op::Cast || op == Op::Bits) && !(immediate >= 0 && immediate < 4));
  if (loop == nullptr || bad) {
    throw std::invalid_argument(std::string("apply_op: ") + info.name +
                                " does not exist for type " + register_letter(type) +
                                " and immediate " + std::to_string(immediate));
  }
  const FloatControl control;
  const Register result = info.result == 'T'   ? type
                          : info.result == '*' ? Register(immediate)
                                               : register_of_letter(info.result);
  const sfu::Context context{immediate, numerics.tie, numerics.merged_is_nan};
  alignas(64) char in[3][kChunk * 8] = {}, to[kChunk * 8];
  const void* const inside[3] = {in[0], in[1], in[2]};
  const int arity = int(std::strlen(info.operands));
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t part = std::min(kChunk, n - i);
    for (int a = 0; a < arity; ++a) {
      const Register of = info.operands[a] == 'T' ? type : register_of_letter(info.operands[a]);
      take(of, static_cast<const char*>(args[a]) + size_t(i) * bytes_of(of), part, in[a]);
    }
    loop(to, inside, (part + sfu::kPad - 1) / sfu::kPad * sfu::kPad, context);
    give(result, to, part, static_cast<char*>(out) + size_t(i) * bytes_of(result));
  }
}

}  // namespace openspyre::machine
