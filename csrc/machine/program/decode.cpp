// Decodes the binary form of docs/program.md section 6.
//
// Every index, count, depth, enumeration and type is checked here, once, so that the interpreter
// uses them unchecked. What an image claims to hold is never believed before the bytes are there.
#include <array>
#include <utility>

#include "machine/program/check.h"
#include "machine/program/op_table.h"
#include "machine/program/reader.h"

namespace openspyre::machine {

namespace {

constexpr uint64_t kHeaderBytes = 128;
constexpr char kMagic[] = "OSPYRE\x1a\n";

uint32_t crc32(const uint8_t* data, uint64_t bytes, uint32_t crc = 0) {
  static const auto tables = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0xEDB88320U : 0);
      t[0][i] = value;
    }
    for (size_t k = 1; k < 8; ++k) {
      for (size_t i = 0; i < 256; ++i) t[k][i] = t[k - 1][i] >> 8 ^ t[0][t[k - 1][i] & 0xFF];
    }
    return t;
  }();
  crc = ~crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {  // eight bytes a step: images carry weights
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
          tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
          tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
  }
  for (; bytes > 0; --bytes, ++data) crc = crc >> 8 ^ tables[0][(crc ^ *data) & 0xFF];
  return ~crc;
}

template <class T>
T field(const uint8_t* image, size_t offset) {
  T value;
  std::memcpy(&value, image + offset, sizeof value);
  return value;
}

[[noreturn]] void bad_header(uint64_t offset, const std::string& what) {
  throw FormatError("program image, byte " + std::to_string(offset) + ": header: " + what);
}

uint64_t fnv(uint64_t hash, const std::string& text) {
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

class Decoder {
 public:
  Decoder(Program* program, Reader reader) : p_(*program), r_(reader) {}

  void run() {
    p_.name = r_.str("program name");
    p_.card_name = r_.str("card name");
    p_.card_cores = number("card cores", 1, kMaxCores);
    p_.card_lx_bytes = number("card lx_bytes", kStickBytes, kMaxLxBytes);
    digits();
    symbols();
    fixed_ = static_cast<int>(p_.symbols.size() + p_.grid.size()) + 1;
    known_ = static_cast<int>(p_.symbols.size());
    operands();
    values();
    buffers();
    tokens();
    known_ = fixed_;
    lets();
    p_.environment = known_;
    for (int unit = 0; unit < kUnits; ++unit) {
      unit_ = static_cast<Unit>(unit);
      instructions(&p_.queues[unit], 0);
    }
    p_.instructions = next_id_;
    if (r_.left() != 0) r_.fail("bytes follow the last queue");
  }

 private:
  int64_t number(const char* what, int64_t least, int64_t most) {
    const uint64_t value = r_.u(what);
    if (value > static_cast<uint64_t>(most) || static_cast<int64_t>(value) < least) {
      r_.fail(std::string(what) + ": " + std::to_string(value) + " must lie in " +
              std::to_string(least) + ".." + std::to_string(most));
    }
    return static_cast<int64_t>(value);
  }

  void digits() {
    p_.cores = 1;
    for (uint64_t n = r_.count("digits", 2, 16); n > 0; --n) {
      Digit digit;
      digit.name = r_.str("digit name");
      digit.size = number("digit size", 1, kMaxCores);
      p_.cores *= digit.size;
      if (p_.cores > p_.card_cores) {
        r_.fail("digits: the grid has more cores than the card's " + std::to_string(p_.card_cores));
      }
      p_.grid.push_back(std::move(digit));
    }
  }

  void symbols() {
    for (uint64_t n = r_.count("symbols", 7); n > 0; --n) {
      Symbol symbol;
      symbol.name = r_.str("symbol name");
      symbol.kind = static_cast<SymbolKind>(r_.code("symbol kind", 3));
      symbol.argument = r_.s("symbol argument");
      symbol.dim = r_.s("symbol dim");
      symbol.granularity = number("symbol granularity", 1, INT64_MAX);
      symbol.minimum = r_.s("symbol minimum");
      symbol.maximum = r_.s("symbol maximum");
      p_.symbols.push_back(std::move(symbol));
    }
  }

  void operands() {
    for (uint64_t n = r_.count("operands", 8); n > 0; --n) {
      Operand operand;
      operand.name = r_.str("operand name");
      operand.role = static_cast<Role>(r_.code("operand role", 5));
      operand.dtype = r_.str("operand dtype");
      operand.format = static_cast<Format>(r_.code("operand format", kFormatCount));
      operand.shape = shape("operand shape");
      const size_t rank = operand.shape.size();
      const uint64_t way = r_.code("operand layout", 3);
      operand.has_within = way == 1;
      operand.has_strides = way == 2;
      if (operand.has_strides) {
        operand.strides = shape("operand strides");
        operand.stick = r_.s("operand stick");
        if (operand.strides.size() != rank || operand.stick < -1 ||
            operand.stick >= static_cast<int64_t>(rank)) {
          r_.fail("operand strides: one for each dim of the shape, and a dim of it on the stick");
        }
      }
      if (operand.has_within) {
        operand.within = shape("operand within");
        if (operand.within.size() != rank) {
          r_.fail("operand within: it must have as many dims as the shape");
        }
      }
      operand.has_order = r_.flag("operand order");
      if (operand.has_order && operand.has_strides)
        r_.fail("operand order: an operand with strides has none");
      if (operand.has_order) operand.order = order(rank);
      operand.offset = static_cast<uint64_t>(number("operand offset", 0, INT64_MAX));
      if (operand.role == Role::Const && operand.offset > p_.data_bytes) {
        r_.fail("operand offset: " + operand.name + " begins behind the data");
      }
      if (operand.role < Role::Scratch)
        p_.arguments.push_back(static_cast<int>(p_.operands.size()));
      p_.has_scratch = p_.has_scratch || operand.role == Role::Scratch;
      p_.operands.push_back(std::move(operand));
    }
    for (const Symbol& symbol : p_.symbols) {
      if (symbol.kind != SymbolKind::Dimension) continue;
      const auto arguments = static_cast<int64_t>(p_.arguments.size());
      if (symbol.argument < 0 || symbol.argument >= arguments || symbol.dim < 0) {
        r_.fail("symbol " + symbol.name + ": no launch argument " +
                std::to_string(symbol.argument) + " with a dim " + std::to_string(symbol.dim));
      }
    }
  }

  std::vector<int> order(size_t rank) {
    std::vector<int> dims;
    std::vector<bool> seen(rank, false);
    for (uint64_t n = r_.count("operand order", 1, kMaxRank + 1); n > 0; --n) {
      const int64_t dim = r_.s("operand order");
      const bool sparse = dim == -1 && n == 1;
      if (!sparse &&
          (dim < 0 || dim >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(dim)])) {
        r_.fail("operand order: it must name each dim once, with at most one -1 at its end");
      }
      if (!sparse) seen[static_cast<size_t>(dim)] = true;
      dims.push_back(static_cast<int>(dim));
    }
    if (dims.size() - (!dims.empty() && dims.back() == -1 ? 1 : 0) != rank) {
      r_.fail("operand order: it must name each dim once");
    }
    return dims;
  }

  void values() {
    for (uint64_t n = r_.count("values", 3); n > 0; --n) {
      Value value;
      value.name = r_.str("value name");
      value.shape = shape("value shape");
      value.reduced = shape("value reduced");
      p_.values.push_back(std::move(value));
    }
  }

  void buffers() {
    for (uint64_t n = r_.count("buffers", 4); n > 0; --n) {
      Buffer buffer;
      buffer.name = r_.str("buffer name");
      buffer.base = number("buffer base", 0, kMaxLxBytes);
      buffer.slot_bytes = number("buffer slot_bytes", 0, kMaxLxBytes);
      buffer.slots = number("buffer slots", 0, kMaxLxBytes);
      p_.buffers.push_back(std::move(buffer));
    }
  }

  void tokens() {
    int64_t all = 0;
    for (uint64_t n = r_.count("tokens", 3); n > 0; --n) {
      Token token;
      token.name = r_.str("token name");
      token.count = number("token count", 0, kMaxSemaphores);
      token.initial = number("token initial", 0, INT64_MAX);
      token.first = static_cast<int>(all);
      all += token.count;
      if (all > kMaxSemaphores) {
        r_.fail("tokens: more than " + std::to_string(kMaxSemaphores) + " semaphores a core");
      }
      p_.tokens.push_back(std::move(token));
    }
    p_.semaphores = static_cast<int>(all);
  }

  void lets() {
    for (uint64_t n = r_.count("lets", 3); n > 0; --n) {
      Let let;
      let.name = r_.str("let name");
      let.value = expr("let");
      p_.lets.push_back(std::move(let));
      ++known_;
    }
    fixed_ = known_;
  }

  std::vector<Expr> shape(const char* what) {
    std::vector<Expr> sizes;
    for (uint64_t n = r_.count(what, 2, kMaxRank); n > 0; --n) sizes.push_back(expr(what));
    return sizes;
  }

  Expr expr(const char* what) {
    Expr out;
    expr_into(&out, what, 1);
    return out;
  }

  void expr_into(Expr* out, const char* what, int depth) {
    if (depth > kMaxExprDepth) {
      r_.fail(std::string(what) + ": the expression is more than " + std::to_string(kMaxExprDepth) +
              " deep");
    }
    constexpr ExprStep::Code operators[] = {
        ExprStep::Add, ExprStep::Sub, ExprStep::Mul, ExprStep::FloorDiv, ExprStep::Mod,
        ExprStep::Min, ExprStep::Max, ExprStep::Eq,  ExprStep::Lt,       ExprStep::Le};
    const int tag = r_.code(what, 12);
    if (tag == 0) {
      out->steps.push_back({ExprStep::Const, r_.s(what)});
      return;
    }
    if (tag == 1) {
      const auto symbols = static_cast<int>(p_.symbols.size());
      const int variable = r_.code(what, static_cast<uint64_t>(known_));
      if (variable < symbols &&
          p_.symbols[static_cast<size_t>(variable)].kind == SymbolKind::Float) {
        r_.fail(std::string(what) + ": a float symbol is for bodies only");
      }
      out->steps.push_back({ExprStep::Var, variable});
      return;
    }
    expr_into(out, what, depth + 1);
    expr_into(out, what, depth + 1);
    out->steps.push_back({operators[tag - 2], 0});
  }

  int label(const char* what, const Instruction& code) { return r_.code(what, code.over.size()); }
  int optional_label(const char* what, const Instruction& code) {
    return r_.code(what, code.over.size() + 1) - 1;
  }

  void over(Instruction* code) {
    for (uint64_t n = r_.count("over", 5, kMaxLabels); n > 0; --n) {
      Label label;
      label.name = r_.str("label name");
      label.start = expr("label start");
      label.size = expr("label size");
      code->over.push_back(std::move(label));
    }
  }

  Access access(const Instruction& code) {
    Access a;
    const size_t operands = p_.operands.size(), values = p_.values.size();
    a.value = r_.code("access value", operands + values);
    const auto value = static_cast<size_t>(a.value);
    const size_t rank = value < operands ? p_.operands[value].shape.size()
                                         : p_.values[value - operands].shape.size();
    uint64_t n = r_.count("access index", 3, kMaxRank);
    if (n != rank) {
      r_.fail("access index: " + std::to_string(n) + " dims of a value that has " +
              std::to_string(rank));
    }
    for (; n > 0; --n) {
      const int at = optional_label("access index", code);
      a.index.push_back({at, expr("access index")});
    }
    const int place = r_.code("access place", operands + p_.buffers.size());
    a.operand = place < static_cast<int>(operands) ? place : -1;
    a.buffer = a.operand < 0 ? place - static_cast<int>(operands) : -1;
    a.format = static_cast<Format>(r_.code("access format", kFormatCount));
    unsigned seen = 0;
    for (n = r_.count("access strides", 3, kMaxLabels); n > 0; --n) {
      const int at = label("access strides", code);
      if (seen >> at & 1) r_.fail("access strides: a label has two strides");
      seen |= 1U << at;
      a.strides.push_back({at, expr("access stride")});
    }
    a.stick = optional_label("access stick", code);
    a.offset = expr("access offset");
    a.slot = expr("access slot");
    a.lanes = r_.flag("access lanes");
    return a;
  }

  void by_index(Instruction* code, bool store) {
    if (!r_.flag("index")) return;
    code->index_label = label("index label", *code);
    code->index_tile.push_back(access(*code));
    code->limit = expr("index limit");
    if (!store) return;
    code->first = expr("index first");
    code->window = expr("index count");
    code->add = r_.flag("index add");
  }

  // Brings a variable into scope; its place in the environment.
  int enter() {
    const int place = known_++;
    p_.environment = std::max(p_.environment, known_);
    return place;
  }
  void leave() { --known_; }

  int combine(Instruction* code) {
    const int value = r_.code("combine", 10);
    code->has_combine = value > 0;
    code->combine = static_cast<Combine>(value > 0 ? value - 1 : 0);
    return value;
  }

  void instructions(std::vector<Instruction>* out, int depth) {
    for (uint64_t n = r_.count("instructions", 3); n > 0; --n) {
      Instruction code;
      instruction(&code, depth);
      const std::string rule = broken_rule(p_, code, unit_);
      if (!rule.empty()) {
        r_.fail(std::string(unit_name(unit_)) + " queue, instruction " + std::to_string(code.id) +
                " (" + tag_name(code.tag) + ", which ends here): " + rule);
      }
      out->push_back(std::move(code));
    }
  }

  void instruction(Instruction* code, int depth) {
    code->tag = static_cast<Instruction::Tag>(r_.code("instruction tag", 7));
    code->id = next_id_++;
    switch (code->tag) {
      case Instruction::Load:
      case Instruction::Store: {
        const bool store = code->tag == Instruction::Store;
        over(code);
        code->inputs.push_back(access(*code));
        code->outputs.push_back(access(*code));
        if (!store) {
          for (uint64_t n = r_.count("multicast", 1, 16); n > 0; --n) {
            code->multicast.push_back(r_.code("multicast digit", p_.grid.size()));
          }
        }
        by_index(code, store);
        break;
      }
      case Instruction::Ring:
        code->variable_name = r_.str("ring variable");
        code->count = expr("ring count");
        code->variable = enter();
        code->core = expr("ring core");
        over(code);
        code->inputs.push_back(access(*code));
        code->outputs.push_back(access(*code));
        combine(code);
        leave();
        p_.rings = p_.talks = true;
        break;
      case Instruction::Compute:
        compute(code);
        break;
      case Instruction::Wait:
      case Instruction::Signal:
        code->token = r_.code("token", p_.tokens.size());
        code->first = expr("token index");
        code->count = expr("token count");
        if (code->tag == Instruction::Signal) {
          code->has_core = r_.flag("signal core");
          if (code->has_core) code->core = expr("signal core");
          p_.talks = p_.talks || code->has_core;
        }
        break;
      case Instruction::Loop: {
        if (depth == kMaxLoops)
          r_.fail("loops nest more than " + std::to_string(kMaxLoops) + " deep");
        const bool named = r_.flag("loop variable");
        if (named) code->variable_name = r_.str("loop variable");
        code->count = expr("loop count");
        if (named) code->variable = enter();
        instructions(&code->children, depth + 1);
        if (named) leave();
        break;
      }
    }
  }

  void compute(Instruction* code) {
    code->unit = static_cast<Unit>(r_.code("compute unit", kUnits));
    code->kind = static_cast<Kind>(r_.code("compute kind", 10));
    over(code);
    for (uint64_t n = r_.count("inputs", 8, kMaxTiles); n > 0; --n) {
      code->inputs.push_back(access(*code));
    }
    for (uint64_t n = r_.count("outputs", 8, kMaxTiles); n > 0; --n) {
      code->outputs.push_back(access(*code));
    }
    if (r_.flag("body")) body(code);
    combine(code);
    code->accumulate = expr("accumulate");
    code->index_label = optional_label("label", *code);
    code->limit = expr("limit");
    const int flags = r_.code("flags", 4);
    code->descending = flags & 1;
    code->add = flags & 2;
  }

  void body(Instruction* code) {
    for (uint64_t n = r_.count("body nodes", 2); n > 0; --n)
      code->body.nodes.push_back(node(*code));
    uint64_t n = r_.count("body results", 1, kMaxTiles);
    if (n == 0) r_.fail("body results: none");
    for (; n > 0; --n) {
      code->body.results.push_back(r_.code("body result", code->body.nodes.size()));
    }
  }

  Node node(const Instruction& code) {
    Node out{};
    out.op = static_cast<Op>(r_.code("body operation", kOps));
    const OpInfo& info = op_info(out.op);
    out.type = static_cast<Register>(r_.code("body type", 4));
    if (!std::strchr(info.types, register_letter(out.type))) {
      r_.fail(std::string("body type: ") + info.name + " does not exist for type " +
              register_letter(out.type));
    }
    out.arity = static_cast<int>(std::strlen(info.operands));
    for (int i = 0; i < out.arity; ++i) {
      out.args[i] = r_.code("body operand", code.body.nodes.size());
    }
    switch (info.immediate) {
      case Immediate::None:
        break;
      case Immediate::Int:
        out.immediate = r_.s("body immediate");
        break;
      case Immediate::Typed:
        out.immediate = out.type == Register::F32 ? static_cast<int64_t>(r_.word("body constant"))
                                                  : r_.s("body constant");
        break;
      case Immediate::Format:
        out.immediate = r_.code("body format", kFormatCount);
        break;
      case Immediate::Type:
        out.immediate = r_.code("body result type", 4);
        break;
      case Immediate::Input:
        out.immediate = r_.code("body input", kMaxTiles);
        break;
      case Immediate::Symbol:
        out.immediate = r_.code("body symbol", p_.symbols.size());
        break;
      case Immediate::Label:
        out.immediate = r_.code("body label", kMaxLabels);
        break;
    }
    out.result = info.result == 'T'   ? out.type
                 : info.result == '*' ? static_cast<Register>(out.immediate)
                                      : register_of_letter(info.result);
    return out;
  }

  Program& p_;
  Reader r_;
  Unit unit_ = Unit::Load;
  int fixed_ = 0, known_ = 0;  // variables that are always there; that are in scope
  uint32_t next_id_ = 0;
};

}  // namespace

std::shared_ptr<const Program> decode_program(const void* image, size_t bytes) {
  const auto* data = static_cast<const uint8_t*>(image);
  if (bytes < kHeaderBytes) {
    bad_header(bytes, "the image has " + std::to_string(bytes) + " bytes, fewer than its header");
  }
  if (std::memcmp(data, kMagic, 8) != 0) bad_header(0, "magic: this is no program image");
  const auto version = field<uint16_t>(data, 8);
  if (version > kProgramVersion) {
    bad_header(8, "version " + std::to_string(version) + " is too new; this machine knows " +
                      std::to_string(kProgramVersion));
  }
  if (version < 1) bad_header(8, "version " + std::to_string(version));
  uint8_t covered[76];
  std::memcpy(covered, data, 68);
  std::memcpy(covered + 68, data + 72, 8);
  if (field<uint32_t>(data, 68) != crc32(covered, sizeof covered)) {
    bad_header(68, "its CRC-32 does not match: the image is damaged");
  }
  if (field<uint16_t>(data, 10) != 0) bad_header(10, "must be zero");
  for (size_t i = 80; i < kHeaderBytes; ++i) {
    if (data[i] != 0) bad_header(i, "must be zero");
  }
  const auto words = field<uint32_t>(data, 12);
  const auto symbols = field<uint64_t>(data, 16), body = field<uint64_t>(data, 24);
  const auto body_bytes = field<uint64_t>(data, 32), constants = field<uint64_t>(data, 40);
  const auto constant_bytes = field<uint64_t>(data, 48), all = field<uint64_t>(data, 56);
  const auto inside = [](uint64_t offset, uint64_t size, uint64_t end) {
    return offset <= end && size <= end - offset;
  };
  if (all > bytes || all % 128 != 0 || all < kHeaderBytes) {
    bad_header(56, "the image says it has " + std::to_string(all) + " bytes; there are " +
                       std::to_string(bytes) + ", and it must be a multiple of 128");
  }
  if (symbols != kHeaderBytes) bad_header(16, "the symbol words must begin at byte 128");
  if (body % 128 != 0 || body < symbols || uint64_t(words) * 8 > body - symbols) {
    bad_header(24, "the body must begin at a multiple of 128 behind the symbol words");
  }
  if (!inside(body, body_bytes, all)) bad_header(32, "the body goes beyond the image");
  if (constants % 128 != 0 || constants < body || constants - body < body_bytes) {
    bad_header(40, "the data must begin at a multiple of 128 behind the body");
  }
  if (!inside(constants, constant_bytes, all)) bad_header(48, "the data goes beyond the image");
  if (field<uint32_t>(data, 64) != crc32(data + body, all - body)) {
    bad_header(64, "the CRC-32 of body and data does not match: the image is damaged");
  }

  auto program = std::make_shared<Program>();
  program->data_offset = constants;
  program->data_bytes = constant_bytes;
  program->symbols_offset = symbols;
  program->words = static_cast<int>(words);
  program->has_scratch = false;
  Decoder(program.get(), Reader(data + body, body_bytes, body)).run();

  uint64_t checksum = 0xCBF29CE484222325ULL;
  uint64_t expected = program->arguments.size() + program->symbols.size();
  for (const int argument : program->arguments) {
    checksum = fnv(checksum, "address " + program->operands[size_t(argument)].name + "\n");
  }
  if (program->has_scratch) {
    checksum = fnv(checksum, "dynamic \n");
    ++expected;
  }
  for (const Symbol& symbol : program->symbols) {
    constexpr const char* kinds[] = {"dimension", "int", "float"};
    checksum = fnv(checksum, std::string(kinds[int(symbol.kind)]) + " " + symbol.name + "\n");
  }
  if (words != expected) {
    bad_header(
        12, std::to_string(words) + " symbol words; the program has " + std::to_string(expected));
  }
  program->symbol_checksum = field<uint64_t>(data, 72);
  if (program->symbol_checksum != checksum) {
    bad_header(72, "the checksum of the symbol table does not match the program's names");
  }
  return program;
}

}  // namespace openspyre::machine
