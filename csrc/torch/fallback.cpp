// The boxed kernel of every operation that the device has no kernel for: copies the arguments to
// the host, calls the CPU's kernel, and brings results and written arguments back.
//
// What it guarantees:
//  - one host copy per tensor; tensors that share a storage with one that is written share the host
//    memory too, so aliases and overlaps behave as they do on the CPU;
//  - nothing is written back unless the CPU's kernel succeeded;
//  - a written argument is returned as itself, resized if the CPU resized it;
//  - a view operation is refused, never answered with a copy;
//  - random operations draw from the device's generator and leave the CPU's untouched;
//  - products of 16-bit operands are computed in float32;
//  - sparse COO tensors go and come as their indices and values.

#include "torch/fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch/copy.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/generator.h"
#include "torch/native_ops.h"
#include "torch/operator_facts.h"
#include "torch/sparse.h"

namespace openspyre::device {
namespace {

using torch::jit::Stack;

// A device tensor among the arguments and its copy on the host.
struct Slot {
  at::Tensor device;
  at::Tensor host;
  bool written = false;
  bool read = false;
  bool fresh = false;      // the CPU was given an empty out= instead
  int shared = -1;         // the span of host memory that several tensors share, if any
  at::Tensor host_values;  // of a sparse tensor, as fetched
};

std::string describe_value(const c10::IValue& value) {
  if (value.isTensor()) return describe(value.toTensor());
  std::ostringstream out;
  if (value.isList()) {
    const auto items = value.toListRef();
    const size_t shown = std::min<size_t>(items.size(), 4);
    out << '[';
    for (size_t i = 0; i < shown; ++i) out << (i ? ", " : "") << describe_value(items[i]);
    if (shown < items.size()) out << ", ... " << items.size() << " in all";
    out << ']';
  } else if (value.isDevice() || value.isInt() || value.isDouble() || value.isBool() ||
             value.isNone() || value.isString()) {
    out << value;
  } else {
    out << value.tagKind();
  }
  return out.str();
}

std::string describe_call(const OperatorFacts& facts, const Stack& stack) {
  std::string text;
  for (const c10::IValue& value : torch::jit::last(stack, facts.argument_count)) {
    if (!text.empty()) text += ", ";
    text += describe_value(value);
  }
  return text;
}

// Keeps the process's default CPU generator as it was around an operation that draws from it and
// takes no generator argument. Another thread that draws at the same time draws from the swapped
// state; the stock kernels that reach the fallback all take a generator.
class SwappedCpuGenerator {
 public:
  explicit SwappedCpuGenerator(uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SwappedCpuGenerator() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  SwappedCpuGenerator(const SwappedCpuGenerator&) = delete;
  SwappedCpuGenerator& operator=(const SwappedCpuGenerator&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

class Call {
 public:
  Call(const OperatorFacts& facts, c10::DispatchKey host_key, Stack* stack)
      : facts_(facts),
        host_key_(host_key),
        stack_(stack),
        base_(stack->size() - facts.argument_count) {}

  void run(const c10::OperatorHandle& op) {
    gather();
    if (device_.index() < 0)
      device_ = c10::Device(kSpyre, static_cast<c10::DeviceIndex>(current_device()));
    FallbackScope scope(*facts_.account, device_.index());
    const bool wide = facts_.wide && choose_wide();
    if (wide) scope.widened();
    share_aliased_memory(wide, scope);
    for (Slot& slot : slots_) {
      if (!slot.host.defined()) fetch(slot, wide, scope);
    }
    place_arguments();
    std::optional<SwappedCpuGenerator> swapped;
    if (facts_.seeded) seed(swapped);
    op.redispatchBoxed(c10::DispatchKeySet(host_key_), stack_);
    swapped.reset();
    bring_results(scope);
    for (Slot& slot : slots_) {
      if (slot.written) write_back(slot, scope);
    }
  }

 private:
  c10::IValue& argument(size_t position) { return (*stack_)[base_ + position]; }

  // ---- Arguments ----------------------------------------------------------------------------

  void gather() {
    training_ = facts_.training < 0 || !argument(facts_.training).isBool() ||
                argument(facts_.training).toBool();
    for (const ArgumentFacts& a : facts_.arguments) {
      c10::IValue& value = argument(a.position);
      if (value.isNone()) continue;
      switch (a.kind) {
        case ArgumentKind::Tensor:
          meet(value.toTensor(), a);
          break;
        case ArgumentKind::TensorList:
        case ArgumentKind::OptionalTensorList:
          for (const c10::IValue& item : value.toListRef()) {
            if (item.isTensor()) {
              meet(item.toTensor(), a);
            } else {
              order_.push_back(-1);
            }
          }
          break;
        case ArgumentKind::Device:
          if (value.toDevice().type() == kSpyre) {
            const c10::Device named(kSpyre,
                                    static_cast<c10::DeviceIndex>(checked_index(value.toDevice())));
            if (!has_device_tensor_) device_ = named;
            value = c10::Device(c10::kCPU);
          }
          break;
        case ArgumentKind::Generator:
        case ArgumentKind::Other:
          break;
      }
    }
    if (has_device_tensor_) {
      for (const auto& [tensor, a] : host_tensors_) {
        const bool scalar = tensor.dim() == 0 && !a->written;
        TORCH_CHECK(tensor.is_cpu() && (scalar || a->any_cpu),
                    "Expected all tensors to be on the same device, but found at least two "
                    "devices, ",
                    device_, " and ", tensor.device(), "! (", facts_.account->name, ", ",
                    describe(tensor), ")");
      }
    }
  }

  // Appends to `order_` the slot of `tensor`, or -1 when it goes to the CPU as it is.
  void meet(const at::Tensor& tensor, const ArgumentFacts& a) {
    if (!tensor.defined()) {
      order_.push_back(-1);
      return;
    }
    if (!tensor.is_privateuseone()) {
      host_tensors_.emplace_back(tensor, &a);
      order_.push_back(-1);
      return;
    }
    if (!has_device_tensor_) {
      has_device_tensor_ = true;
      device_ = tensor.device();
    }
    TORCH_CHECK(tensor.device() == device_,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                device_, " and ", tensor.device(), "! (", facts_.account->name, ", ",
                describe(tensor), ")");
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.is_sparse() || (tensor.layout() == c10::kStrided && tensor.has_storage()),
        facts_.account->name, ": ", describe(tensor),
        " is neither a dense nor a sparse COO tensor; the spyre device holds no others. "
        "Use .cpu() or .to_dense() first.");
    const int index = slot_of(tensor);
    const bool written = a.written && (training_ || !a.if_training);
    slots_[index].written |= written;
    slots_[index].read |= !a.write_only;
    any_written_ |= written;
    order_.push_back(index);
  }

  int slot_of(const at::Tensor& tensor) {
    constexpr size_t kLinear = 12;  // beyond it (foreach, fused optimizers) a hash is faster
    if (slots_.size() <= kLinear) {
      for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].device.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) {
          return static_cast<int>(i);
        }
      }
    } else {
      if (by_impl_.empty()) {
        for (size_t i = 0; i < slots_.size(); ++i) {
          by_impl_.emplace(slots_[i].device.unsafeGetTensorImpl(), static_cast<int>(i));
        }
      }
      const auto [found, inserted] =
          by_impl_.emplace(tensor.unsafeGetTensorImpl(), static_cast<int>(slots_.size()));
      if (!inserted) return found->second;
    }
    slots_.emplace_back();
    slots_.back().device = tensor;
    return static_cast<int>(slots_.size()) - 1;
  }

  // Whether this call computes 16-bit operands in float32: when it has some, and no other floating
  // dtype that the CPU's kernel would have refused to mix with them.
  bool choose_wide() {
    if (facts_.dtype >= 0 && !argument(facts_.dtype).isNone()) return false;  // the caller chose
    std::optional<at::ScalarType> narrow;
    for (const Slot& slot : slots_) {
      const at::ScalarType type = slot.device.scalar_type();
      if (is_16bit_float(type)) {
        if (narrow && *narrow != type) return false;
        narrow = type;
      }
    }
    if (!narrow) return false;
    if (!facts_.mixed) {
      for (const Slot& slot : slots_) {
        const at::ScalarType type = slot.device.scalar_type();
        if (!is_16bit_float(type) && (at::isFloatingType(type) || at::isComplexType(type))) {
          return false;
        }
      }
      for (const auto& [tensor, a] : host_tensors_) {
        if (tensor.is_floating_point() && tensor.scalar_type() != *narrow) return false;
      }
    }
    narrow_ = narrow;
    return true;
  }

  static std::optional<at::ScalarType> host_dtype(const at::Tensor& tensor, bool wide) {
    if (wide && is_16bit_float(tensor.scalar_type())) return at::kFloat;
    return std::nullopt;
  }

  void fetch(Slot& slot, bool wide, FallbackScope& scope) {
    const std::optional<at::ScalarType> dtype = host_dtype(slot.device, wide);
    if (slot.device.is_sparse()) {
      slot.host = sparse_to_host(slot.device, dtype);
      slot.host_values = slot.host._values();
      scope.moved_to_host(slot.device._indices());
      scope.moved_to_host(slot.device._values());
      return;
    }
    if (!slot.read) {
      const at::ScalarType type = dtype.value_or(slot.device.scalar_type());
      if (slot.device.dim() == 0) {
        // Some kernels resize a 0-d out= on the way (losses with a reduction) and would warn of it.
        slot.fresh = true;
        slot.host = at::Tensor(at::detail::empty_cpu({0}, type));
        return;
      }
      slot.host = at::Tensor(
          at::detail::empty_strided_cpu(slot.device.sizes(), slot.device.strides(), type));
      return;
    }
    slot.host = to_host(slot.device, dtype);
    scope.moved_to_host(slot.device);
    if (slot.device.unsafeGetTensorImpl()->is_wrapped_number()) {
      slot.host.unsafeGetTensorImpl()->set_wrapped_number(true);
    }
  }

  // Tensors that share a storage, one of which is written: the host gets one copy of the elements
  // that they span, and each is a view of it.
  void share_aliased_memory(bool wide, FallbackScope& scope) {
    if (!any_written_ || slots_.size() < 2) return;
    if (slots_.size() <= 4) {  // the common small calls need no table
      bool aliased = false;
      for (size_t i = 0; i < slots_.size() && !aliased; ++i) {
        for (size_t j = i + 1; j < slots_.size() && !aliased; ++j) {
          aliased = storage_of(slots_[i]) != nullptr &&
                    storage_of(slots_[i]) == storage_of(slots_[j]) &&
                    (slots_[i].written || slots_[j].written);
        }
      }
      if (!aliased) return;
    }
    std::unordered_map<const c10::StorageImpl*, c10::SmallVector<int, 4>> groups;
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].device.numel() != 0 && storage_of(slots_[i]) != nullptr)
        groups[storage_of(slots_[i])].push_back(static_cast<int>(i));
    }
    for (const auto& [storage, members] : groups) {
      if (members.size() < 2) continue;
      bool written = false;
      for (int i : members) written |= slots_[i].written;
      if (written) share(members, wide, scope);
    }
  }

  static const c10::StorageImpl* storage_of(const Slot& slot) {
    if (slot.device.is_sparse()) return nullptr;  // has none of its own
    return slot.device.storage().unsafeGetStorageImpl();
  }

  void share(const c10::SmallVector<int, 4>& members, bool wide, FallbackScope& scope) {
    const at::Tensor& first = slots_[members[0]].device;
    int64_t low = first.storage_offset(), high = low;
    for (int i : members) {
      const at::Tensor& tensor = slots_[i].device;
      TORCH_CHECK_NOT_IMPLEMENTED(
          tensor.scalar_type() == first.scalar_type(), facts_.account->name, ": ", describe(first),
          " and ", describe(tensor),
          " are views of one storage with different dtypes, and one of "
          "them is written; the CPU fallback cannot keep both in step. Clone one of them first.");
      int64_t end = tensor.storage_offset() + 1;
      for (int64_t d = 0; d < tensor.dim(); ++d) end += (tensor.size(d) - 1) * tensor.stride(d);
      low = std::min(low, tensor.storage_offset());
      high = std::max(high, end);
    }
    const at::Tensor span = first.as_strided({high - low}, {1}, low);
    const at::Tensor memory = to_host(span, host_dtype(first, wide));
    scope.moved_to_host(span);
    for (int i : members) {
      const at::Tensor& tensor = slots_[i].device;
      slots_[i].host =
          memory.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset() - low);
    }
  }

  // Puts the host tensors into the stack; keeps what the returns need.
  void place_arguments() {
    for (int16_t source : facts_.returns) {
      if (source >= 0) originals_.push_back(argument(source));
    }
    size_t next = 0;
    for (const ArgumentFacts& a : facts_.arguments) {
      c10::IValue& value = argument(a.position);
      if (value.isNone()) continue;
      switch (a.kind) {
        case ArgumentKind::Tensor: {
          const int index = order_[next++];
          if (index >= 0) value = slots_[index].host;
          break;
        }
        case ArgumentKind::TensorList: {
          c10::List<at::Tensor> list;
          const auto items = value.toListRef();
          list.reserve(items.size());
          for (const c10::IValue& item : items) {
            const int index = order_[next++];
            list.push_back(index >= 0 ? slots_[index].host : item.toTensor());
          }
          value = std::move(list);
          break;
        }
        case ArgumentKind::OptionalTensorList: {
          c10::List<std::optional<at::Tensor>> list;
          const auto items = value.toListRef();
          list.reserve(items.size());
          for (const c10::IValue& item : items) {
            const int index = order_[next++];
            if (index >= 0) {
              list.push_back(slots_[index].host);
            } else {
              list.push_back(item.isTensor() ? std::optional<at::Tensor>(item.toTensor())
                                             : std::nullopt);
            }
          }
          value = std::move(list);
          break;
        }
        case ArgumentKind::Device:
        case ArgumentKind::Generator:
        case ArgumentKind::Other:
          break;
      }
    }
  }

  // A fresh CPU generator, seeded from the device's.
  void seed(std::optional<SwappedCpuGenerator>& swapped) {
    std::optional<at::Generator> given;
    if (facts_.generator >= 0 && !argument(facts_.generator).isNone()) {
      given = argument(facts_.generator).toGenerator();
    }
    TORCH_CHECK(has_device_tensor_ || host_tensors_.empty(),
                "Expected a 'cpu' device type for "
                "generator but found '",
                given ? given->device().str() : "none", "' (", facts_.account->name, ")");
    const auto [seed, offset] = generator_for(given, device_).reserve(1);
    const uint64_t host_seed = mix_seed(seed, offset);
    if (facts_.generator >= 0) {
      argument(facts_.generator) =
          at::Generator(at::make_generator<at::CPUGeneratorImpl>(host_seed));
    } else {
      swapped.emplace(host_seed);
    }
  }

  // ---- Results ------------------------------------------------------------------------------

  void bring_results(FallbackScope& scope) {
    const size_t first = stack_->size() - facts_.return_count;
    size_t original = 0;
    for (size_t i = 0; i < facts_.return_count; ++i) {
      c10::IValue& value = (*stack_)[first + i];
      if (facts_.returns[i] >= 0) {
        value = std::move(originals_[original++]);
        continue;
      }
      if (value.isTensor()) {
        const at::Tensor& host = value.toTensor();
        if (host.defined()) value = bring(host, i, scope);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& host : value.toTensorVector()) {
          list.push_back(host.defined() ? bring(host, i, scope) : host);
        }
        value = std::move(list);
      }
    }
  }

  at::Tensor bring(const at::Tensor& host, size_t position, FallbackScope& scope) {
    const bool sparse = host.is_sparse();
    TORCH_CHECK_NOT_IMPLEMENTED(
        sparse || (host.layout() == c10::kStrided && host.has_storage() && !host.is_quantized() &&
                   !host.is_nested()),
        facts_.account->name, " gives a ", host.layout(), host.is_quantized() ? " quantized" : "",
        host.is_nested() ? " nested" : "",
        " tensor; the spyre device holds dense and sparse COO tensors only. "
        "Compute it on the CPU: tensor.cpu().");
    std::optional<at::ScalarType> dtype;
    if (narrow_ && host.scalar_type() == at::kFloat && !(facts_.kept_returns >> position & 1)) {
      dtype = narrow_;
    }
    if (sparse) {
      at::Tensor result = sparse_to_device(host, device_, dtype);
      scope.moved_to_device(result._indices());
      scope.moved_to_device(result._values());
      return result;
    }
    at::Tensor result = to_device(host, device_, dtype);
    scope.moved_to_device(result);
    return result;
  }

  void write_back(Slot& slot, FallbackScope& scope) const {
    if (slot.device.is_sparse()) {
      sparse_from_host(slot.host, slot.host_values, slot.device);
      scope.moved_to_device(slot.device._indices());
      scope.moved_to_device(slot.device._values());
      return;
    }
    if (slot.host.sizes() != slot.device.sizes()) {  // out= that the CPU resized
      if (slot.fresh) {
        TORCH_WARN(facts_.account->name, ": the out= tensor of shape [] was resized to ",
                   slot.host.sizes(), "; give it 0 elements with out.resize_(0) to allow that.");
      }
      slot.device.resize_(slot.host.sizes());
      // As dense as on the CPU: gaps of a CPU result (rows cut off a work space) are not kept.
      const std::vector<int64_t> strides =
          slot.host.is_non_overlapping_and_dense()
              ? slot.host.strides().vec()
              : at::infer_dense_strides(slot.host.sizes(), slot.host.strides());
      if (slot.device.strides() != strides) slot.device.as_strided_(slot.host.sizes(), strides);
    }
    from_host(slot.host, slot.device);
    scope.moved_to_device(slot.device);
  }

  const OperatorFacts& facts_;
  const c10::DispatchKey host_key_;
  Stack* const stack_;
  const size_t base_;
  c10::Device device_{kSpyre, -1};
  bool has_device_tensor_ = false;
  bool any_written_ = false;
  bool training_ = true;
  std::optional<at::ScalarType> narrow_;  // set when the call computes in float32
  c10::SmallVector<Slot, 6> slots_;
  c10::SmallVector<int, 12> order_;  // slot per tensor argument, in schema order
  c10::SmallVector<std::pair<at::Tensor, const ArgumentFacts*>, 2> host_tensors_;
  c10::SmallVector<c10::IValue, 4> originals_;
  std::unordered_map<const c10::TensorImpl*, int> by_impl_;
};

template <c10::DispatchKey host_key>
void fallback(const c10::OperatorHandle& op, Stack* stack) {
  std::unique_ptr<OperatorFacts> owner;
  const OperatorFacts& facts = facts_of(op, owner);
  // What is computed below is neither recorded by autograd nor cast by an autocast region.
  const c10::impl::ExcludeDispatchKeyGuard guard(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  if (host_key == c10::DispatchKey::CPU && native_enabled() && run_native(op, facts, stack)) return;
  if (fallback_policy() != FallbackPolicy::Allow) {
    apply_fallback_policy(*facts.account, describe_call(facts, *stack));
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!facts.view, facts.account->name,
                              " must return a view of its argument or change it in place, "
                              "and has no kernel on the spyre device; a copy through the CPU would "
                              "lose writes. Arguments: ",
                              describe_call(facts, *stack), ". Use .cpu() first.");
  const bool stands_in =
      host_key == c10::DispatchKey::SparseCPU ? facts.sparse_kernel : facts.cpu_kernel;
  TORCH_CHECK_NOT_IMPLEMENTED(stands_in && !facts.refused, facts.account->name,
                              " has no kernel on the spyre device "
                              "and none on the CPU that could stand in. Arguments: ",
                              describe_call(facts, *stack), ".");
  Call(facts, host_key, stack).run(op);
}

torch::CppFunction dense() {
  return torch::CppFunction::makeFromBoxedFunction<&fallback<c10::DispatchKey::CPU>>();
}
torch::CppFunction sparse() {
  return torch::CppFunction::makeFromBoxedFunction<&fallback<c10::DispatchKey::SparseCPU>>();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(dense()); }
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(sparse()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // Composite forms that list the devices they know and refuse this one.
  m.impl("mode.values", dense());
  // Composite forms that take many steps where one program does it.
  for (const char* name : {"native_layer_norm", "native_group_norm"}) m.impl(name, dense());
  // Composite forms whose steps overflow in 16 bits, where the whole is computed in float32.
  for (const char* name : {"soft_margin_loss", "soft_margin_loss.out", "soft_margin_loss_backward",
                           "soft_margin_loss_backward.grad_input"}) {
    m.impl(name, dense());
  }
}

// Operations with a kernel for sparse tensors of the CPU beside a composite one for dense tensors,
// which would be found before the fallback.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  for (const char* name :
       {"abs", "abs_", "deg2rad", "deg2rad.out", "deg2rad_", "isinf", "mv", "nan_to_num",
        "nan_to_num_", "rad2deg", "rad2deg.out", "rad2deg_", "sum", "zeros.out"}) {
    m.impl(name, sparse());
  }
}

}  // namespace
}  // namespace openspyre::device
