// The tables of kernels, one for each instruction set. See kernels.h.
#include "machine/kernels/kernels.h"

#include "machine/kernels/float_control.h"
#include "machine/kernels/index_kernels.h"
#include "machine/kernels/matmul_kernels.h"
#include "machine/kernels/sfu_kernels.h"
#include "machine/kernels/sfu_plan.h"

namespace openspyre::machine {
namespace {

template <void (*kernel)(const ComputeTask&)>
void controlled(const ComputeTask& task) {
  const FloatControl control;
  kernel(task);
}
template <const sfu::Isa& isa, void (*kernel)(const sfu::Isa&, const ComputeTask&)>
void controlled_sfu(const ComputeTask& task) {
  const FloatControl control;
  kernel(isa, task);
}
void controlled_combine(Combine op, int labels, const int64_t* size, const View& target,
                        const View& source) {
  const FloatControl control;
  combine(op, labels, size, target, source);
}

template <const sfu::Isa& isa, void (*matmul)(const ComputeTask&)>
constexpr Kernels make_kernels() {
  return {controlled<matmul>,
          controlled_sfu<isa, sfu::map>,
          controlled_sfu<isa, sfu::reduce>,
          controlled_sfu<isa, sfu::fold>,
          controlled_sfu<isa, sfu::scan>,
          controlled<gather>,
          controlled<scatter>,
          controlled<sort>,
          controlled<merge>,
          controlled<topk>,
          controlled_combine};
}

constexpr Kernels kPortableKernels = make_kernels<sfu::kPortable, portable::matmul>();
#if defined(__x86_64__)
constexpr Kernels kAvx2Kernels = make_kernels<sfu::kAvx2, avx2::matmul>();
constexpr Kernels kAvx512Kernels = make_kernels<sfu::kAvx512, avx512::matmul>();
#endif

}  // namespace

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::AVX2:
      return kAvx2Kernels;
    case Isa::AVX512:
      return kAvx512Kernels;
#endif
    default:
      return kPortableKernels;
  }
}

const char* unsupported(const Instruction& compute) {
  switch (compute.kind) {
    case Kind::MatMul:
      return unsupported_matmul(compute);
    case Kind::Map:
    case Kind::Reduce:
      return compute.body.nodes.size() > sfu::kMaxNodes ? "a body has at most 4096 operations" : "";
    case Kind::Fold:
    case Kind::Scan:
      return "";
    default:
      return unsupported_index(compute);
  }
}

}  // namespace openspyre::machine
