// The SFU's operations and codes: every instruction set gives the bits of the portable code, and
// the portable code those of the formats and of plain C++.
#include "check.h"
#include "machine/kernels/float_control.h"
#include "machine/kernels/sfu_isa.h"
#include "sfu_reference.h"

using namespace slow;

namespace {

const sfu::Isa& table(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::AVX2) return sfu::kAvx2;
  if (isa == Isa::AVX512) return sfu::kAvx512;
#endif
  (void)isa;
  return sfu::kPortable;
}

// Numbers of every size, edges, and numbers that functions like.
std::vector<float> floats(Random& random, size_t n) {
  constexpr float kEdges[] = {0.0f,       -0.0f,      1.0f,      -1.0f,       0.5f,     -0.5f,
                              INFINITY,   -0x1p-149f, NAN,       0x1p-149f,   3.4e38f,  -3.4e38f,
                              0x1p31f,    -0x1p31f,   0x1p63f,   -0x1p63f,    2.5f,     -2.5f,
                              8388607.5f, 1e-39f,     -INFINITY, 16777216.0f, 65504.0f, 65520.0f,
                              448.0f,     464.0f,     57344.0f,  61440.0f};
  std::vector<float> all;
  for (size_t i = 0; i < n; ++i) {
    const auto kind = pick(random, 0, 9);
    if (kind == 0) {
      all.push_back(kEdges[size_t(pick(random, 0, std::size(kEdges) - 1))]);
    } else if (kind < 4) {
      const auto bits = uint32_t(random());
      float x;
      std::memcpy(&x, &bits, 4);
      all.push_back(x);
    } else if (kind < 6) {
      all.push_back(float(pick(random, -300, 300)) / 4);
    } else {
      all.push_back(std::normal_distribution<float>(0, kind == 6 ? 50.0f : 2.0f)(random));
    }
  }
  return all;
}
int64_t integer(Random& random) {
  switch (pick(random, 0, 4)) {
    case 0:
      return int64_t(random());
    case 1:
      return pick(random, 0, 1) ? INT64_MIN : INT32_MIN;
    case 2:
      return int64_t(int32_t(random()));
    default:
      return pick(random, -70, 70);
  }
}

constexpr size_t kCount = 4096;

struct Array {
  std::vector<std::byte> bytes;
  Array(Random& random, Register type) : bytes(kCount * 8) {
    const std::vector<float> f = floats(random, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const int64_t x = integer(random);
      const int32_t half = int32_t(x), mask = -int32_t(x & 1);
      if (type == Register::F32) std::memcpy(bytes.data() + 4 * i, &f[i], 4);
      if (type == Register::I32) std::memcpy(bytes.data() + 4 * i, &half, 4);
      if (type == Register::I64) std::memcpy(bytes.data() + 8 * i, &x, 8);
      if (type == Register::Bool) std::memcpy(bytes.data() + 4 * i, &mask, 4);
    }
  }
};

// Registers are equal but for what a NaN holds.
void check_equal(const std::string& what, const std::vector<std::byte>& a,
                 const std::vector<std::byte>& b, Register type) {
  if (type != Register::F32) {
    if (a != b) throw check::Failure(what + ": bytes differ");
    return;
  }
  for (size_t i = 0; i < kCount; ++i) {
    float x, y;
    std::memcpy(&x, a.data() + 4 * i, 4);
    std::memcpy(&y, b.data() + 4 * i, 4);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (std::memcmp(&x, &y, 4) != 0) {
      throw check::Failure(what + ": element " + std::to_string(i) + ": " + std::to_string(x) +
                           " and " + std::to_string(y));
    }
  }
}

}  // namespace

TEST(sfu_every_operation_exists_and_is_equal_on_every_instruction_set) {
  Random random(11);
  int tried = 0;
  for (int o = int(Op::Neg); o < kOps; ++o) {
    const OpInfo& info = op_info(Op(o));
    for (int t = 0; t < 4; ++t) {
      const auto type = Register(t);
      const bool declared = std::strchr(info.types, register_letter(type)) != nullptr;
      CHECK_EQ(sfu::kPortable.op[o][t] != nullptr, declared);
      if (!declared) continue;
      int64_t immediates = 1;  // values 0 .. immediates - 1
      if (info.immediate == Immediate::Type) immediates = Op(o) == Op::Bits ? 2 : 4;
      if (info.immediate == Immediate::Int) immediates = 4;
      if (info.immediate == Immediate::Format) immediates = 6;
      for (int64_t immediate = 0; immediate < immediates; ++immediate) {
        std::vector<Array> in;
        const void* pointers[3] = {};
        for (size_t a = 0; info.operands[a]; ++a) {
          const char letter = info.operands[a];
          in.emplace_back(random, letter == 'T' ? type : register_of_letter(letter));
        }
        for (size_t a = 0; a < in.size(); ++a) pointers[a] = in[a].bytes.data();
        const Register result = info.result == 'T'   ? type
                                : info.result == '*' ? Register(immediate)
                                                     : register_of_letter(info.result);
        const sfu::Context context{immediate, TieRule::ToEven, false};
        std::vector<std::byte> expected(kCount * 8), got(kCount * 8);
        sfu::kPortable.op[o][t](expected.data(), pointers, kCount, context);
        for (const Isa isa : isas()) {
          std::fill(got.begin(), got.end(), std::byte{});
          table(isa).op[o][t](got.data(), pointers, kCount, context);
          check_equal(std::string(info.name) + " " + isa_name(isa), expected, got, result);
          ++tried;
        }
      }
    }
  }
  CHECK(tried > 200);
}

TEST(sfu_codes_are_those_of_the_formats_in_every_instruction_set) {
  Random random(12);
  for (const Isa isa : isas()) {
    for (int f = 0; f < sfu::kCardFormats; ++f) {
      const auto format = Format(f);
      for (const TieRule tie : {TieRule::TowardPositive, TieRule::AwayFromZero, TieRule::ToEven,
                                TieRule::TowardZero, TieRule::ToOdd}) {
        if (tie != TieRule::TowardPositive && format != Format::SEN169_FP16) continue;
        for (const bool nan : {false, true}) {
          const Numerics numerics{Mode::DL16, tie, nan};
          const sfu::Context context{0, tie, nan};
          // Every code of up to 16 bits; random ones of the others.
          const int bytes = format_bytes(format);
          const int64_t codes = bytes == 1 ? 256 : 65536;
          std::vector<std::byte> from(size_t(codes) * 8), to(size_t(codes) * 8);
          for (int64_t c = 0; c < codes; ++c) {
            const uint64_t code = bytes > 2 ? random() : uint64_t(c);
            std::memcpy(from.data() + c * bytes, &code, size_t(bytes));
          }
          table(isa).decode[f](from.data(), to.data(), codes, context);
          std::vector<std::byte> again(size_t(codes) * 8);
          table(isa).encode[f](to.data(), again.data(), codes, context);
          for (int64_t c = 0; c < codes; ++c) {
            uint64_t code = 0, back = 0;
            std::memcpy(&code, from.data() + c * bytes, size_t(bytes));
            std::memcpy(&back, again.data() + c * bytes, size_t(bytes));
            const Number x = decoded(format, code, numerics);
            if (x.type == Register::F32) {
              float got;
              std::memcpy(&got, to.data() + 4 * c, 4);
              if (!(std::isnan(got) && std::isnan(x.f))) {
                CHECK(std::memcmp(&got, &x.f, 4) == 0);
              }
            } else if (x.type == Register::I32) {
              int32_t got;
              std::memcpy(&got, to.data() + 4 * c, 4);
              CHECK_EQ(int64_t(got), x.i);
            } else {
              int64_t got;
              std::memcpy(&got, to.data() + 8 * c, 8);
              CHECK_EQ(got, x.i);
            }
            CHECK_EQ(back, encoded(format, x, numerics));
          }
          if (!is_float(format)) continue;
          std::vector<float> values = floats(random, 4096);
          for (size_t i = 0; i < 1024; ++i) {  // exact ties of this format, and their neighbours
            const auto low = uint64_t(pick(random, 0, bytes == 1 ? 0x7A : 0x7BFE));
            const float a = value_of(format, low, numerics),
                        b = value_of(format, low + 1, numerics);
            float middle = float((double(a) + double(b)) / 2);
            const auto side = pick(random, 0, 2);
            if (side) middle = std::nextafter(middle, side == 1 ? INFINITY : -INFINITY);
            values[i] = pick(random, 0, 1) ? middle : -middle;
          }
          std::vector<std::byte> out(values.size() * 4);
          table(isa).encode[f](values.data(), out.data(), int64_t(values.size()), context);
          for (size_t i = 0; i < values.size(); ++i) {
            uint64_t code = 0;
            std::memcpy(&code, out.data() + i * size_t(bytes), size_t(bytes));
            CHECK_EQ(code, encoded_float(format, values[i], numerics));
          }
        }
      }
    }
  }
}

TEST(sfu_integers_divide_shift_and_wrap_as_written) {
  const auto one = [](Op op, Register type, int64_t a, int64_t b) {
    Node node;
    node.op = op;
    node.type = node.result = type;
    node.arity = 2;
    Number args[2] = {{type, 0, a}, {type, 0, b}};
    return applied(node, args, {}).i;
  };
  for (const Register type : {Register::I32, Register::I64}) {
    const int64_t least = type == Register::I32 ? INT32_MIN : INT64_MIN;
    const int64_t width = type == Register::I32 ? 32 : 64;
    CHECK_EQ(one(Op::FloorDiv, type, -7, 2), -4);
    CHECK_EQ(one(Op::TruncDiv, type, -7, 2), -3);
    CHECK_EQ(one(Op::Remainder, type, -7, 2), 1);
    CHECK_EQ(one(Op::Fmod, type, -7, 2), -1);
    CHECK_EQ(one(Op::Remainder, type, 7, -2), -1);
    CHECK_EQ(one(Op::FloorDiv, type, 7, 0), 0);
    CHECK_EQ(one(Op::TruncDiv, type, 7, 0), 0);
    CHECK_EQ(one(Op::Remainder, type, -7, 0), -7);
    CHECK_EQ(one(Op::Fmod, type, -7, 0), -7);
    CHECK_EQ(one(Op::FloorDiv, type, least, -1), least);
    CHECK_EQ(one(Op::TruncDiv, type, least, -1), least);
    CHECK_EQ(one(Op::Remainder, type, least, -1), 0);
    CHECK_EQ(one(Op::Shl, type, 3, width - 1), least);
    CHECK_EQ(one(Op::Shl, type, 3, width), 0);
    CHECK_EQ(one(Op::Shl, type, 3, -1), 0);
    CHECK_EQ(one(Op::Shr, type, -8, 1), -4);
    CHECK_EQ(one(Op::Shr, type, -8, width), -1);
    CHECK_EQ(one(Op::Shr, type, -8, -1), -1);
    CHECK_EQ(one(Op::Shr, type, 8, 99), 0);
    CHECK_EQ(one(Op::ShrLogical, type, -1, width - 1), 1);
    CHECK_EQ(one(Op::ShrLogical, type, -1, width), 0);
    CHECK_EQ(one(Op::Add, type, least, -1), -(least + 1));
    CHECK_EQ(one(Op::Sub, type, least, 1), -(least + 1));
    CHECK_EQ(one(Op::Mul, type, least, -1), least);
  }
}

TEST(sfu_float_remainders_are_exact) {
  Random random(13);
  std::vector<float> a = floats(random, 20000), b = floats(random, 20000);
  const void* in[2] = {a.data(), b.data()};
  std::vector<float> mod(a.size()), rest(a.size());
  apply_op(Op::Fmod, Register::F32, in, mod.data(), int64_t(a.size()), 0, {});
  apply_op(Op::Remainder, Register::F32, in, rest.data(), int64_t(a.size()), 0, {});
  for (size_t i = 0; i < a.size(); ++i) {
    const float exact = std::fmod(a[i], b[i]);
    if (std::isnan(exact)) {
      CHECK(std::isnan(mod[i]) && std::isnan(rest[i]));
      continue;
    }
    CHECK(std::memcmp(&exact, &mod[i], 4) == 0);
    const float shifted = exact != 0 && (b[i] < 0) != (exact < 0) ? exact + b[i] : exact;
    CHECK(std::memcmp(&shifted, &rest[i], 4) == 0);
  }
}

TEST(sfu_bits_do_not_depend_on_the_processors_flags) {
#if defined(__x86_64__)
  std::vector<float> x = {0x1p-140f, 0x1.8p-127f, 1e-30f, 3.0f};
  const auto run = [&] {
    std::vector<float> y(x.size());
    const void* in[2] = {x.data(), x.data()};
    apply_op(Op::Add, Register::F32, in, y.data(), int64_t(x.size()), 0, {});
    return y;
  };
  const std::vector<float> plain = run();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040 | 0x6000);  // flush, denormals are zero, round toward zero
  const std::vector<float> flushed = run();
  const unsigned kept = _mm_getcsr() & 0xE040;
  _mm_setcsr(before);
  CHECK(plain == flushed);
  CHECK(plain[0] == 0x1p-139f);
  CHECK_EQ(kept, 0xE040u);  // the caller's setting is back
#endif
}
