// While one lives, floats of this thread round to nearest and keep subnormals, whatever the process
// had set (torch.set_flush_denormal does): result bits are part of the contract.
//
// Torch-free. Internal linkage: files for single instruction sets may use it too.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace openspyre::machine {
namespace {

class FloatControl {
 public:
#if defined(__x86_64__)
  FloatControl() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatControl() {
    if ((saved_ & ~kFlags) != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr uint32_t kDefault = 0x1F80, kFlags = 0x3F;  // exceptions masked, all else off
  uint32_t saved_;
#elif defined(__aarch64__)
  FloatControl() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t(0)));
  }
  ~FloatControl() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
 public:
  FloatControl(const FloatControl&) = delete;
  FloatControl& operator=(const FloatControl&) = delete;
};

}  // namespace
}  // namespace openspyre::machine
