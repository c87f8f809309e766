#include "torch/generator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>
#include <mutex>

#include "torch/current.h"

namespace openspyre::device {
namespace {

constexpr int64_t kStateBytes = 16;

}  // namespace

Generator::Generator(c10::DeviceIndex index)
    : GeneratorImpl({kSpyre, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void Generator::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

uint64_t Generator::seed() {
  set_current_seed(c10::detail::getNonDeterministicRandom());
  return seed_;
}

void Generator::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == kStateBytes, "spyre: a generator state has ", kStateBytes,
              " bytes (seed and offset), got ", state.numel());
  const auto* bytes = static_cast<const std::byte*>(state.data());
  std::memcpy(&seed_, bytes, 8);
  std::memcpy(&offset_, bytes + 8, 8);
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  at::Tensor state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte));
  auto* bytes = static_cast<std::byte*>(state.data_ptr());
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset_, 8);
  return state.getIntrusivePtr();
}

std::pair<uint64_t, uint64_t> Generator::reserve(uint64_t count) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t first = offset_;
  offset_ += count;
  return {seed_, first};
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(device_.index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  // One per possible index, made at first use; leaked with the process.
  static auto* made = new std::array<std::once_flag, 128>();
  static auto* generators = new std::array<at::Generator, 128>();
  const auto at_index = static_cast<size_t>(checked_index(index));
  std::call_once((*made)[at_index], [&] {
    (*generators)[at_index] =
        at::make_generator<Generator>(static_cast<c10::DeviceIndex>(at_index));
  });
  return (*generators)[at_index];
}

Generator& generator_for(const std::optional<at::Generator>& generator, c10::Device device) {
  if (!generator.has_value() || !generator->defined()) {
    return *static_cast<Generator*>(default_generator(device.index()).unsafeGetGeneratorImpl());
  }
  TORCH_CHECK(generator->device().type() == kSpyre,
              "Expected a 'spyre' device type for generator "
              "but found '",
              generator->device().type(), "'");
  TORCH_CHECK(checked_index(generator->device()) == checked_index(device),
              "Expected a generator of ", device, " but found one of ", generator->device());
  return *static_cast<Generator*>(generator->unsafeGetGeneratorImpl());
}

}  // namespace openspyre::device
