// The decoder: what it reads, what it refuses, and that no image can hurt it.
#include <random>

#include "check.h"
#include "program_images.h"

using namespace images;
using namespace openspyre::machine;

namespace {

constexpr Format kF32 = Format::IEEE_FP32;

std::shared_ptr<const Program> decode(const Bytes& image) {
  return decode_program(image.data(), image.size());
}

std::string refusal(const Bytes& image) {
  try {
    decode(image);
  } catch (const FormatError& error) {
    return error.what();
  }
  throw check::Failure("the image was not refused");
}

bool refused(const Bytes& image, const char* why) {
  const std::string text = refusal(image);
  if (text.find(why) != std::string::npos) return true;
  throw check::Failure("refused because: " + text + "; expected: " + why);
}

const std::vector<Bytes> kOver = {label("i", c(0), c(32))};
const Tile kX{0, 0, kF32, {{0, c(128)}}, 0}, kLx{0, 2, kF32, {{0, c(128)}}, 0};

Image small() {
  Image p;
  p.operand("x", 0, kF32, {32});
  p.operand("y", 1, kF32, {32});
  p.buffer(0, 128, 2);
  p.token(3, 1);
  p.token(2);
  p.queues[0] = {loop(c(2), {wait(1, v(1)), load(kOver, kX, kLx)})};
  return p;
}

Image with(int queue, const Bytes& instruction) {
  Image p = small();
  p.queues[queue].push_back(instruction);
  return p;
}

}  // namespace

TEST(program_decode_reads_every_part) {
  Image p = small();
  p.cores = 8;
  p.digits = {str("m") + u(2), str("n") + u(3)};
  p.lets = {str("half") + op(Over, v(2), c(2))};
  p.data = "seventeen bytes!!";
  // The variables are now: m, n, core, half, i.
  p.queues[0] = {loop(op(Plus, v(3), c(2)), {wait(1, v(4))})};
  const auto program = decode(p.bytes());
  CHECK_EQ(program->cores, 6);
  CHECK_EQ(program->semaphores, 5);
  CHECK_EQ(program->tokens[1].first, 3);
  CHECK_EQ(program->environment, 5);
  CHECK_EQ(program->instructions, 2U);
  CHECK_EQ(program->words, 2);
  CHECK_EQ(program->data_bytes, 17U);
  CHECK(!program->talks && !program->has_scratch);
  const Instruction& repeat = program->queues[0][0];
  CHECK_EQ(repeat.variable, 4);
  CHECK_EQ(repeat.count.steps.size(), size_t(3));
  CHECK_EQ(repeat.count.steps[1].value, 2);
  CHECK(repeat.count.steps[2].code == ExprStep::Add);
  CHECK_EQ(repeat.children[0].first.steps[0].value, 4);
}

TEST(program_decode_notices_every_changed_byte) {
  const Bytes good = small().bytes();
  decode(good);
  for (size_t i = 0; i < good.size(); ++i) {
    if (i >= 128 && i < 256) continue;  // the symbol words, which correction writes
    for (const int bit : {0, 7}) {
      Bytes bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1 << bit);
      refusal(bad);
    }
  }
  for (size_t length = 0; length < good.size(); ++length) refusal(good.substr(0, length));
}

TEST(program_decode_checks_the_header) {
  const auto changed = [](size_t offset, auto value) {
    Bytes image = small().bytes();
    put(&image, offset, value);
    mend(&image);
    return image;
  };
  CHECK(refused(changed(8, uint16_t(3)), "too new"));
  CHECK(refused(changed(8, uint16_t(0)), "version 0"));
  decode(changed(8, uint16_t(1)));  // read as well
  CHECK(refused(changed(10, uint16_t(1)), "must be zero"));
  CHECK(refused(changed(12, uint32_t(3)), "symbol words"));
  CHECK(refused(changed(16, uint64_t(0)), "byte 128"));
  CHECK(refused(changed(24, uint64_t(200)), "multiple of 128"));
  CHECK(refused(changed(32, ~uint64_t(0)), "body"));
  CHECK(refused(changed(40, uint64_t(0)), "data"));
  CHECK(refused(changed(48, uint64_t(1) << 40), "data"));
  CHECK(refused(changed(56, uint64_t(1) << 40), "the image says"));
  CHECK(refused(changed(72, uint64_t(1)), "checksum"));
}

TEST(program_decode_refuses_what_instructions_must_not_be) {
  Tile tile = kLx;
  CHECK(refused(with(1, load(kOver, kX, kLx)).bytes(), "queue store"));
  CHECK(refused(with(0, load(kOver, kLx, kLx)).bytes(), "the source must be an operand"));
  CHECK(refused(with(0, load(kOver, kX, kX)).bytes(), "the target must be an LX buffer"));
  CHECK(refused(with(1, store(kOver, kLx, kX)).bytes(), "read only"));
  tile.format = Format::IEEE_INT32;
  CHECK(refused(with(0, load(kOver, kX, tile)).bytes(), "one format"));
  tile = kLx;
  tile.stick = -1;
  CHECK(refused(with(0, load(kOver, kX, tile)).bytes(), "one stick label"));
  tile = kLx;
  tile.strides = {{0, c(128)}, {0, c(128)}};
  tile.index = {0};
  CHECK(refused(with(0, load(kOver, kX, tile)).bytes(), "two strides"));
  tile.strides = {{1, c(128)}};
  CHECK(refused(with(0, load(kOver, kX, tile)).bytes(), "must be below 1"));
  tile = kLx;
  tile.place = 3;
  CHECK(refused(with(0, load(kOver, kX, tile)).bytes(), "access place"));
  CHECK(refused(with(0, wait(2)).bytes(), "token"));
  CHECK(refused(with(0, wait(1, v(1))).bytes(), "token index"));  // no loop variable in scope
  CHECK(refused(with(4, copy_map(kOver, kX, kLx)).bytes(), "must lie in LX"));
  CHECK(refused(with(3, copy_map(kOver, kLx, kLx)).bytes(), "it names unit sfu"));
}

TEST(program_decode_bounds_depths_and_counts) {
  Bytes deep = v(0);
  for (int i = 0; i < 63; ++i) deep = op(Plus, c(1), deep);
  decode(with(0, wait(1, deep)).bytes());
  CHECK(refused(with(0, wait(1, op(Plus, c(1), deep))).bytes(), "64 deep"));

  Bytes nest = signal(0);
  for (int i = 0; i < 64; ++i) nest = u(6) + u(0) + c(1) + list({nest});
  decode(with(0, nest).bytes());
  CHECK(refused(with(0, u(6) + u(0) + c(1) + list({nest})).bytes(), "loops nest"));

  // A count that the bytes behind it cannot hold, wherever it stands.
  Image p = small();
  p.queues[4] = {u(3) + u(4) + u(1) + u(uint64_t(1) << 60)};
  CHECK(refused(p.bytes(), "over"));
  p = small();
  p.tokens = {str("t") + u(uint64_t(1) << 60) + u(0)};
  CHECK(refused(p.bytes(), "token count"));
  p = small();
  p.lx = uint64_t(1) << 40;
  CHECK(refused(p.bytes(), "lx_bytes"));
  p = small();
  p.digits = {str("c") + u(2)};
  CHECK(refused(p.bytes(), "more cores than the card"));
}

TEST(program_decode_checks_numbers_and_texts) {
  Image p = small();
  p.queues[0] = {u(4) + Bytes(10, '\xff') + Bytes(1, '\x01')};
  CHECK(refused(p.bytes(), "longer than 64 bits"));
  p = small();
  p.operand("\xc3\x28", 2, kF32, {32});
  CHECK(refused(p.bytes(), "not UTF-8"));
  p = small();
  p.operands[0] += u(0);
  refusal(p.bytes());
}
