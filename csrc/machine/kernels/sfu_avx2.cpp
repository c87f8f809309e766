// The SFU's vector code for AVX2 and F16C. See vector.h for the rules of such a file.
#if defined(__x86_64__)
#define OPENSPYRE_VECTOR_BYTES 32
#include "machine/kernels/sfu_combine.h"

namespace openspyre::machine {

constinit const sfu::Isa sfu::kAvx2 = make_isa();

}  // namespace openspyre::machine
#endif
