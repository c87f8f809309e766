// Schema analysis for the boxed fallback, cached per operation.

#include "torch/operator_facts.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace openspyre::device {
namespace {

using std::string_view;

// By base name, computed in float32 where the operands are 16-bit: products, since a CPU float16
// product is both hundreds of times slower and less exact; operations whose intermediate values
// leave float16's range inside the CPU's float16 kernel; and those that jump (a rounded quotient, a
// bin, a cell of a grid), which should jump where the exact value does and not where a rounded one.
// A name with an overload means that overload alone.
const std::unordered_set<string_view>& wide_operations() {
  static const std::unordered_set<string_view> names = {
      "aten::mm",
      "aten::bmm",
      "aten::addmm",
      "aten::_addmm_activation",
      "aten::addmv",
      "aten::mv",
      "aten::addbmm",
      "aten::baddbmm",
      "aten::dot",
      "aten::vdot",
      "aten::matmul",
      "aten::linear",
      "aten::addr",
      "aten::_cdist_forward",
      "aten::_cdist_backward",
      "aten::_native_multi_head_attention",
      "aten::_transformer_encoder_layer_fwd",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      "aten::_slow_conv2d_forward",
      "aten::_slow_conv2d_backward",
      "aten::slow_conv3d_forward",
      "aten::slow_conv_dilated2d",
      "aten::slow_conv_dilated3d",
      "aten::slow_conv_transpose2d",
      "aten::slow_conv_transpose3d",
      "aten::mkldnn_rnn_layer",
      "aten::_weight_int8pack_mm",
      "aten::_weight_int4pack_mm_for_cpu",
      "aten::_compute_linear_combination",
      "aten::linalg_matrix_exp",
      "aten::linalg_vector_norm",
      "aten::segment_reduce",
      "aten::_segment_reduce_backward",
      "aten::soft_margin_loss",
      "aten::soft_margin_loss_backward",
      "aten::_logcumsumexp",
      "aten::div.Tensor_mode",
      "aten::div.Scalar_mode",
      "aten::div.out_mode",
      "aten::div_.Tensor_mode",
      "aten::div_.Scalar_mode",
      "aten::histc",
      "aten::grid_sampler_2d",
      "aten::grid_sampler_2d_backward",
      "aten::grid_sampler_3d",
      "aten::grid_sampler_3d_backward",
      "aten::_grid_sampler_2d_cpu_fallback"};
  return names;
}

bool takes_any_cpu_tensor(string_view base, string_view argument) {
  if (argument == "indices") {
    return base == "aten::index" || base == "aten::index_put" || base == "aten::index_put_" ||
           base == "aten::_index_put_impl_" || base == "aten::_unsafe_index" ||
           base == "aten::_unsafe_index_put";
  }
  if (base == "aten::_ctc_loss" || base == "aten::_ctc_loss_backward") {
    return argument == "targets" || argument == "input_lengths" || argument == "target_lengths";
  }
  return base == "aten::_pack_padded_sequence" && argument == "lengths";
}

// Statistics that batch normalisation updates although its schema does not say so.
bool is_written_silently(string_view base, string_view argument) {
  return (base == "aten::native_batch_norm" || base == "aten::batch_norm_update_stats") &&
         (argument == "running_mean" || argument == "running_var");
}

// The CPU's result would not be what the name says: memory shared with a file.
bool is_refused(string_view base) { return base == "aten::from_file"; }

ArgumentKind kind_of(const c10::TypePtr& declared) {
  c10::TypePtr type = declared;
  if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::Tensor;
    case c10::TypeKind::DeviceObjType:
      return ArgumentKind::Device;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::Generator;
    case c10::TypeKind::ListType: {
      const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return ArgumentKind::TensorList;
      if (const auto* optional = element->castRaw<c10::OptionalType>()) {
        if (optional->getElementType()->kind() == c10::TypeKind::TensorType) {
          return ArgumentKind::OptionalTensorList;
        }
      }
      return ArgumentKind::Other;
    }
    default:
      return ArgumentKind::Other;
  }
}

std::unique_ptr<OperatorFacts> analyse(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const c10::OperatorName& name = op.operator_name();
  auto facts = std::make_unique<OperatorFacts>();
  facts->account = &fallback_account(
      name.overload_name.empty() ? name.name : name.name + "." + name.overload_name);
  const string_view base = name.name;
  // In-place forms compute as their functional twins do.
  string_view stem = base;
  if (stem.size() > 1 && stem.back() == '_' && stem[stem.size() - 2] != '_') stem.remove_suffix(1);
  facts->wide =
      wide_operations().count(stem) != 0 || wide_operations().count(facts->account->name) != 0;
  if (base == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    facts->mixed = true;
    facts->kept_returns = 1u << 1;  // logsumexp is float32 for 16-bit queries
  }
  if (base == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") facts->mixed = true;
  facts->refused = is_refused(base);
  facts->cpu_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  facts->sparse_kernel = op.hasComputedKernelForDispatchKey(c10::DispatchKey::SparseCPU);

  const auto& arguments = schema.arguments();
  facts->argument_count = static_cast<uint16_t>(arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = arguments[i];
    const ArgumentKind kind = kind_of(argument.real_type());
    if (kind == ArgumentKind::Generator) facts->generator = static_cast<int>(i);
    if (kind == ArgumentKind::Other) continue;
    const c10::AliasInfo* alias = argument.alias_info();
    const bool silent = is_written_silently(base, argument.name());
    const bool written = silent || (alias != nullptr && alias->isWrite());
    facts->arguments.push_back({.position = static_cast<uint16_t>(i),
                                .kind = kind,
                                .written = written,
                                .if_training = silent,
                                .write_only = written && argument.is_out(),
                                .any_cpu = takes_any_cpu_tensor(base, argument.name())});
  }
  if (const auto training = schema.argumentIndexWithName("training")) {
    facts->training = *training;
  }
  if (const auto dtype = schema.argumentIndexWithName("dtype")) facts->dtype = *dtype;
  const auto& returns = schema.returns();
  facts->return_count = static_cast<uint16_t>(returns.size());
  for (const c10::Argument& result : returns) {
    int16_t source = -1;
    if (const c10::AliasInfo* alias = result.alias_info()) {
      if (alias->isWrite()) {
        for (size_t i = 0; i < arguments.size() && source < 0; ++i) {
          const c10::AliasInfo* other = arguments[i].alias_info();
          if (other != nullptr && other->isWrite() && other->beforeSets() == alias->beforeSets()) {
            source = static_cast<int16_t>(i);
          }
        }
      } else {
        facts->view = true;
      }
    }
    facts->returns.push_back(source);
  }
  facts->seeded = facts->generator >= 0 || op.hasTag(at::Tag::nondeterministic_seeded);
  // Operations that change their argument's own geometry need a kernel too.
  if (op.hasTag(at::Tag::inplace_view)) facts->view = true;
  return facts;
}

}  // namespace

const OperatorFacts& facts_of(const c10::OperatorHandle& op,
                              std::unique_ptr<OperatorFacts>& owner) {
  const void* const key = &op.schema();
  // A direct-mapped cache in front of the shared table: one compare for a repeated operation.
  struct Entry {
    const void* key = nullptr;
    const OperatorFacts* facts = nullptr;
  };
  thread_local std::array<Entry, 256> recent;
  Entry& entry = recent[(reinterpret_cast<uintptr_t>(key) >> 6) % recent.size()];
  if (entry.key == key) return *entry.facts;

  const std::string& name = op.operator_name().name;
  if (name.compare(0, 6, "aten::") != 0) {
    owner = analyse(op);  // may be deregistered, and its address used again
    return *owner;
  }
  static std::mutex mutex;
  static auto* const table = new std::unordered_map<const void*, std::unique_ptr<OperatorFacts>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<OperatorFacts>& facts = (*table)[key];
  if (!facts) facts = analyse(op);
  entry = {key, facts.get()};
  return *facts;
}

}  // namespace openspyre::device
