// Operations that the CPU computes for the device: the policy, the account, and the one helper with
// which every CPU-computed kernel of csrc/torch announces itself. There is no hidden fallback.
//
// The boxed kernel in fallback.cpp serves every operation without a kernel of its own; kernels that
// need more than boxing (random.cpp, convolution.cpp, rnn.cpp, attention.cpp, copy.cpp's casts)
// open a FallbackScope first.
//
// The policy belongs to the process, as the card does: it holds for every thread, autograd's device
// threads included, so `with torch.spyre.fallback("error"):` covers a backward pass too.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "torch/op_scope.h"

namespace openspyre::device {

enum class FallbackPolicy : uint8_t { Allow, Warn, Error };

FallbackPolicy fallback_policy() noexcept;
void set_fallback_policy(FallbackPolicy policy) noexcept;
const char* fallback_policy_name(FallbackPolicy policy) noexcept;
// Throws std::invalid_argument naming the text and the three choices.
FallbackPolicy parse_fallback_policy(const std::string& text);

// What one operation cost so far. Accounts are never freed; the words are relaxed atomics.
struct FallbackAccount {
  explicit FallbackAccount(std::string op) : name(std::move(op)) {}
  const std::string name;  // "aten::add.out"
  std::atomic<uint64_t> calls{0}, bytes_to_host{0}, bytes_to_device{0};
  std::atomic<bool> listed{false}, warned{false};
  std::atomic<bool> widened{false};  // a call computed 16-bit operands in float32
  std::string reason;  // why not on the card, of the last call that said; see note_reason
};

// The account of `op`, made at the first request.
FallbackAccount& fallback_account(const std::string& op);

struct FallbackCount {
  std::string op;
  uint64_t calls, bytes_to_host, bytes_to_device;
  bool widened;
  std::string reason;
};
// Says why the card does not compute an operation. Thread-safe.
void note_reason(FallbackAccount& account, const std::string& reason);

// Operations in the order in which they were first seen; those never called are left out.
std::vector<FallbackCount> fallback_counts();
// Forgets all counts and which operations have warned.
void reset_fallback_counts();

// One call that the CPU computes. The constructor applies the policy: under `error` it throws
// NotImplementedError naming the operation, the tensors, the rule and the way out, before anything
// has moved; under `warn` it warns once per operation. `inputs` are counted as moved to the host.
// Host bytes are counted (numel x itemsize): what the operation itself works on.
class FallbackScope {
 public:
  FallbackScope(const char* op, std::initializer_list<at::Tensor> inputs);
  // For the boxed kernel: the policy has been applied already.
  FallbackScope(FallbackAccount& account, c10::DeviceIndex device);
  ~FallbackScope();
  FallbackScope(const FallbackScope&) = delete;
  FallbackScope& operator=(const FallbackScope&) = delete;

  // The device of the statistics, for kernels whose only device tensor is the result.
  void on(c10::Device device) noexcept { device_ = device.index(); }
  // This call computes 16-bit operands in float32.
  void widened() noexcept { account_.widened.store(true, std::memory_order_relaxed); }
  void moved_to_host(const at::Tensor& tensor) { to_host_ += bytes_of(tensor); }
  void moved_to_device(const at::Tensor& tensor) { to_device_ += bytes_of(tensor); }

 private:
  static uint64_t bytes_of(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage()
               ? static_cast<uint64_t>(tensor.numel()) * tensor.itemsize()
               : 0;
  }
  FallbackAccount& account_;
  OpScope scope_;
  uint64_t to_host_ = 0, to_device_ = 0;
  c10::DeviceIndex device_ = -1;
};

// Throws (error), warns once (warn) or returns (allow). `arguments` describes the call.
void apply_fallback_policy(FallbackAccount& account, const std::string& arguments);

// "Tensor float16[2, 3] strides [3, 1] on spyre:0", for messages.
std::string describe(const at::Tensor& tensor);

// A seed for a fresh CPU generator, drawn from the (seed, offset) of a device generator. mt19937
// takes 32 bits of it, so all 64 input bits of both are mixed into every output bit.
uint64_t mix_seed(uint64_t seed, uint64_t offset) noexcept;

}  // namespace openspyre::device
