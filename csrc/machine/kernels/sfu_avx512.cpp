// The SFU's vector code for AVX-512 F, BW, VL and DQ. See vector.h for the rules of such a file.
#if defined(__x86_64__)
#define OPENSPYRE_VECTOR_BYTES 64
#include "machine/kernels/sfu_combine.h"

namespace openspyre::machine {

constinit const sfu::Isa sfu::kAvx512 = make_isa();

}  // namespace openspyre::machine
#endif
