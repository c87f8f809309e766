// The fused LSTM and GRU cells, which torch.nn takes on every accelerator and which no boxed
// fallback reaches: only CUDA has kernels (pytorch.md PT3). Computed by the CPU in float32 (float64
// for float64).
//
// Shapes: B batch, H hidden. Gates are [B, 4H] (i, f, g, o) for LSTM and [B, 3H] (r, z, n) for GRU;
// biases [4H] and [3H]. `workspace` carries to the backward pass, in the operands' dtype, the
// activated gates [B, 4H], and for GRU [B, 5H]: r, z, n, hx and the hidden part of n before r.

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <tuple>

#include "torch/copy.h"
#include "torch/fallback.h"
#include "torch/host_compute.h"

namespace openspyre::device {
namespace {

using at::Tensor;

void check_gates(const char* op, const Tensor& input_gates, const Tensor& hidden_gates,
                 const Tensor& state, int64_t gates) {
  TORCH_CHECK(input_gates.dim() == 2 && input_gates.sizes() == hidden_gates.sizes() &&
                  state.dim() == 2 && state.size(0) == input_gates.size(0) &&
                  input_gates.size(1) == gates * state.size(1),
              op, ": gates must be [B, ", gates, "H] and the state [B, H], but got ",
              describe(input_gates), ", ", describe(hidden_gates), " and ", describe(state));
}

Tensor with_bias(const Tensor& gates, const Tensor& bias) {
  return bias.defined() ? gates + bias : gates;
}

Tensor sigmoid_gradient(const Tensor& gradient, const Tensor& y) { return gradient * y * (1 - y); }
Tensor tanh_gradient(const Tensor& gradient, const Tensor& y) { return gradient * (1 - y * y); }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  constexpr const char* kOp = "aten::_thnn_fused_lstm_cell";
  const Tensor bi = input_bias.value_or(Tensor()), bh = hidden_bias.value_or(Tensor());
  FallbackScope scope(kOp, {input_gates, hidden_gates, cx, bi, bh});
  check_gates(kOp, input_gates, hidden_gates, cx, 4);
  const HostCompute host({input_gates, hidden_gates, cx, bi, bh}, kOp, scope);
  const auto gates =
      (with_bias(host.in(input_gates), host.in(bi)) + with_bias(host.in(hidden_gates), host.in(bh)))
          .chunk(4, 1);
  const Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]), g = at::tanh(gates[2]),
               o = at::sigmoid(gates[3]);
  const Tensor cy = f * host.in(cx) + i * g;
  const Tensor hy = o * at::tanh(cy);
  return {host.out(hy, scope), host.out(cy, scope), host.out(at::cat({i, f, g, o}, 1), scope)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  constexpr const char* kOp = "aten::_thnn_fused_lstm_cell_backward_impl";
  const Tensor for_hy = grad_hy.value_or(Tensor()), for_cy = grad_cy.value_or(Tensor());
  if (!for_hy.defined() && !for_cy.defined()) return {};
  FallbackScope scope(kOp, {for_hy, for_cy, cx, cy, workspace});
  const HostCompute host({cx, cy, workspace, for_hy, for_cy}, kOp, scope);
  const auto gates = host.in(workspace).chunk(4, 1);
  const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  const Tensor squashed = at::tanh(host.in(cy));
  Tensor through_cell = for_cy.defined() ? host.in(for_cy) : at::zeros_like(squashed);
  Tensor for_o = at::zeros_like(squashed);
  if (for_hy.defined()) {
    const Tensor gradient = host.in(for_hy);
    through_cell = through_cell + tanh_gradient(gradient * o, squashed);
    for_o = sigmoid_gradient(gradient * squashed, o);
  }
  const Tensor for_gates = at::cat(
      {sigmoid_gradient(through_cell * g, i), sigmoid_gradient(through_cell * host.in(cx), f),
       tanh_gradient(through_cell * i, g), for_o},
      1);
  const Tensor for_bias = has_bias ? for_gates.sum(0) : Tensor();
  return {host.out(for_gates, scope), host.out(through_cell * f, scope), host.out(for_bias, scope)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  constexpr const char* kOp = "aten::_thnn_fused_gru_cell";
  const Tensor bi = input_bias.value_or(Tensor()), bh = hidden_bias.value_or(Tensor());
  FallbackScope scope(kOp, {input_gates, hidden_gates, hx, bi, bh});
  check_gates(kOp, input_gates, hidden_gates, hx, 3);
  const HostCompute host({input_gates, hidden_gates, hx, bi, bh}, kOp, scope);
  const auto from_input = with_bias(host.in(input_gates), host.in(bi)).chunk(3, 1);
  const auto from_hidden = with_bias(host.in(hidden_gates), host.in(bh)).chunk(3, 1);
  const Tensor state = host.in(hx);
  const Tensor r = at::sigmoid(from_input[0] + from_hidden[0]);
  const Tensor z = at::sigmoid(from_input[1] + from_hidden[1]);
  const Tensor n = at::tanh(from_input[2] + r * from_hidden[2]);
  const Tensor hy = n + z * (state - n);
  return {host.out(hy, scope), host.out(at::cat({r, z, n, state, from_hidden[2]}, 1), scope)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  constexpr const char* kOp = "aten::_thnn_fused_gru_cell_backward";
  FallbackScope scope(kOp, {grad_hy, workspace});
  const HostCompute host({grad_hy, workspace}, kOp, scope);
  const auto parts = host.in(workspace).chunk(5, 1);
  const Tensor &r = parts[0], &z = parts[1], &n = parts[2], &state = parts[3], &hidden = parts[4];
  const Tensor gradient = host.in(grad_hy);
  const Tensor for_n = tanh_gradient(gradient * (1 - z), n);
  const Tensor for_r = sigmoid_gradient(for_n * hidden, r);
  const Tensor for_z = sigmoid_gradient(gradient * (state - n), z);
  const Tensor for_input = at::cat({for_r, for_z, for_n}, 1);
  const Tensor for_hidden = at::cat({for_r, for_z, for_n * r}, 1);
  const Tensor input_bias = has_bias ? for_input.sum(0) : Tensor();
  const Tensor hidden_bias = has_bias ? for_hidden.sum(0) : Tensor();
  return {host.out(for_input, scope), host.out(for_hidden, scope), host.out(gradient * z, scope),
          host.out(input_bias, scope), host.out(hidden_bias, scope)};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace
}  // namespace openspyre::device
