// Arities, places, formats and types of instructions and bodies. See check.h.
#include "machine/program/check.h"

#include "machine/kernels/kernels.h"
#include "machine/program/op_table.h"

namespace openspyre::machine {

bool moves(const Access& access, int label) {
  if (access.stick == label) return true;
  for (const Stride& stride : access.strides) {
    if (stride.label == label) return true;
  }
  return false;
}

namespace {

std::string plural(size_t n, const char* what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

bool is_integer(Format format) {
  return format == Format::IEEE_INT32 || format == Format::IEEE_INT64;
}

bool wide(Format format) { return format == Format::IEEE_FP32 || is_integer(format); }

std::string check_index_tile(const Instruction& code) {
  const Access& tile = code.index_tile[0];
  if (tile.buffer < 0) return "the index tile must lie in an LX buffer";
  if (!is_integer(tile.format)) {
    return "the index tile must be IEEE_INT32 or IEEE_INT64, not " +
           std::string(format_name(tile.format));
  }
  if (tile.lanes) return "the index tile must hold elements, not lanes";
  for (int label = 0; label < static_cast<int>(code.over.size()); ++label) {
    if (label != code.index_label && moves(tile, label)) {
      return "the index tile must be over label " +
             code.over[static_cast<size_t>(code.index_label)].name + " alone";
    }
  }
  if (code.inputs[0].stick == code.index_label) {
    return "a label that is indexed must not lie on the stick";
  }
  return "";
}

// LOAD, STORE, RING: sticks move as they are.
std::string check_move(const Instruction& code) {
  const Access &from = code.inputs[0], &to = code.outputs[0];
  if (from.format != to.format) return "source and target must have one format";
  if (from.stick != to.stick) return "source and target must have one stick label";
  if (from.lanes != to.lanes) return "source and target must both hold lanes, or neither";
  return "";
}

std::string check_load_store(const Program& program, const Instruction& code) {
  const bool load = code.tag == Instruction::Load;
  const Access &from = code.inputs[0], &to = code.outputs[0];
  if ((load ? from : to).operand < 0) {
    return load ? "the source must be an operand" : "the target must be an operand";
  }
  if ((load ? to : from).buffer < 0) {
    return load ? "the target must be an LX buffer" : "the source must be an LX buffer";
  }
  if (!load) {
    const Role role = program.operands[static_cast<size_t>(to.operand)].role;
    if (role == Role::In || role == Role::Const) {
      return "operand " + program.operands[static_cast<size_t>(to.operand)].name +
             " is read only and must not be stored to";
    }
  }
  if (from.lanes || to.lanes) return "lane accumulators do not move to or from LPDDR5";
  const std::string move = check_move(code);
  if (!move.empty()) return move;
  Register type;
  if (code.add && !register_of(to.format, &type)) {
    return "elements of " + std::string(format_name(to.format)) + " cannot be added";
  }
  return code.index_tile.empty() ? "" : check_index_tile(code);
}

std::string check_ring(const Instruction& code) {
  const Access &from = code.inputs[0], &to = code.outputs[0];
  if (from.buffer < 0 || to.buffer < 0) return "source and target must be LX buffers";
  const std::string move = check_move(code);
  if (!move.empty() || !code.has_combine) return move;
  if (code.combine > Combine::All) {
    return std::string("a ring cannot combine by ") + combine_name(code.combine);
  }
  if (!wide(to.format)) return "a ring combines IEEE_FP32, IEEE_INT32 or IEEE_INT64";
  if (code.combine >= Combine::Any && to.format != Format::IEEE_INT32) {
    return "any and all combine truth values in IEEE_INT32";
  }
  return "";
}

std::string check_body(const Program& program, const Instruction& code) {
  const Body& body = code.body;
  for (size_t i = 0; i < body.nodes.size(); ++i) {
    const Node& node = body.nodes[i];
    const OpInfo& info = op_info(node.op);
    const std::string where = "body node " + std::to_string(i) + " (" + info.name + "): ";
    for (int a = 0; a < node.arity; ++a) {
      const char letter = info.operands[a];
      const Register wanted = letter == 'T' ? node.type : register_of_letter(letter);
      const Register got = body.nodes[static_cast<size_t>(node.args[a])].result;
      if (got != wanted) {
        return where + "operand " + std::to_string(a) + " is of type " + register_letter(got) +
               " and must be " + register_letter(wanted);
      }
    }
    const auto imm = static_cast<size_t>(node.immediate);
    switch (info.immediate) {
      case Immediate::Input: {
        if (imm >= code.inputs.size()) return where + "no input " + std::to_string(imm);
        Register type;
        if (!register_of(code.inputs[imm].format, &type) || type != node.type) {
          return where + "the register of " + format_name(code.inputs[imm].format) + " is not " +
                 register_letter(node.type);
        }
        break;
      }
      case Immediate::Symbol: {
        if (imm >= program.symbols.size()) return where + "no symbol " + std::to_string(imm);
        const bool is_float = program.symbols[imm].kind == SymbolKind::Float;
        if (is_float != (node.type == Register::F32)) {
          return where + "symbol " + program.symbols[imm].name + " is of another type";
        }
        break;
      }
      case Immediate::Label:
        if (imm >= code.over.size()) return where + "no label " + std::to_string(imm);
        break;
      case Immediate::Format: {
        Register type;
        if (!register_of(static_cast<Format>(imm), &type) || type != Register::F32) {
          return where + "the format must be a float format";
        }
        break;
      }
      case Immediate::Type:
        if (node.op == Op::Bits && node.result != Register::F32 && node.result != Register::I32) {
          return where + "bits are seen as f or i";
        }
        break;
      case Immediate::Int:
        if (node.immediate < 0 || node.immediate > 3) {
          return where + "the word of philox must lie in 0..3";
        }
        break;
      case Immediate::Typed:
        if (node.type == Register::I32 && node.immediate != static_cast<int32_t>(node.immediate)) {
          return where + "the constant does not fit in 32 bits";
        }
        if (node.type == Register::Bool && (node.immediate & ~int64_t(1))) {
          return where + "a truth constant is 0 or 1";
        }
        break;
      case Immediate::None:
        break;
    }
  }
  return "";
}

bool same_labels(const Instruction& code, const Access& a, const Access& b) {
  for (int label = 0; label < static_cast<int>(code.over.size()); ++label) {
    if (moves(a, label) != moves(b, label)) return false;
  }
  return true;
}

std::string check_map(const Instruction& code) {
  if (code.body.results.size() != code.outputs.size()) {
    return "map: " + plural(code.body.results.size(), "result") + " for " +
           plural(code.outputs.size(), "output");
  }
  for (const Access& tile : code.inputs) {
    if (tile.lanes) return "map: an input holds lanes";
  }
  for (size_t i = 0; i < code.outputs.size(); ++i) {
    if (code.outputs[i].lanes) return "map: an output holds lanes";
    const Register type = code.body.nodes[static_cast<size_t>(code.body.results[i])].result;
    Register held = Register::F32;
    register_of(code.outputs[i].format, &held);
    if (type != Register::Bool && type != held) {
      return "map: result " + std::to_string(i) + " is of type " + register_letter(type) +
             ", which " + format_name(code.outputs[i].format) + " does not hold";
    }
  }
  return "";
}

size_t parts_of(Combine combine) {
  return combine == Combine::Welford ? 3 : combine >= Combine::ArgMax ? 2 : 1;
}

// The formats of the accumulators of `combine` over a register of `type`.
std::string check_accumulators(const char* kind, Combine combine, Register type,
                               const std::vector<Access>& tiles) {
  const std::string by = std::string(kind) + " by " + combine_name(combine) + ": ";
  if (tiles.size() != parts_of(combine)) {
    return by + plural(tiles.size(), "tile") + ", must be " + std::to_string(parts_of(combine));
  }
  const bool truth = combine == Combine::Any || combine == Combine::All;
  if (truth != (type == Register::Bool)) return by + "not for this register type";
  if (combine == Combine::Welford && type != Register::F32) return by + "only for floats";
  for (size_t i = 0; i < tiles.size(); ++i) {
    const bool index = i == 1 && parts_of(combine) == 2;
    if (!is_exact(tiles[i].format, index ? Register::I64 : type)) {
      return by + "tile " + std::to_string(i) + " of " + format_name(tiles[i].format) +
             " is not of the exact format";
    }
  }
  return "";
}

std::string check_reduce(const Instruction& code) {
  if (!code.has_combine) return "reduce: no combine";
  if (code.body.results.size() != 1) return "reduce: the body must have one result";
  const Register type = code.body.nodes[static_cast<size_t>(code.body.results[0])].result;
  std::string rule = check_accumulators("reduce", code.combine, type, code.outputs);
  if (!rule.empty()) return rule;
  int lane = -1;
  for (const Access& tile : code.inputs) {
    if (tile.lanes) return "reduce: an input holds lanes";
    if (tile.stick < 0) continue;
    if (lane >= 0 && tile.stick != lane) {
      return "reduce: all inputs with a stick must have the same stick label";
    }
    lane = tile.stick;
  }
  const Access& first = code.outputs[0];
  int reduced = 0;
  bool lane_reduced = false;
  for (int label = 0; label < static_cast<int>(code.over.size()); ++label) {
    if (moves(first, label)) continue;
    ++reduced;
    lane_reduced = lane_reduced || label == lane;
  }
  for (const Access& tile : code.outputs) {
    if (!same_labels(code, first, tile)) return "reduce: the outputs have different labels";
    if (tile.lanes != lane_reduced) {
      return lane_reduced ? "reduce: the stick label is reduced: the outputs must be lanes"
                          : "reduce: the stick label is not reduced: the outputs must not be lanes";
    }
    if (!lane_reduced && tile.stick != lane) {
      return "reduce: the outputs must have the lane label on their stick";
    }
  }
  if (parts_of(code.combine) == 2 && reduced != 1) {
    return "reduce: argmax and argmin reduce exactly one label";
  }
  return "";
}

std::string check_fold(const Instruction& code) {
  if (!code.has_combine) return "fold: no combine";
  if (code.inputs.size() != code.outputs.size()) return "fold: as many outputs as inputs";
  const Combine combine = code.combine;
  Register type = Register::F32;
  if (!code.inputs.empty()) register_of(code.inputs[0].format, &type);
  if (combine == Combine::Any || combine == Combine::All) type = Register::Bool;
  std::string rule = check_accumulators("fold", combine, type, code.inputs);
  if (rule.empty()) rule = check_accumulators("fold", combine, type, code.outputs);
  if (!rule.empty()) return rule;
  for (size_t i = 0; i < code.inputs.size(); ++i) {
    if (!code.inputs[i].lanes) return "fold: the inputs must be lanes";
    if (code.outputs[i].lanes || code.outputs[i].stick >= 0) {
      return "fold: the outputs must be sparse tiles";
    }
    for (int label = 0; label < static_cast<int>(code.over.size()); ++label) {
      if (moves(code.inputs[i], label) && !moves(code.outputs[i], label)) {
        return "fold: an output lacks label " + code.over[static_cast<size_t>(label)].name;
      }
    }
  }
  return "";
}

// The kinds with `label`. Formats of values: one register; indices: integers.
std::string check_labelled(const Instruction& code) {
  struct Shape {
    size_t least_in, most_in, out;
  };
  const std::string kind = std::string(kind_name(code.kind)) + ": ";
  Shape shape{};
  switch (code.kind) {
    case Kind::Scan:
      shape = {2, 2, 2};
      break;
    case Kind::Gather:
    case Kind::Scatter:
      shape = {2, 2, 1};
      break;
    case Kind::Sort:
      shape = {1, 2, 2};
      break;
    case Kind::Merge:
      shape = {4, 4, 4};
      break;
    default:
      shape = {1, 2, 2};
      break;
  }
  if (code.index_label < 0) return kind + "no label";
  if (code.inputs.size() < shape.least_in || code.inputs.size() > shape.most_in) {
    return kind + plural(code.inputs.size(), "input");
  }
  if (code.outputs.size() != shape.out) return kind + plural(code.outputs.size(), "output");
  const auto check_values = [&](const Access& a, const Access& b) -> std::string {
    Register ta = Register::F32, tb = Register::F32;
    register_of(a.format, &ta);
    register_of(b.format, &tb);
    return ta == tb ? "" : kind + "the values are in different registers";
  };
  for (const auto* tiles : {&code.inputs, &code.outputs}) {
    for (const Access& tile : *tiles) {
      if (tile.lanes) return kind + "a tile holds lanes";
    }
  }
  std::string rule = check_values(code.inputs[0], code.outputs[0]);
  if (!rule.empty()) return rule;
  switch (code.kind) {
    case Kind::Scan: {
      if (!code.has_combine || code.combine > Combine::Min) {
        return "scan: combines by sum, prod, max or min";
      }
      Register type = Register::F32;
      register_of(code.inputs[0].format, &type);
      for (const Access* carry : {&code.inputs[1], &code.outputs[1]}) {
        if (!is_exact(carry->format, type)) return "scan: the carry is not of the exact format";
        if (moves(*carry, code.index_label)) return "scan: the carry lies over the scanned label";
      }
      if (!moves(code.outputs[0], code.index_label)) return "scan: y lacks the scanned label";
      return "";
    }
    case Kind::Gather:
    case Kind::Scatter:
      if (!is_integer(code.inputs[1].format)) {
        return kind + "the index tile must be IEEE_INT32 or IEEE_INT64";
      }
      return "";
    case Kind::Merge:
      for (const auto* tiles : {&code.inputs, &code.outputs}) {
        for (const size_t at : {size_t(1), size_t(3)}) {
          if ((*tiles)[at].format != Format::IEEE_INT64) return "merge: indices are IEEE_INT64";
        }
        rule = check_values(code.inputs[0], (*tiles)[2]);
        if (!rule.empty()) return rule;
      }
      return "";
    default:  // sort, topk
      if (code.outputs[1].format != Format::IEEE_INT64) return kind + "indices are IEEE_INT64";
      if (code.inputs.size() == 2 && !is_integer(code.inputs[1].format)) {
        return kind + "the input indices must be IEEE_INT32 or IEEE_INT64";
      }
      return "";
  }
}

std::string check_matmul(const Instruction& code) {
  if (code.inputs.size() != 2 || code.outputs.size() != 1) {
    return "matmul: inputs a and b and one output";
  }
  const Access &a = code.inputs[0], &b = code.inputs[1], &out = code.outputs[0];
  int k = -1, n = -1, m = -1;
  for (int label = 0; label < static_cast<int>(code.over.size()); ++label) {
    const bool in_a = moves(a, label), in_b = moves(b, label), in_out = moves(out, label);
    if (in_a && in_b && in_out) continue;  // a batch label
    if (in_a && in_b) {
      if (k >= 0) return "matmul: two labels are summed over";
      k = label;
    } else if (in_b && in_out) {
      if (n >= 0) return "matmul: two labels are in b and the output only";
      n = label;
    } else if (in_a && in_out) {
      m = label;  // one of these is m, others are batch labels that b lacks
    } else if (in_a || in_b || in_out) {
      return "matmul: label " + code.over[static_cast<size_t>(label)].name + " is in one tile only";
    }
  }
  (void)m;
  if (k < 0) return "matmul: no label is in both inputs and not in the output";
  if (n < 0) return "matmul: no label is in b and the output only";
  if (a.stick != k) return "matmul: a must have k on its stick";
  if (b.stick != n || out.stick != n) return "matmul: b and the output must have n on their sticks";
  if (a.lanes || b.lanes || out.lanes) return "matmul: a tile holds lanes";
  return "";
}

std::string check_compute(const Program& program, const Instruction& code, Unit unit) {
  if (code.unit != unit) return std::string("it names unit ") + unit_name(code.unit);
  if ((unit == Unit::PT) != (code.kind == Kind::MatMul)) {
    return std::string(kind_name(code.kind)) + " is not done by unit " + unit_name(unit);
  }
  if (code.outputs.empty()) return "no output";
  for (const auto* tiles : {&code.inputs, &code.outputs}) {
    for (const Access& tile : *tiles) {
      Register type;
      if (tile.buffer < 0) return "its tiles must lie in LX buffers";
      if (!register_of(tile.format, &type)) {
        return std::string("no unit computes ") + format_name(tile.format);
      }
      if (tile.lanes && !wide(tile.format)) return "lanes are IEEE_FP32, IEEE_INT32 or IEEE_INT64";
    }
  }
  const bool bodied = code.kind == Kind::Map || code.kind == Kind::Reduce;
  if (bodied != !code.body.results.empty()) {
    return std::string(kind_name(code.kind)) + (bodied ? ": no body" : ": has no body");
  }
  std::string rule = check_body(program, code);
  if (!rule.empty()) return rule;
  switch (code.kind) {
    case Kind::MatMul:
      rule = check_matmul(code);
      break;
    case Kind::Map:
      rule = check_map(code);
      break;
    case Kind::Reduce:
      rule = check_reduce(code);
      break;
    case Kind::Fold:
      rule = check_fold(code);
      break;
    default:
      rule = check_labelled(code);
      break;
  }
  return rule.empty() ? unsupported(code) : rule;
}

}  // namespace

std::string broken_rule(const Program& program, const Instruction& code, Unit unit) {
  for (const auto* tiles : {&code.inputs, &code.outputs}) {
    for (const Access& tile : *tiles) {
      if (tile.lanes && tile.stick >= 0) return "a tile of lanes has no stick label";
    }
  }
  switch (code.tag) {
    case Instruction::Load:
    case Instruction::Store:
      if ((code.tag == Instruction::Load) != (unit == Unit::Load) ||
          (code.tag == Instruction::Store) != (unit == Unit::Store)) {
        return std::string("not an instruction of queue ") + unit_name(unit);
      }
      return check_load_store(program, code);
    case Instruction::Ring:
      if (unit != Unit::Ring) return std::string("not an instruction of queue ") + unit_name(unit);
      return check_ring(code);
    case Instruction::Compute:
      if (unit != Unit::PT && unit != Unit::SFU) {
        return std::string("not an instruction of queue ") + unit_name(unit);
      }
      return check_compute(program, code, unit);
    default:
      return "";
  }
}

}  // namespace openspyre::machine
