// The layout contract against plain loops over every element.

#include <random>
#include <set>

#include "card/plan_contract.h"
#include "check.h"

using namespace openspyre::card;
namespace machine = openspyre::machine;
using machine::Format;
using machine::Layout;

namespace {

machine::Expr constant(int64_t value) { return {{{machine::ExprStep::Const, value}}}; }

machine::Operand operand_of(const std::vector<int64_t>& shape, const std::vector<int64_t>& within,
                            const std::vector<int>& order, Format format) {
  machine::Operand operand{};
  operand.name = "x";
  operand.format = format;
  for (const int64_t size : shape) operand.shape.push_back(constant(size));
  for (const int64_t size : within) operand.within.push_back(constant(size));
  operand.has_within = !within.empty();
  operand.has_order = !order.empty();
  operand.order = order;
  return operand;
}

template <class Visit>
void each_index(const int64_t* shape, int rank, const Visit& visit) {
  std::vector<int64_t> index(static_cast<size_t>(rank), 0);
  for (;;) {
    visit(index);
    int d = rank - 1;
    while (d >= 0 && ++index[static_cast<size_t>(d)] == shape[d])
      index[static_cast<size_t>(d--)] = 0;
    if (d < 0) return;
  }
}

int64_t operand_address(const OperandLayout& o, const std::vector<int64_t>& index, int64_t item) {
  int64_t address = 0;
  for (int d = 0; d < o.rank; ++d) {
    const int64_t i = index[static_cast<size_t>(d)];
    address += d == o.stick ? i / o.eps * o.strides[d] + i % o.eps * item : i * o.strides[d];
  }
  return address;
}

int64_t linear_of(const TensorView& view, const std::vector<int64_t>& index) {
  int64_t linear = view.offset;
  for (size_t d = 0; d < index.size(); ++d) linear += index[d] * view.strides[d];
  return linear;
}

// What match_layout shall say, the slow way.
bool lies_so(const OperandLayout& o, const TensorView& view, bool written) {
  const int64_t item = machine::format_bytes(view.layout->format());
  const int64_t base = view.layout->element_offset(view.offset);
  if (base % 128) return false;
  bool same = true;
  std::set<int64_t> mine, sticks;
  each_index(o.shape, o.rank, [&](const std::vector<int64_t>& index) {
    const int64_t linear = linear_of(view, index);
    if (linear >= view.layout->numel()) {
      same = false;
      return;
    }
    const int64_t at = view.layout->element_offset(linear);
    same &= at == base + operand_address(o, index, item);
    mine.insert(linear);
    sticks.insert(at / 128);
  });
  if (!same || !written) return same;
  for (int64_t e = 0; e < view.layout->numel(); ++e)
    if (!mine.count(e) && sticks.count(view.layout->element_offset(e) / 128)) return false;
  return true;
}

}  // namespace

TEST(rt60_views_are_accepted_exactly_where_they_lie_as_declared) {
  std::mt19937_64 random(7);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const int64_t sizes[] = {1, 1, 2, 3, 4, 5, 16, 31, 32, 33, 64, 65, 96, 128};
  int accepted = 0, refused = 0;
  for (int round = 0; round < check::rounds(6000); ++round) {
    const Format format = round % 3 == 0   ? Format::IEEE_INT64
                          : round % 3 == 1 ? Format::IEEE_FP32
                                           : Format::SEN169_FP16;
    const int rank = static_cast<int>(pick(1, 3));
    std::vector<int64_t> host(static_cast<size_t>(rank));
    int64_t numel = 1;
    for (int64_t& size : host) {
      size = sizes[pick(0, 13)];
      numel *= size;
    }
    if (numel > 20000) continue;
    std::vector<int64_t> order;
    if (pick(0, 3) == 0) {
      for (int d = 0; d < rank; ++d) order.push_back(d);
      std::shuffle(order.begin(), order.end(), random);
      if (pick(0, 2) == 0) order.push_back(-1);
    }
    const Layout layout = Layout::make(host, format, order);
    // A view: a box of the storage with steps, perhaps with two dims exchanged.
    std::vector<int64_t> shape(host.size()), strides(host.size()), within = host;
    int64_t step = 1, offset = 0;
    for (size_t d = host.size(); d-- > 0;) {
      const int64_t begin = pick(0, 2) ? 0 : pick(0, host[d] - 1) / 32 * 32;
      const int64_t skip = pick(0, 9) ? 1 : pick(1, 64);
      const int64_t room = (host[d] - 1 - begin) / skip + 1;
      shape[d] = pick(0, 2) ? room : pick(1, room);
      strides[d] = step * skip;
      offset += begin * step;
      step *= host[d];
    }
    std::vector<int> declared(order.begin(), order.end());
    if (pick(0, 4) == 0 && rank > 1) {
      std::swap(shape[0], shape[1]);
      std::swap(strides[0], strides[1]);
      std::swap(within[0], within[1]);
      if (pick(0, 1))
        for (int& d : declared) d = d == 0 ? 1 : d == 1 ? 0 : d;
    }
    if (pick(0, 3) == 0) within.clear();
    const machine::Operand operand = operand_of(shape, within, declared, format);
    OperandLayout laid;
    try {
      laid = lay_operand(operand, {});
    } catch (const std::invalid_argument&) {
      continue;
    }
    const TensorView view{&layout, offset, shape, strides};
    for (const bool written : {false, true}) {
      int64_t base = -1;
      const std::string wrong = match_layout(laid, view, written, &base);
      const bool right = lies_so(laid, view, written);
      if (wrong.empty() != right)
        throw check::Failure("layout " + layout.str() + ", view at " + std::to_string(offset) +
                             " of " + dims_text(shape) + " strides " + dims_text(strides) +
                             " within " + dims_text(within) + (written ? ", written" : "") +
                             ": said '" + wrong + "', loops say " + (right ? "yes" : "no"));
      right ? ++accepted : ++refused;
      if (!right) continue;
      CHECK_EQ(base, layout.element_offset(offset));
      std::set<int64_t> sticks, said;
      each_index(laid.shape, laid.rank, [&](const std::vector<int64_t>& index) {
        sticks.insert(layout.element_offset(linear_of(view, index)) / 128);
      });
      for (const ByteRange& range : sticks_of(laid, base))
        for (uint64_t at = range.begin; at < range.end; at += 128)
          CHECK(said.insert(static_cast<int64_t>(at / 128)).second);
      CHECK(said == sticks);
      CHECK_EQ(laid.nbytes, 128 * (*sticks.rbegin() - base / 128 + 1));
    }
  }
  CHECK(accepted > check::rounds(1500) && refused > check::rounds(1500));
}

// Operands with strides of their own: extent, footprint and whether they overlap themselves.
TEST(strided_operands_are_laid_as_loops_say) {
  std::mt19937_64 random(11);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  int apart = 0, overlapping = 0;
  for (int round = 0; round < check::rounds(3000); ++round) {
    const int rank = static_cast<int>(pick(0, 3));
    std::vector<int64_t> shape;
    machine::Operand operand{};
    operand.format = Format::SEN169_FP16;
    operand.has_strides = true;
    operand.stick = pick(-1, rank - 1);
    for (int d = 0; d < rank; ++d) {
      shape.push_back(d == operand.stick ? pick(1, 200) : pick(1, 5));
      operand.strides.push_back(constant(128 * pick(0, 12)));
    }
    for (const int64_t size : shape) operand.shape.push_back(constant(size));
    operand.role = machine::Role::In;
    const OperandLayout laid = lay_operand(operand, {});
    const int64_t base = 128 * pick(0, 3);
    std::set<int64_t> sticks, said;
    int64_t steps = 1;
    for (int d = 0; d < rank; ++d)
      steps *= d == laid.stick ? (laid.shape[d] + laid.eps - 1) / laid.eps : laid.shape[d];
    each_index(laid.shape, laid.rank, [&](const std::vector<int64_t>& index) {
      sticks.insert((base + operand_address(laid, index, 2)) / 128);
    });
    uint64_t end = 0;
    for (const ByteRange& range : sticks_of(laid, base)) {
      CHECK(range.begin >= end && range.begin < range.end);
      end = range.end;
      for (uint64_t at = range.begin; at < range.end; at += 128)
        CHECK(said.insert(static_cast<int64_t>(at / 128)).second);
    }
    CHECK(said == sticks);
    CHECK_EQ(laid.nbytes, 128 * (*sticks.rbegin() + 1) - base);
    operand.role = machine::Role::Out;
    bool refused = false;
    try {
      lay_operand(operand, {});
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    // Nested strides never meet; those that are refused may (the rule is the simple one).
    if (!refused) CHECK_EQ(static_cast<int64_t>(sticks.size()), steps);
    refused ? ++overlapping : ++apart;
  }
  CHECK(apart > check::rounds(300) && overlapping > check::rounds(300));
  machine::Operand odd{};
  odd.format = Format::SEN169_FP16;
  odd.has_strides = true;
  odd.shape = {constant(4)};
  for (const int64_t stride : {int64_t{64}, int64_t{-128}}) {
    odd.strides = {constant(stride)};
    CHECK_THROWS(lay_operand(odd, {}), std::invalid_argument);
  }
}

TEST(operands_of_symbols_are_laid_at_launch) {
  machine::Operand operand = operand_of({1, 64}, {}, {}, Format::SEN169_FP16);
  operand.shape[0] = {
      {{machine::ExprStep::Var, 0}, {machine::ExprStep::Const, 4}, {machine::ExprStep::Mul, 0}}};
  const int64_t symbols[] = {3};
  CHECK_EQ(lay_operand(operand, symbols).shape[0], 12);
  CHECK_EQ(lay_operand(operand, symbols).nbytes, 12 * 128);
  CHECK(!is_constant(operand.shape[0]));
  CHECK_THROWS(lay_operand(operand, {}), std::invalid_argument);
  const int64_t huge[] = {int64_t{1} << 62};
  CHECK_THROWS(lay_operand(operand, huge), std::invalid_argument);
  const int64_t none[] = {0};
  CHECK_THROWS(lay_operand(operand, none), std::invalid_argument);
}

// The remainder by a divisor near 2^63 must not overflow on its way.
TEST(plan_contract_sizes_are_evaluated_as_the_machine_does) {
  using machine::ExprStep;
  const auto with = [](ExprStep::Code code, int64_t right) {
    return machine::Expr{{{ExprStep::Var, 0}, {ExprStep::Const, right}, {code, 0}}};
  };
  const int64_t large = int64_t(1) << 62, symbols[] = {large}, negative[] = {-7};
  CHECK_EQ(evaluate(with(ExprStep::Mod, INT64_MAX), symbols), large);
  CHECK_EQ(evaluate(with(ExprStep::FloorDiv, INT64_MAX), symbols), 0);
  CHECK_EQ(evaluate(with(ExprStep::Mod, 4), negative), 1);
  CHECK_EQ(evaluate(with(ExprStep::FloorDiv, 4), negative), -2);
  CHECK_THROWS(evaluate(with(ExprStep::Mul, 2), symbols), std::invalid_argument);
  CHECK_THROWS(evaluate(with(ExprStep::Mod, 0), symbols), std::invalid_argument);
  CHECK_THROWS(evaluate(with(ExprStep::Add, 1), {}), std::invalid_argument);
}
