// The SFU's vector code for any processor. See vector.h for the rules of such a file.
#define OPENSPYRE_VECTOR_BYTES 16
#include "machine/kernels/sfu_combine.h"

namespace openspyre::machine {

constinit const sfu::Isa sfu::kPortable = make_isa();

}  // namespace openspyre::machine
