// The random generator of a device: Philox (seed, offset), 16 bytes of state.
//
// Counter-based: which numbers an operation draws depends on (seed, offset) and the element's index
// alone, never on threads. The offset counts 128-bit counters.
#pragma once

#include <ATen/core/Generator.h>

#include <optional>
#include <utility>

namespace openspyre::device {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex index);

  void set_current_seed(uint64_t seed) override;  // also sets the offset to 0
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  // Takes `count` Philox counters: returns (seed, first offset). Takes mutex_.
  std::pair<uint64_t, uint64_t> reserve(uint64_t count);

 private:
  Generator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// The default generator of a device (index checked, -1: the current device). Starts no runtime.
const at::Generator& default_generator(c10::DeviceIndex index);

// `generator`, or the default one of `device`. A generator of another device raises.
Generator& generator_for(const std::optional<at::Generator>& generator, c10::Device device);

}  // namespace openspyre::device
