// Number formats: published vectors, exhaustive 16-bit checks against a double-precision search
// over the format's grid, and bit-equality of the instruction sets at every alignment and length.
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "machine/formats.h"

using namespace openspyre::machine;

namespace {

const TieRule kTies[] = {TieRule::TowardPositive, TieRule::AwayFromZero, TieRule::ToEven,
                         TieRule::TowardZero, TieRule::ToOdd};

std::vector<Isa> available() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::Portable, Isa::AVX2, Isa::AVX512}) {
    if (isa <= best_isa()) all.push_back(isa);
  }
  return all;
}

struct Forced {  // restores the processor's own choice
  explicit Forced(Isa isa) { set_isa(isa); }
  ~Forced() { set_isa(best_isa()); }
};

std::vector<uint16_t> every16() {
  std::vector<uint16_t> all(65536);
  for (int i = 0; i < 65536; ++i) all[size_t(i)] = uint16_t(i);
  return all;
}

template <class Out, class In>
std::vector<Out> encoded(HostType from, Format to, const std::vector<In>& in,
                         const Numerics& numerics = {}) {
  std::vector<Out> out(in.size());
  encode(from, to, in.data(), out.data(), in.size(), numerics);
  return out;
}
template <class Out, class In>
std::vector<Out> decoded(Format from, HostType to, const std::vector<In>& in,
                         const Numerics& numerics = {}) {
  std::vector<Out> out(in.size());
  decode(from, to, in.data(), out.data(), in.size(), numerics);
  return out;
}

double half_value(uint16_t bits) {  // finite ones only
  const int e = (bits >> 10) & 31, f = bits & 1023;
  const double mag = e ? std::ldexp(1024 + f, e - 25) : std::ldexp(f, -24);
  return bits & 0x8000 ? -mag : mag;
}

double grid(int mag) {  // 0 counts as 2^-31 and 0x7FFF as 2^33: the neighbours when rounding
  return std::ldexp(512 + (mag & 511), (mag >> 9) - 31 - 9);
}

// The oracle: bisect the grid, compare the two distances exactly, and settle a tie by the rule.
uint16_t search_dl16(double x, TieRule tie) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double mag = std::fabs(x);
  if (mag <= grid(0)) return sign;
  if (mag >= grid(0x7FFF)) return sign | 0x7FFF;
  int low = 0, high = 0x7FFF;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (grid(middle) <= mag ? low : high) = middle;
  }
  const double below = mag - grid(low), above = grid(high) - mag;
  bool up = above < below;
  if (above == below) {
    switch (tie) {
      case TieRule::TowardPositive:
        up = !sign;
        break;
      case TieRule::AwayFromZero:
        up = true;
        break;
      case TieRule::ToEven:
        up = low & 1;
        break;
      case TieRule::TowardZero:
        up = false;
        break;
      case TieRule::ToOdd:
        up = !(low & 1);
        break;
    }
  }
  return uint16_t(sign | (up ? high : low));
}

}  // namespace

TEST(n1_published_vectors) {
  const struct {
    float value;
    uint16_t code;
  } rows[] = {
      {1.0f, 0x3E00},
      {1.0f + 0x1p-10f, 0x3E01},
      {-(1.0f + 0x1p-10f), 0xBE00},
      {1.0f / 3, 0x3AAB},
      {3.0f, 0x4100},
      {-2050.0f, 0xD400},
      {-2.001953125f, 0xC000},
      {65504.0f, 0x5E00},
      {70000.0f, 0x5E23},
      {0x1p-24f, 0x0E00},
      {0x1p-31f, 0x0000},
      {0x1p-31f * (1 + 0x1p-9f), 0x0001},
      {1e12f, 0x7FFF},
      {-1e12f, 0xFFFF},
      {8573157376.0f, 0x7FFE},
      {-0.0f, 0x8000},
      {INFINITY, 0x7FFF},
      {-INFINITY, 0xFFFF},
      {NAN, 0x7FFF},
      {-NAN, 0x7FFF},
  };
  for (const auto& row : rows) CHECK_EQ(dl16_encode(row.value, {}), row.code);
  CHECK_EQ(dl16_decode(0x5DFF, {}), 65472.0f);
  CHECK_EQ(dl16_decode(0x3733, {}), 0.0999755859375f);
  CHECK_EQ(dl16_decode(0x5E23, {}), 70016.0f);
  CHECK(std::signbit(dl16_decode(0x8000, {})) && dl16_decode(0x8000, {}) == 0);
  CHECK_EQ(dl16_decode(0xFFFF, {}), -INFINITY);
  CHECK_EQ(std::bit_cast<uint32_t>(dl16_decode(0xFFFF, {.merged_is_nan = true})), 0x7FC00000u);
}

TEST(all_half_patterns_match_the_grid_search_under_every_tie_rule) {
  const auto all = every16();
  for (Isa isa : available()) {
    Forced forced(isa);
    for (TieRule tie : kTies) {
      const auto codes =
          encoded<uint16_t>(HostType::F16, Format::SEN169_FP16, all, Numerics{.tie = tie});
      for (uint16_t bits : all) {
        const int mag = bits & 0x7FFF;
        uint16_t expected = mag > 0x7C00 ? 0x7FFF : uint16_t((bits & 0x8000) | 0x7FFF);
        if (mag < 0x7C00) {
          expected = search_dl16(half_value(bits), tie);
          if ((expected & 0x7FFF) > 0x5DFF) expected = uint16_t((bits & 0x8000) | 0x5DFF);
        }
        CHECK_EQ(codes[bits], expected);
      }
    }
  }
}

TEST(n2_30720_finite_halves_change_in_a_round_trip) {
  const auto all = every16();
  for (Isa isa : available()) {
    Forced forced(isa);
    const auto back = decoded<uint16_t>(Format::SEN169_FP16, HostType::F16,
                                        encoded<uint16_t>(HostType::F16, Format::SEN169_FP16, all));
    int finite = 0, changed = 0;
    double worst = 0;
    for (uint16_t bits : all) {
      if ((bits & 0x7C00) == 0x7C00) continue;
      ++finite;
      if (back[bits] == bits) continue;
      ++changed;
      const double x = half_value(bits);
      worst = std::max(worst, std::fabs((half_value(back[bits]) - x) / x));
    }
    CHECK_EQ(finite, 63488);
    CHECK_EQ(changed, 30720);
    CHECK(std::fabs(worst - 9.757e-4) <= 1e-6);
  }
}

TEST(n3_all_codes_decode_and_encode_to_themselves) {
  const auto all = every16();
  for (Isa isa : available()) {
    Forced forced(isa);
    for (bool nan : {false, true}) {
      for (TieRule tie : kTies) {
        const Numerics numerics{.tie = tie, .merged_is_nan = nan};
        const auto values = decoded<float>(Format::SEN169_FP16, HostType::F32, all, numerics);
        const auto codes = encoded<uint16_t>(HostType::F32, Format::SEN169_FP16, values, numerics);
        for (uint16_t code : all) {
          const uint16_t mag = code & 0x7FFF;
          if (mag && mag < 0x7FFF) {
            const double exact = std::copysign(grid(mag), code & 0x8000 ? -1.0 : 1.0);
            CHECK_EQ(double(values[code]), exact);
          }
          CHECK_EQ(codes[code], nan && mag == 0x7FFF ? 0x7FFF : code);
        }
      }
    }
  }
}

TEST(float_patterns_match_the_grid_search_under_every_tie_rule) {
  // Around every code: the grid value, the tie above it, and their neighbours, of both signs.
  std::vector<float> values;
  for (int mag = 0; mag < 0x7FFF; ++mag) {
    const float at = float(grid(mag)), tie = float((grid(mag) + grid(mag + 1)) / 2);
    for (float x : {at, std::nextafter(at, 0.0f), tie, std::nextafter(tie, 0.0f),
                    std::nextafter(tie, INFINITY)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  for (float x : {0.0f, 1e-45f, 1.1754944e-38f, 3.4028235e38f, 0x1p33f, 8581545984.0f}) {
    values.push_back(x);
    values.push_back(-x);
  }
  for (Isa isa : available()) {
    Forced forced(isa);
    for (TieRule tie : kTies) {
      const auto codes =
          encoded<uint16_t>(HostType::F32, Format::SEN169_FP16, values, Numerics{.tie = tie});
      for (size_t i = 0; i < values.size(); ++i) {
        CHECK_EQ(codes[i], search_dl16(double(values[i]), tie));
      }
    }
  }
}

TEST(bool_is_one_or_zero_and_any_nonzero_magnitude_is_true) {
  std::vector<uint8_t> bytes(256);
  for (int i = 0; i < 256; ++i) bytes[size_t(i)] = uint8_t(i);
  for (Isa isa : available()) {
    Forced forced(isa);
    for (auto [format, one] :
         {std::pair{Format::SEN169_FP16, 0x3E00}, {Format::IEEE_FP16, 0x3C00}}) {
      const auto codes = encoded<uint16_t>(HostType::BOOL, format, bytes);
      for (int i = 0; i < 256; ++i) CHECK_EQ(int(codes[size_t(i)]), i ? one : 0);
      const auto back = decoded<uint8_t>(format, HostType::BOOL, every16());
      for (int i = 0; i < 65536; ++i) CHECK_EQ(int(back[size_t(i)]), int((i & 0x7FFF) != 0));
    }
  }
}

TEST(bfloat16_saturates_and_keeps_infinities_and_signs) {
  const std::vector<uint16_t> in = {0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1,
                                    0x5000, 0x4FFF, 0x3000, 0x3001, 0x8000, 0x3F80};
  const std::vector<uint16_t> out = {0x7FFE, 0xFFFE, 0x7FFF, 0xFFFF, 0x7FFF, 0x7FFF,
                                     0x7FFE, 0x7FFC, 0x0000, 0x0004, 0x8000, 0x3E00};
  for (Isa isa : available()) {
    Forced forced(isa);
    CHECK(encoded<uint16_t>(HostType::BF16, Format::SEN169_FP16, in) == out);
  }
}

TEST(every_isa_gives_the_portable_bits_at_every_length_and_alignment) {
  // 32-bit patterns from a fixed generator, weighted to small exponents and specials by masks.
  std::vector<uint32_t> words(4096);
  uint64_t state = 0x9E3779B97F4A7C15ull;
  for (size_t i = 0; i < words.size(); ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    words[i] = uint32_t(state >> 32);
    if (i % 7 == 0) words[i] |= 0x7F800000u;
    if (i % 5 == 0) words[i] &= 0x83FF03FFu;
    if (i % 11 == 0) words[i] = 0;
  }
  const char* in = reinterpret_cast<const char*>(words.data());
  for (int t = 0; t <= int(HostType::RAW16); ++t) {
    for (int f = 0; f < kFormatCount; ++f) {
      const HostType type = HostType(t);
      const Format format = Format(f);
      if (!can_convert(type, format)) continue;
      const int widest = std::max(host_bytes(type), format_bytes(format));
      for (TieRule tie : kTies) {
        const Numerics numerics{.tie = tie, .merged_is_nan = tie == TieRule::ToOdd};
        for (size_t n : {0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 600}) {
          for (size_t shift : {0, 1, 3}) {
            std::vector<std::string> seen;
            for (Isa isa : available()) {
              Forced forced(isa);
              std::string image(n * size_t(widest) + 64, '\x5A');  // a write beyond n shows
              encode(type, format, in + shift, image.data() + shift, n, numerics);
              std::string back(n * size_t(widest) + 64, '\x5A');
              decode(format, type, in + shift, back.data() + shift, n, numerics);
              const size_t wrote = shift + n * size_t(format_bytes(format));
              for (size_t i = wrote; i < image.size(); ++i) CHECK(image[i] == '\x5A');
              const size_t wrote_back = shift + n * size_t(host_bytes(type));
              for (size_t i = wrote_back; i < back.size(); ++i) CHECK(back[i] == '\x5A');
              seen.push_back(image + back);
            }
            for (const auto& s : seen) CHECK(s == seen[0]);
          }
        }
      }
    }
  }
}

TEST(all_codes_decode_alike_on_every_isa) {
  const auto all = every16();
  for (bool nan : {false, true}) {
    const Numerics numerics{.merged_is_nan = nan};
    for (HostType type : {HostType::F16, HostType::BF16, HostType::F32, HostType::BOOL}) {
      set_isa(Isa::Portable);
      std::vector<uint32_t> expected(65536), got(65536);
      decode(Format::SEN169_FP16, type, all.data(), expected.data(), all.size(), numerics);
      for (Isa isa : available()) {
        Forced forced(isa);
        decode(Format::SEN169_FP16, type, all.data(), got.data(), all.size(), numerics);
        CHECK(got == expected);
      }
    }
  }
}

TEST(pairs_are_the_documented_ones) {
  for (int t = 0; t <= int(HostType::RAW16); ++t) {
    const HostType type = HostType(t);
    CHECK(can_convert(type, format_for(type, Mode::DL16)));
    CHECK(can_convert(type, format_for(type, Mode::IEEE)));
    for (Format f :
         {Format::HOST_1, Format::HOST_2, Format::HOST_4, Format::HOST_8, Format::HOST_16}) {
      CHECK_EQ(can_convert(type, f), host_bytes(type) == format_bytes(f));
    }
  }
  for (Format f : {Format::SEN169_FP16, Format::IEEE_FP16, Format::BFLOAT16, Format::IEEE_FP32}) {
    CHECK(can_convert(HostType::F32, f));
  }
  CHECK(!can_convert(HostType::F16, Format::BFLOAT16));
  CHECK(!can_convert(HostType::BOOL, Format::SENUINT8));
  CHECK(!can_convert(HostType::I64, Format::IEEE_INT32));
  CHECK(!can_convert(HostType::RAW2, Format::IEEE_FP32));
  CHECK_EQ(int(format_for(HostType::F16, Mode::DL16)), int(Format::SEN169_FP16));
  CHECK_EQ(int(format_for(HostType::BF16, Mode::IEEE)), int(Format::BFLOAT16));
  CHECK_EQ(int(format_for(HostType::BOOL, Mode::IEEE)), int(Format::IEEE_FP16));
  CHECK_EQ(elements_per_stick(Format::SEN169_FP16), 64);
  CHECK_EQ(elements_per_stick(Format::IEEE_INT64), 16);
}

TEST(an_unsupported_pair_is_refused_with_both_names_and_writes_nothing) {
  const uint64_t in = 5;
  uint64_t out = 77;
  try {
    encode(HostType::I64, Format::SEN169_FP16, &in, &out, 1, {});
    CHECK(false);
  } catch (const std::invalid_argument& e) {
    CHECK(std::strstr(e.what(), "I64") && std::strstr(e.what(), "SEN169_FP16"));
  }
  CHECK_THROWS(decode(Format::IEEE_FP16, HostType::BF16, &in, &out, 1, {}), std::invalid_argument);
  CHECK_EQ(out, 77u);
}

TEST(poison_fills_every_byte_with_a_nan_or_an_extreme) {
  for (int f = 0; f < kFormatCount; ++f) {
    for (size_t bytes : {size_t(0), size_t(1), size_t(3), size_t(128), size_t(130)}) {
      std::vector<unsigned char> image(bytes + 1, 0x11);
      poison(Format(f), image.data(), bytes);
      for (size_t i = 0; i < bytes; ++i) CHECK(image[i] == 0xFF || image[i] == 0x7F);
      CHECK_EQ(int(image[bytes]), 0x11);
    }
  }
  uint16_t code;
  poison(Format::SEN169_FP16, &code, 2);
  CHECK_EQ(code, 0x7FFF);
  float value;
  poison(Format::IEEE_FP32, &value, 4);
  CHECK(std::isnan(value));
  int64_t extreme;
  poison(Format::IEEE_INT64, &extreme, 8);
  CHECK_EQ(extreme, INT64_MAX);
}

TEST(a_missing_isa_is_refused_and_the_current_one_stays) {
  const Isa before = current_isa();
  if (best_isa() != Isa::AVX512) CHECK_THROWS(set_isa(Isa::AVX512), std::invalid_argument);
  CHECK_THROWS(set_isa(Isa(9)), std::invalid_argument);
  CHECK(current_isa() == before);
  CHECK_EQ(std::string(isa_name(Isa::AVX512)), "avx512");
}
