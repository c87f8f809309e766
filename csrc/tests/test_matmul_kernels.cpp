// Matrix products of every instruction set against plain loops: N6, N7 (its order), L33.
#include "check.h"
#include "kernel_tiles.h"
#include "machine/kernels/matmul_kernels.h"

using namespace tiles;

namespace {

constexpr uint32_t kNan = 0x7FC00000;

void (*entry(Isa isa))(const ComputeTask&) {
#if defined(__x86_64__)
  if (isa == Isa::AVX2) return avx2::matmul;
  if (isa == Isa::AVX512) return avx512::matmul;
#endif
  (void)isa;
  return portable::matmul;
}

// Any code at all: NaN, infinity, subnormals, extremes. Rare: now and then a code that decoders
// treat apart, among ordinary ones.
enum class Values { Ordinary, Any, Rare };

uint64_t rare(uint64_t any, Format format) {
  const uint64_t sign = any >> 40 & 1;
  // Merged, zero, smallest, the ends of the exponent field's 0, largest.
  const uint64_t dl16[] = {0x7FFF, 0, 1, 0x01FF, 0x0200, 0x7FFE};
  if (format == Format::SEN169_FP16) return sign << 15 | dl16[(any >> 32) % 6];
  return sign << (8 * format_bytes(format) - 1);  // zero, of either sign
}

uint64_t code(Random& random, Format format, Values values) {
  const uint64_t any = random();
  if (values == Values::Rare && (any >> 48) % 64 == 0) return rare(any, format);
  if (values == Values::Any || format_bytes(format) == 1) {
    const bool finite = values != Values::Any && format != Format::SENINT8;
    return finite ? (any & 0x80) | (any % 0x78) : any;
  }
  const float value = float(int64_t(any % 4001) - 2000) / 1000.0f;
  uint32_t word;
  std::memcpy(&word, &value, 4);
  switch (format) {
    case Format::SEN169_FP16:
      return dl16_encode(value, {});
    case Format::IEEE_FP16:
      return (any & 0x8000) | (0x2000 + (any >> 20) % 0x1C00);
    case Format::BFLOAT16:
      return word >> 16;
    default:
      return word;
  }
}

struct Shape {
  int64_t m, n, k, batch;
  bool shared_b;
};

// Labels in some order; one product on every instruction set, against plain loops.
void compare(Random& random, Format a_format, Format b_format, const Shape& shape, bool accumulate,
             Values values, const Numerics& numerics = {}) {
  std::vector<int> place = {0, 1, 2, 3};
  std::shuffle(place.begin(), place.end(), random);
  const int m = place[0], n = place[1], k = place[2], batch = place[3];
  std::vector<int64_t> sizes(4);
  sizes[m] = shape.m, sizes[n] = shape.n, sizes[k] = shape.k, sizes[batch] = shape.batch;
  const bool integers = a_format == Format::SENINT8;
  const Format out_format = integers ? Format::IEEE_INT32 : Format::IEEE_FP32;
  Tile a(random, a_format, sizes, {batch, m, k}, k);
  std::vector<int> b_labels = {k, n};
  if (!shape.shared_b) b_labels.push_back(batch);
  Tile b(random, b_format, sizes, b_labels, n);
  Tile out(random, out_format, sizes, {batch, m, n}, n);
  a.fill([&] { return code(random, a_format, values); });
  b.fill([&] { return code(random, b_format, values); });
  if (accumulate) {
    out.fill([&] { return integers ? random() : code(random, out_format, values); });
  }

  Tile want(out);
  want.each([&](const std::vector<int64_t>& point) {
    std::vector<int64_t> at = point;
    uint32_t word = accumulate ? uint32_t(out.bits(point)) : 0;
    float sum = value_of(Format::IEEE_FP32, word);
    for (at[k] = 0; at[k] < shape.k; ++at[k]) {
      std::vector<int64_t> from = at;
      if (shape.shared_b) from[batch] = 0;
      if (integers) {
        word += uint32_t(int32_t(int8_t(a.bits(at))) * int32_t(int8_t(b.bits(from))));
        continue;
      }
      volatile float product =
          value_of(a_format, a.bits(at), numerics) * value_of(b_format, b.bits(from), numerics);
      sum = sum + product;
    }
    if (!integers) {
      std::memcpy(&word, &sum, 4);
      if (std::isnan(sum)) word = kNan;
    }
    std::memcpy(want.at(point), &word, 4);
  });

  for (const Isa isa : isas()) {
    Tile got(out);
    ComputeTask task{};
    task.labels = 4;
    for (int label = 0; label < 4; ++label) task.size[label] = sizes[label];
    task.inputs = 2, task.outputs = 1;
    task.input[0] = a.view, task.input[1] = b.view, task.output[0] = got.view;
    task.accumulate = accumulate;
    task.numerics = &numerics;
    entry(isa)(task);
    want.each([&](const std::vector<int64_t>& point) {
      const uint64_t expected = want.bits(point), found = got.bits(point);
      if (expected == found) return;
      std::ostringstream text;
      text << isa_name(isa) << " " << format_name(a_format) << " x " << format_name(b_format)
           << " m " << shape.m << " n " << shape.n << " k " << shape.k << " at " << point[m] << ","
           << point[n] << ": " << std::hex << found << " is not " << expected;
      throw check::Failure(text.str());
    });
    CHECK(!out.strayed(got));
  }
}

constexpr Format kInputs[] = {Format::SEN169_FP16, Format::IEEE_FP16,  Format::BFLOAT16,
                              Format::IEEE_FP32,   Format::SEN143_FP8, Format::SEN152_FP8,
                              Format::SENINT8};

Shape random_shape(Random& random, int64_t largest_m, int64_t largest) {
  return {pick(random, 1, largest_m), pick(random, 1, largest), pick(random, 1, largest),
          pick(random, 1, 3), pick(random, 0, 1) == 1};
}

}  // namespace

TEST(matmul_few_rows_equal_plain_loops_on_every_isa_n6) {
  Random random(1);
  for (const Format format : kInputs) {
    for (int64_t m = 1; m <= 9; ++m) {
      Shape shape = random_shape(random, 1, 140);
      shape.m = m;
      compare(random, format, format, shape, m % 2 == 0, Values::Ordinary);
    }
    compare(random, format, format, {3, 70, 300, 1, true}, true, Values::Ordinary);
  }
}

TEST(matmul_of_any_shape_equals_plain_loops_on_every_isa_n6) {
  Random random(2);
  for (const Format format : kInputs) {
    for (int round = 0; round < 6; ++round) {
      compare(random, format, format, random_shape(random, 30, 150), round % 2 == 0,
              Values::Ordinary);
    }
  }
}

TEST(matmul_of_any_code_equals_plain_loops_on_every_isa_n6) {
  Random random(3);
  for (const Format format : kInputs) {
    for (int round = 0; round < check::rounds(12); ++round) {
      Numerics numerics;
      numerics.merged_is_nan = round % 3 == 0;
      compare(random, format, format, random_shape(random, 12, round % 2 ? 9 : 80), round % 4 == 1,
              Values::Any, numerics);
    }
  }
}

TEST(matmul_of_few_rows_meets_rare_codes_anywhere) {
  Random random(9);
  for (int64_t m = 1; m <= 9; ++m) {
    for (int round = 0; round < 4; ++round) {
      Numerics numerics;
      numerics.merged_is_nan = round == 1;
      // Few values of a, so that one merged code in them does not hide what becomes of b's.
      const Shape shape = {m, pick(random, 1, 140), pick(random, 1, 24), 1, true};
      compare(random, Format::SEN169_FP16, Format::SEN169_FP16, shape, round % 2 == 0, Values::Rare,
              numerics);
    }
  }
  compare(random, Format::SEN143_FP8, Format::SEN143_FP8, {2, 70, 9, 1, true}, true, Values::Rare);
}

TEST(matmul_mixes_the_two_fp8_formats) {
  Random random(4);
  for (const auto values : {Values::Ordinary, Values::Any}) {
    compare(random, Format::SEN143_FP8, Format::SEN152_FP8, {4, 130, 200, 2, true}, false, values);
    compare(random, Format::SEN152_FP8, Format::SEN143_FP8, {20, 66, 130, 1, false}, true, values);
  }
}

TEST(matmul_goes_on_over_blocks_of_k_and_rows) {
  Random random(5);
  compare(random, Format::SEN169_FP16, Format::SEN169_FP16, {261, 70, 600, 1, true}, false,
          Values::Ordinary);
  compare(random, Format::SENINT8, Format::SENINT8, {11, 33, 1500, 1, true}, true,
          Values::Ordinary);
  compare(random, Format::IEEE_FP32, Format::IEEE_FP32, {13, 97, 520, 1, true}, true,
          Values::Ordinary);
}

TEST(matmul_rounds_bfloat16_products_beyond_float32_first) {
  Random random(6);
  const auto run = [&](uint16_t x, uint16_t y, uint32_t old, int64_t m) {
    const std::vector<int64_t> sizes = {m, 1, 1};
    Tile a(random, Format::BFLOAT16, sizes, {0, 2}, 2),
        b(random, Format::BFLOAT16, sizes, {2, 1}, 1);
    Tile out(random, Format::IEEE_FP32, sizes, {0, 1}, 1);
    a.fill([&] { return x; });
    b.fill([&] { return y; });
    out.fill([&] { return old; });
    const Numerics numerics;
    std::vector<uint64_t> found;
    for (const Isa isa : isas()) {
      Tile got(out);
      ComputeTask task{};
      task.labels = 3, task.inputs = 2, task.outputs = 1, task.accumulate = true;
      std::copy(sizes.begin(), sizes.end(), task.size);
      task.input[0] = a.view, task.input[1] = b.view, task.output[0] = got.view;
      task.numerics = &numerics;
      entry(isa)(task);
      found.push_back(got.bits({m - 1, 0, 0}));
      CHECK_EQ(found.back(), found.front());
    }
    return found.front();
  };
  for (const int64_t m : {1, 12}) {
    // 2^127 * 2^127 is infinite before -infinity is added to it: NaN. Fused it would be -infinity.
    CHECK_EQ(run(0x7F00, 0x7F00, 0xFF800000, m), uint64_t(kNan));
    // 1.5 * 2^-75 * 2^-74, in units of 2^-149: 1.5 becomes 2, plus 1 is 3. Fused: 2.5 becomes 2.
    CHECK_EQ(run(0x1A40, 0x1A80, 0x00000001, m), uint64_t(0x00000003));
  }
}

TEST(matmul_multiplies_no_pad_of_k_l33) {
  // Tile poisons every pad with a NaN; K = 150 as in the acceptance test.
  Random random(7);
  for (const Format format : kInputs) {
    compare(random, format, format, {5, 100, 150, 1, true}, false, Values::Ordinary);
    compare(random, format, format, {15, 100, 150, 1, true}, false, Values::Ordinary);
  }
}

TEST(matmul_refuses_what_it_cannot_do) {
  Random random(8);
  const std::vector<int64_t> sizes = {2, 2, 2};
  Tile a(random, Format::SEN169_FP16, sizes, {0, 2}, 2),
      b(random, Format::IEEE_FP16, sizes, {2, 1}, 1);
  Tile out(random, Format::IEEE_FP32, sizes, {0, 1}, 1);
  const Numerics numerics;
  ComputeTask task{};
  task.labels = 3, task.inputs = 2, task.outputs = 1;
  std::copy(sizes.begin(), sizes.end(), task.size);
  task.input[0] = a.view, task.input[1] = b.view, task.output[0] = out.view;
  task.numerics = &numerics;
  CHECK_THROWS(portable::matmul(task), std::invalid_argument);
}
