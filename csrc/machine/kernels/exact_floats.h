// A switch of the thread that must not reach the bits: flushing subnormals to zero.
//
// A program around us may have turned it on. Whoever computes with floats holds an ExactFloats.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace openspyre::machine {
namespace {

class ExactFloats {
 public:
#if defined(__x86_64__)
  ExactFloats() : saved_(_mm_getcsr()) {
    if (saved_ & kFlush) _mm_setcsr(saved_ & ~kFlush);
  }
  ~ExactFloats() {
    if (saved_ & kFlush) _mm_setcsr(saved_);
  }
#else
  ExactFloats() {}
#endif
  ExactFloats(const ExactFloats&) = delete;
  ExactFloats& operator=(const ExactFloats&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kFlush = 0x8040;  // FTZ and DAZ
  unsigned saved_;
#endif
};

}  // namespace
}  // namespace openspyre::machine
