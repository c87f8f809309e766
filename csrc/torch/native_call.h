// A call of an operation as its key: everything that the compiled program for it depends on.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <bit>
#include <optional>
#include <unordered_map>
#include <vector>

#include "torch/allocation.h"
#include "torch/current.h"
#include "torch/dtypes.h"
#include "torch/errors.h"
#include "torch/layout_numbers.h"

namespace openspyre::device {

using Words = std::vector<int64_t>;

enum class Kind : uint8_t { Tensor, Tensors, Number, Numbers, Generator, Device, Ignored, Other };

struct ArgumentInfo {
  Kind kind;
  c10::IValue preset;  // the default of a number
};

struct Number {
  bool is_float;
  double real;
  int64_t integer;
  int64_t bits() const { return is_float ? std::bit_cast<int64_t>(real) : integer; }
};

// What a word of the key says of what follows it.
enum Tag : int64_t {
  kAbsent = 1,
  kTensor,
  kHostTensor,
  kWrapped,
  kFloat,
  kInt,
  kBool,
  kPreset,
  kList,
  kText,
  kPlace
};

// The number of the thread's hint (openspyre/device/hints.py).
inline thread_local int64_t hint_number = 0;

struct Call {
  Words key;
  c10::SmallVector<at::Tensor, 8> tensors;
  c10::SmallVector<int64_t, 8> origins;  // linear element of the first one
  c10::SmallVector<std::shared_ptr<const machine::Layout>, 8> layouts;
  c10::SmallVector<Number, 4> numbers;
  c10::SmallVector<bool, 16> wrapped;  // per Tensor argument: a number in a tensor's clothes
  std::optional<at::Generator> generator;
  c10::Device device{kSpyre, -1};
  std::unordered_map<const c10::StorageImpl*, int64_t> first_of;

  void word(int64_t value) { key.push_back(value); }
  void words(c10::IntArrayRef values) {
    key.push_back(static_cast<int64_t>(values.size()));
    key.insert(key.end(), values.begin(), values.end());
  }

  // The first tensor that has this storage, or -1; the tensor that is added next has it.
  int64_t earlier_of(const c10::StorageImpl* storage) {
    const auto index = static_cast<int64_t>(tensors.size());
    constexpr int64_t kFew = 16;  // regions take hundreds: then by a table
    if (index < kFew) {
      for (int64_t other = 0; other < index; ++other)
        if (storage_of(other) == storage) return other;
      return -1;
    }
    if (first_of.empty())
      for (int64_t other = index - 1; other >= 0; --other) first_of[storage_of(other)] = other;
    const auto [found, is_new] = first_of.emplace(storage, index);
    return is_new ? -1 : found->second;
  }

  const c10::StorageImpl* storage_of(int64_t tensor) const {
    return tensors[static_cast<size_t>(tensor)]
        .unsafeGetTensorImpl()
        ->unsafe_storage()
        .unsafeGetStorageImpl();
  }

  bool add_tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      word(kAbsent);
      return true;
    }
    if (tensor.is_cpu()) return add_host(tensor);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    if (!tensor.is_privateuseone() || tensor.layout() != c10::kStrided || !impl->has_storage() ||
        impl->has_symbolic_sizes_strides() || tensor.is_conj() || tensor.is_neg() ||
        impl->is_wrapped_number() || tensor.is_quantized() || tensor.is_nested())
      return false;
    if (device.index() < 0) {
      device = tensor.device();
    } else if (device != tensor.device()) {
      return false;
    }
    const int64_t shares = earlier_of(impl->unsafe_storage().unsafeGetStorageImpl());
    word(kTensor);
    word(static_cast<int64_t>(tensor.scalar_type()));
    words(tensor.sizes());
    words(tensor.strides());
    int64_t origin = tensor.storage_offset();
    std::shared_ptr<const machine::Layout> layout;
    int64_t host_offset = 0;
    if (const AllocationRef held(tensor, &host_offset); held && tensor.numel() != 0) {
      if (!held->typed) guarded([&] { pin(*held, tensor); });
      const bool same = held->typed && (held->dtype == tensor.scalar_type() ||
                                        same_bits(tensor.scalar_type(), held->dtype,
                                                  card::Runtime::get().numerics().mode));
      layout = layout_of(*held);
      const auto itemsize = static_cast<int64_t>(tensor.itemsize());
      if (host_offset % itemsize != 0) return false;
      origin += host_offset / itemsize;
      word(layout_number(layout));
      // Whether it begins at a stick; what else depends on the offset is checked by the binding.
      word(!same         ? -1
           : origin == 0 ? 0
                         : 1 + layout->element_offset(origin) % machine::kStickBytes);
    } else {
      word(-1);
    }
    // Tensors that share a storage may overlap: then every offset counts.
    word(shares);
    if (shares >= 0) {
      word(origin);
      word(origins[static_cast<size_t>(shares)]);
    }
    tensors.push_back(tensor);
    origins.push_back(origin);
    layouts.push_back(std::move(layout));
    return true;
  }

  // A 0-dim tensor of the host is a number.
  bool add_host(const at::Tensor& tensor) {
    if (tensor.dim() != 0 || tensor.requires_grad()) return false;
    const at::ScalarType type = tensor.scalar_type();
    word(tensor.unsafeGetTensorImpl()->is_wrapped_number() ? kWrapped : kHostTensor);
    word(static_cast<int64_t>(type));
    if (type == at::kBool) {
      word(tensor.item<bool>());
    } else if (at::isFloatingType(type)) {
      numbers.push_back({true, tensor.item<double>(), 0});
    } else if (at::isIntegralType(type, false) && type != at::kUInt64) {
      numbers.push_back({false, 0, tensor.item<int64_t>()});
    } else {
      return false;
    }
    return true;
  }

  bool add_number(const c10::IValue& value, const c10::IValue& preset) {
    if (value.isNone()) {
      word(kAbsent);
    } else if (value.isBool()) {
      word(kBool);
      word(value.toBool());
    } else if (value.isDouble()) {
      if (preset.isDouble() && preset.toDouble() == value.toDouble()) {
        word(kPreset);
        return true;
      }
      word(kFloat);
      numbers.push_back({true, value.toDouble(), 0});
    } else if (value.isInt()) {
      if (preset.isInt() && preset.toInt() == value.toInt()) {
        word(kPreset);
        return true;
      }
      word(kInt);
      numbers.push_back({false, 0, value.toInt()});
    } else {
      return false;  // complex, symbolic
    }
    return true;
  }

  bool add_constant(const c10::IValue& value) {
    if (value.isNone()) {
      word(kAbsent);
    } else if (value.isInt()) {
      word(kInt);
      word(value.toInt());
    } else if (value.isBool()) {
      word(kBool);
      word(value.toBool());
    } else if (value.isDouble()) {
      word(kFloat);
      word(std::bit_cast<int64_t>(value.toDouble()));
    } else if (value.isString()) {
      word(kText);
      const std::string& text = value.toStringRef();
      word(static_cast<int64_t>(text.size()));
      for (const char c : text) word(c);
    } else if (value.isDevice()) {
      word(kPlace);
      word(static_cast<int64_t>(value.toDevice().type()) << 16 | (value.toDevice().index() & 0xff));
    } else if (value.isList()) {
      const auto items = value.toListRef();
      word(kList);
      word(static_cast<int64_t>(items.size()));
      for (const c10::IValue& item : items)
        if (!add_constant(item)) return false;
    } else {
      return false;
    }
    return true;
  }

  bool add(const ArgumentInfo& info, const c10::IValue& value) {
    switch (info.kind) {
      case Kind::Tensor:
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        return add_tensor(value.toTensor());
      case Kind::Tensors: {
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        const auto items = value.toListRef();
        word(kList);
        word(static_cast<int64_t>(items.size()));
        for (const c10::IValue& item : items) {
          if (item.isTensor()) {
            if (!add_tensor(item.toTensor())) return false;
          } else {
            word(kAbsent);
          }
        }
        return true;
      }
      case Kind::Number:
        return add_number(value, info.preset);
      case Kind::Numbers: {
        if (value.isNone()) {
          word(kAbsent);
          return true;
        }
        const auto items = value.toListRef();
        word(kList);
        word(static_cast<int64_t>(items.size()));
        for (const c10::IValue& item : items)
          if (!add_number(item, c10::IValue())) return false;
        return true;
      }
      case Kind::Generator:
        if (!value.isNone()) generator = value.toGenerator();
        return true;
      case Kind::Ignored:
        return true;
      case Kind::Device:
      case Kind::Other:
        return add_constant(value);
    }
    return false;
  }

  // The call on top of the stack; false when no recipe can be for it.
  bool collect(const std::vector<ArgumentInfo>& arguments, const torch::jit::Stack& stack) {
    key.reserve(64);
    const machine::Numerics numerics = card::Runtime::get().numerics();
    word(hint_number << 16 | static_cast<int64_t>(numerics.mode) << 8 |
         static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())));
    const size_t base = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i)
      if (!add(arguments[i], stack[base + i])) return false;
    if (device.index() < 0) return false;
    word(device.index());
    return true;
  }
};

}  // namespace openspyre::device
