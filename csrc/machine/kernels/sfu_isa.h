// What the SFU's vector code offers for each instruction set: loops over contiguous arrays.
//
// Torch-free. The drivers (sfu_map.cpp, sfu_reduce.cpp, ..) know tiles, labels and strides and run
// on any processor; they call these loops for blocks of some hundred elements. The arrays are
// registers: float32 (f), int32 (i), int64 (l), and int32 masks 0 or -1 for truth (b).
#pragma once

#include <cstddef>
#include <cstdint>

#include "machine/formats.h"
#include "machine/program/program.h"

namespace openspyre::machine::sfu {

inline constexpr int kRegisters = 4;     // Register's values
inline constexpr int kCardFormats = 11;  // formats with a register; they come first in Format
inline constexpr int kSimple = 6;        // Combine's Sum .. All, which combine single values
inline constexpr int64_t kPad = 16;      // arrays are padded to a multiple of this many elements

struct Context {
  int64_t immediate;  // of the node
  TieRule tie;
  bool merged_is_nan;
};

// n is a multiple of kPad for ops and codes, unless said otherwise. Arrays need no alignment.
using OpLoop = void (*)(void* out, const void* const* in, int64_t n, const Context&);
using CodeLoop = void (*)(const void* from, void* to, int64_t n, const Context&);

struct Isa {
  OpLoop op[kOps][kRegisters];    // by the node's type; null where there is none, and for leaves
  CodeLoop decode[kCardFormats];  // codes -> the format's register
  CodeLoop encode[kCardFormats];  // the format's register -> codes
  // Masks -> codes of 1 (`one`) and 0, of 1 << k bytes.
  void (*truth[4])(const void* mask, void* codes, int64_t n, uint64_t one);

  // The rest takes any n. acc[i] = combine(acc[i], v[i]); any, all: acc holds 1 or 0. The same for
  // `rows` pairs of arrays, acc_step and v_step bytes apart; acc_step 0: one acc takes all in
  // order.
  void (*combine[kSimple][kRegisters])(void* acc, int64_t acc_step, const void* v, int64_t v_step,
                                       int64_t n, int64_t rows);
  // running = combine(running, v[i]); y[i] = running.
  void (*serial[kSimple][kRegisters])(void* running, const void* v, void* y, int64_t n);
  // (acc, at) = the better of (acc, at) and (v, index); [0] max, [1] min.
  void (*arg[2][kRegisters])(void* acc, int64_t* at, const void* v, const int64_t* index,
                             int64_t n);
  // Welford's step, and Chan's of two partial results; a = (mean, M2, count).
  void (*welford)(float* const a[3], const float* v, int64_t n);
  void (*chan)(float* const a[3], const float* const b[3], int64_t n);
};

extern const Isa kPortable;
#if defined(__x86_64__)
extern const Isa kAvx2;
extern const Isa kAvx512;
#endif

}  // namespace openspyre::machine::sfu
