// Layouts: the rows of compiler.md 2.2, the explicit constructors, and laws on random layouts.
#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "check.h"
#include "machine/layout.h"

namespace openspyre::machine {
namespace {

using Vec = std::vector<int64_t>;

std::string show(const Vec& v) {
  std::string text;
  for (int64_t x : v) text += std::to_string(x) + " ";
  return text;
}

void expect(const Layout& layout, const Vec& device, const Vec& map, int64_t bytes) {
  CHECK_EQ(show(layout.device_size()), show(device));
  CHECK_EQ(show(layout.stride_map()), show(map));
  CHECK_EQ(layout.nbytes(), bytes);
}

constexpr Format kHalf = Format::SEN169_FP16;

TEST(layout_rows_of_the_fact_table) {
  expect(Layout::make(Vec{}, kHalf), {1, 64}, {-1, -1}, 128);
  expect(Layout::make(Vec{60}, kHalf), {1, 64}, {64, 1}, 128);
  expect(Layout::make(Vec{4096}, Format::IEEE_FP32), {128, 32}, {32, 1}, 16384);
  expect(Layout::make(Vec{1024, 256}, kHalf), {4, 1024, 64}, {64, 256, 1}, 524288);
  expect(Layout::make(Vec{1024, 256}, Format::IEEE_INT64), {16, 1024, 16}, {16, 256, 1}, 2097152);
  expect(Layout::make(Vec{512, 256}, kHalf, Vec{1, 0}), {8, 256, 64}, {16384, 1, 256}, 262144);
  expect(Layout::make(Vec{512, 256}, kHalf, Vec{0, 1, -1}), {256, 1, 512, 64}, {1, -1, 256, -1},
         16777216);
  expect(Layout::make(Vec{512, 1}, kHalf), {1, 512, 64}, {-1, 1, -1}, 65536);
  expect(Layout::make(Vec{5, 100, 150}, kHalf), {100, 3, 5, 64}, {150, 64, 15000, 1}, 192000);
  expect(Layout::make(Vec{512, 8, 256}, kHalf, Vec{0, 2, 1}), {256, 1, 512, 64},
         {1, 16384, 2048, 256}, 16777216);
  expect(Layout::make(Vec{2, 8, 512, 128}, kHalf, Vec{0, 1, 3, 2}), {8, 128, 8, 2, 64},
         {65536, 1, 8192, 524288, 128}, 2097152);
  expect(Layout::make(Vec{2, 3, 5, 7, 256}, kHalf), {3, 5, 7, 4, 2, 64},
         {8960, 1792, 256, 64, 26880, 1}, 107520);
}

TEST(layout_l27_address) {
  const Layout layout = Layout::make(Vec{1024, 256}, kHalf);
  CHECK_EQ(layout.element_offset(3 * 256 + 70), 131468);
  CHECK_THROWS(layout.element_offset(1024 * 256), std::out_of_range);
  CHECK_THROWS(layout.element_offset(-1), std::out_of_range);
}

TEST(layout_explicit_constructors) {
  const Layout padded = Layout::explicit_map(Vec{40, 60}, Vec{1, 512, 64}, Vec{64, 60, 1}, kHalf);
  CHECK_EQ(padded.element_offset(61), 130);
  const Layout copies = Layout::explicit_map(Vec{60}, Vec{1, 512, 64}, Vec{64, 0, 1}, kHalf);
  CHECK(copies.has_copies() && !copies.is_identity());
  CHECK_EQ(copies.copies()[0].count, 512);
  CHECK_EQ(copies.copies()[0].device_stride, 64);
  const Layout fold = Layout::explicit_map(Vec{40, 60}, Vec{38, 64}, Vec{64, 1}, kHalf);
  CHECK(fold.is_identity() && !fold.is_default());
  CHECK_EQ(fold.nbytes(), 38 * 128);
}

TEST(layout_refuses_what_has_no_place) {
  const auto make = [](Vec host, Vec device, Vec map) {
    return Layout::explicit_map(host, device, map, kHalf);
  };
  CHECK_THROWS(make({40, 60}, {37, 64}, {64, 1}), std::invalid_argument);  // too few sticks
  CHECK_THROWS(make({65}, {1, 64}, {64, 1}), std::invalid_argument);
  CHECK_THROWS(make({40, 60}, {40, 64}, {60, 2}), std::invalid_argument);  // nothing steps by 1
  CHECK_THROWS(make({40, 60}, {40, 64}, {64, 60, 1}), std::invalid_argument);
  CHECK_THROWS(make({40, 60}, {40, 32}, {60, 1}), std::invalid_argument);  // no stick
  CHECK_THROWS(make({40, 60}, {40, 64}, {-2, 1}), std::invalid_argument);
  CHECK_THROWS(make({60}, {60, 64}, {1, 1}), std::invalid_argument);  // two places, not copies
  CHECK_THROWS(make({60}, {0, 64}, {1, 1}), std::invalid_argument);
  CHECK_THROWS(Layout::make(Vec{2, -1}, kHalf), std::invalid_argument);
  CHECK_THROWS(Layout::make(Vec{2, 2}, kHalf, Vec{0, 0}), std::invalid_argument);
  CHECK_THROWS(Layout::make(Vec{2, 2}, kHalf, Vec{0}), std::invalid_argument);
  CHECK_THROWS(Layout::make(Vec{2, 2}, kHalf, Vec{-1, 0, 1}), std::invalid_argument);
  CHECK_THROWS(Layout::make(Vec{int64_t{1} << 40, int64_t{1} << 40}, kHalf), std::invalid_argument);
  CHECK_THROWS(Layout::default_nbytes(Vec{int64_t{1} << 40, int64_t{1} << 40}, kHalf),
               std::invalid_argument);
}

TEST(layout_strided_and_linear) {
  // The transposed view of a fresh [256, 128] allocation, and channels-last.
  CHECK(Layout::for_strided(Vec{128, 256}, Vec{1, 128}, kHalf) ==
        Layout::make(Vec{256, 128}, kHalf));
  CHECK(Layout::for_strided(Vec{2, 3, 4, 5}, Vec{60, 1, 15, 3}, kHalf) ==
        Layout::make(Vec{2, 4, 5, 3}, kHalf));
  CHECK(Layout::for_strided(Vec{512, 1}, Vec{1, 77}, kHalf) == Layout::make(Vec{512, 1}, kHalf));
  CHECK(Layout::for_strided(Vec{0, 3}, Vec{9, 9}, kHalf) == Layout::make(Vec{0, 3}, kHalf));
  CHECK_THROWS(Layout::for_strided(Vec{4, 4}, Vec{5, 1}, kHalf), std::invalid_argument);
  CHECK_THROWS(Layout::for_strided(Vec{4, 4}, Vec{0, 1}, kHalf), std::invalid_argument);
  CHECK(Layout::linear(1000, Format::HOST_1).is_identity());
  CHECK_EQ(Layout::linear(1000, Format::HOST_1).nbytes(), 1024);
}

TEST(layout_ranks_above_six_collapse) {
  const Layout seven = Layout::make(Vec{2, 3, 4, 5, 6, 7, 70}, kHalf);
  CHECK(seven == Layout::make(Vec{6, 4, 5, 6, 7, 70}, kHalf));
  CHECK_EQ(Layout::default_nbytes(Vec{2, 3, 4, 5, 6, 7, 70}, kHalf), seven.nbytes());
  CHECK_THROWS(Layout::make(Vec{2, 2, 2, 2, 2, 2, 2}, kHalf, Vec{1, 0, 2, 3, 4, 5, 6}),
               std::invalid_argument);
  CHECK(Layout::make(Vec{2, 3, 2, 2, 2, 2, 2}, kHalf, Vec{2, 0, 1, 3, 4, 6, 5}) ==
        Layout::make(Vec{6, 2, 2, 2, 2, 2}, kHalf, Vec{1, 0, 2, 3, 5, 4}));
}

TEST(layout_every_element_has_its_own_place) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t sizes[] = {1, 2, 3, 5, 16, 31, 32, 33, 64, 65, 129};
  for (int round = 0; round < 300; ++round) {
    Vec host(static_cast<size_t>(pick(7)));
    int64_t numel = 1;
    for (int64_t& size : host) {
      size = sizes[pick(11)];
      if (numel * size > 20000) size = 1;
      numel *= size;
    }
    Vec order(host.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const bool sparse = host.size() < 6 && pick(4) == 0;
    if (sparse) order.push_back(-1);
    const auto format = static_cast<Format>(pick(kFormatCount));
    const Layout layout = Layout::make(host, format, order);
    CHECK_EQ(layout.numel(), numel);
    std::set<int64_t> places;
    bool identity = true;
    for (int64_t e = 0; e < numel; ++e) {
      const int64_t at = layout.element_offset(e);
      CHECK(at >= 0 && at + format_bytes(format) <= layout.nbytes());
      CHECK_EQ(at % format_bytes(format), 0);
      CHECK(places.insert(at).second);
      identity &= at == e * format_bytes(format);
    }
    CHECK_EQ(layout.is_identity(), identity);
    CHECK(Layout::explicit_map(layout.host_size(), layout.device_size(), layout.stride_map(),
                               format) == layout);
    const Layout plain = Layout::make(host, format);
    CHECK(plain.is_default());
    CHECK_EQ(layout.is_default(), layout == plain);
    CHECK_EQ(Layout::default_nbytes(host, format), plain.nbytes());
  }
}

TEST(layout_zero_elements) {
  for (const Vec& host : {Vec{0}, Vec{3, 0}, Vec{0, 3}, Vec{2, 0, 5}}) {
    const Layout layout = Layout::make(host, kHalf);
    CHECK_EQ(layout.nbytes(), 0);
    CHECK_EQ(Layout::default_nbytes(host, kHalf), 0);
    CHECK(layout.is_default());
  }
}

}  // namespace
}  // namespace openspyre::machine
