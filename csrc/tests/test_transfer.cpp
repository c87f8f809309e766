// Transfers against a naive reference: one element at a time through Layout::element_offset and a
// conversion of one element. Blocks carry a canary pattern, so a write to a pad shows.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "check.h"
#include "machine/affine.h"
#include "machine/pool.h"
#include "machine/transfer.h"
#include "machine/walk.h"

namespace openspyre::machine {
namespace {

using Vec = std::vector<int64_t>;
using Bytes = std::vector<std::byte>;
constexpr std::byte kCanary{0xA5};

int64_t numel_of(const Vec& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}
Vec dense(const Vec& sizes) {
  Vec strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i];
  }
  return strides;
}
// Calls f with the index of every element, in row-major order.
void each(const Vec& sizes, const std::function<void(const Vec&)>& f) {
  const int64_t total = numel_of(sizes);
  Vec index(sizes.size());
  for (int64_t flat = 0; flat < total; ++flat) {
    int64_t rest = flat;
    for (size_t i = sizes.size(); i-- > 0;) {
      index[i] = rest % sizes[i];
      rest /= sizes[i];
    }
    f(index);
  }
}
int64_t dot(const Vec& index, const Vec& strides) {
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}
Vec copies_of(const Layout& layout) {
  Vec all{0};
  for (const Layout::Copies& c : layout.copies()) {
    Vec next;
    for (int64_t base : all)
      for (int64_t i = 0; i < c.count; ++i)
        next.push_back(base + i * c.device_stride * format_bytes(layout.format()));
    all = next;
  }
  return all;
}

struct Random {
  std::mt19937 engine;
  int64_t below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
  bool chance(int64_t one_in) { return below(one_in) == 0; }
};

const std::pair<HostType, Format> kPairs[] = {
    {HostType::F16, Format::SEN169_FP16},    {HostType::BF16, Format::SEN169_FP16},
    {HostType::BOOL, Format::SEN169_FP16},   {HostType::F32, Format::IEEE_FP32},
    {HostType::F16, Format::IEEE_FP16},      {HostType::F32, Format::SEN169_FP16},
    {HostType::I64, Format::IEEE_INT64},     {HostType::U8, Format::SENUINT8},
    {HostType::F8_E5M2, Format::SEN152_FP8}, {HostType::RAW16, Format::HOST_16},
    {HostType::RAW8, Format::HOST_8},        {HostType::I32, Format::IEEE_INT32},
};

// Host bytes that every host type can hold: bool accepts only 0 and 1.
Bytes host_data(HostType type, int64_t n, Random& random) {
  Bytes data(static_cast<size_t>(n * host_bytes(type)));
  for (std::byte& b : data)
    b = std::byte(type == HostType::BOOL ? random.below(2) : random.below(256));
  return data;
}

Layout random_layout(Random& random, Format format, bool copies) {
  const int64_t sizes[] = {1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 192};
  for (;;) {
    Vec host(static_cast<size_t>(random.below(6)));
    for (int64_t& size : host) size = sizes[random.below(16)];
    const int64_t numel = numel_of(host);
    if (numel > 30000) continue;
    const int64_t kind = random.below(8);
    if (kind < 4) return Layout::make(host, format);
    if (kind == 4) return Layout::linear(numel, format);
    if (kind == 5 || (!copies && kind == 7)) {  // any order, perhaps sparse
      Vec order(host.size());
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random.engine);
      if (numel < 3000 && random.chance(2)) order.push_back(-1);
      return Layout::make(host, format, order);
    }
    if (kind == 6) {  // folded into sticks
      const int64_t eps = elements_per_stick(format);
      return Layout::explicit_map(host, Vec{(numel + eps - 1) / eps + random.below(3), eps},
                                  Vec{eps, 1}, format);
    }
    // Copies: the default layout with a repeated dim somewhere, and room to spare.
    const Layout plain = Layout::make(host, format);
    Vec device = plain.device_size(), map = plain.stride_map();
    const auto at = random.below(static_cast<int64_t>(device.size()));
    device.insert(device.begin() + at, 1 + random.below(4));
    map.insert(map.begin() + at, 0);
    if (random.chance(2)) {
      device.insert(device.begin(), 3);
      map.insert(map.begin(), 0);
    }
    return Layout::explicit_map(host, device, map, format);
  }
}

struct Case {
  Vec sizes, strides;
  int64_t offset = 0;
};

// A view as PyTorch makes them: narrow, step, permute, split, flatten, expand, windows.
Case random_view(Random& random, const Layout& layout, bool written) {
  Case c;
  c.sizes.assign(layout.host_size().begin(), layout.host_size().end());
  if (random.chance(6)) c.sizes = {layout.numel()};
  c.strides = dense(c.sizes);
  for (size_t i = 0; i < c.sizes.size(); ++i) {
    if (random.chance(3)) {
      const int64_t start = random.below(c.sizes[i]);
      c.offset += start * c.strides[i];
      c.sizes[i] = 1 + random.below(c.sizes[i] - start);
    }
    if (random.chance(5)) {
      const int64_t step = 1 + random.below(5);
      c.sizes[i] = (c.sizes[i] + step - 1) / step;
      c.strides[i] *= step;
    }
    const int64_t parts[] = {2, 3, 4, 8, 16, 32, 64};
    const int64_t part = parts[random.below(7)];
    if (random.chance(3) && c.sizes[i] % part == 0) {
      c.sizes.insert(c.sizes.begin() + static_cast<ptrdiff_t>(i), c.sizes[i] / part);
      c.strides.insert(c.strides.begin() + static_cast<ptrdiff_t>(i), c.strides[i] * part);
      c.sizes[++i] = part;
    }
  }
  if (!written && !c.sizes.empty() && random.chance(5)) {  // overlapping windows
    const auto i = static_cast<size_t>(random.below(static_cast<int64_t>(c.sizes.size())));
    const int64_t window = 1 + random.below(std::min<int64_t>(c.sizes[i], 6));
    c.sizes[i] -= window - 1;
    c.sizes.push_back(window);
    c.strides.push_back(c.strides[i]);
  }
  if (!written && random.chance(5)) {  // expand
    c.sizes.insert(c.sizes.begin(), 3);
    c.strides.insert(c.strides.begin(), 0);
  }
  if (c.sizes.size() == 2 && random.chance(8)) {  // diagonal
    const int64_t n = std::min(c.sizes[0], c.sizes[1]);
    c.strides = {c.strides[0] + c.strides[1]};
    c.sizes = {n};
  }
  Vec order(c.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (random.chance(2)) std::shuffle(order.begin(), order.end(), random.engine);
  Case permuted;
  permuted.offset = c.offset;
  for (int64_t i : order) {
    permuted.sizes.push_back(c.sizes[static_cast<size_t>(i)]);
    permuted.strides.push_back(c.strides[static_cast<size_t>(i)]);
  }
  return permuted;
}

// Host strides: dense, permuted, or with gaps; with zeros when it may be expanded.
Vec random_host_strides(Random& random, const Vec& sizes, bool expand) {
  Vec order(sizes.size()), strides(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  if (random.chance(2)) std::shuffle(order.begin(), order.end(), random.engine);
  int64_t step = random.chance(4) ? 1 + random.below(3) : 1;
  for (size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<size_t>(order[i]);
    if (expand && random.chance(5)) {
      strides[dim] = 0;
      continue;
    }
    strides[dim] = step;
    step *= sizes[dim] + (random.chance(4) ? random.below(4) : 0);
  }
  return strides;
}
int64_t extent(const Vec& sizes, const Vec& strides) {
  int64_t last = 1;
  for (size_t i = 0; i < sizes.size(); ++i) last += (sizes[i] - 1) * strides[i];
  return last;
}

// Bytes that start on a stick, as blocks of the card do.
struct Block {
  explicit Block(int64_t bytes) : data(static_cast<size_t>(bytes) + 128, kCanary), size(bytes) {
    at = data.data() + (128 - reinterpret_cast<uintptr_t>(data.data()) % 128) % 128;
  }
  Bytes data;
  int64_t size;
  std::byte* at;
};

void one_round_trip(Random& random) {
  const auto [type, format] = kPairs[random.below(std::size(kPairs))];
  const Numerics numerics{random.chance(2) ? Mode::DL16 : Mode::IEEE};
  const Layout layout = random_layout(random, format, true);
  const Case c = random_view(random, layout, true);
  const Vec host_strides = random_host_strides(random, c.sizes, true);
  const Bytes host = host_data(type, extent(c.sizes, host_strides), random);
  Block card(layout.nbytes()), expected(layout.nbytes());
  host_to_card(host.data(), type, c.sizes, host_strides, card.at, layout, {c.offset, c.strides},
               numerics);
  const Vec copies = copies_of(layout);
  each(c.sizes, [&](const Vec& index) {
    std::byte code[16];
    encode(type, format, host.data() + dot(index, host_strides) * host_bytes(type), code, 1,
           numerics);
    const int64_t at = layout.element_offset(c.offset + dot(index, c.strides));
    for (int64_t copy : copies)
      std::memcpy(expected.at + at + copy, code, static_cast<size_t>(format_bytes(format)));
  });
  if (std::memcmp(card.at, expected.at, static_cast<size_t>(card.size)))
    throw check::Failure("host_to_card differs on " + layout.str());

  // Back, through another view of the same storage. Codes first become ones a host value has.
  const Case back = random_view(random, layout, false);
  if (numel_of(back.sizes) > 60000) return;
  Bytes all = host_data(type, layout.numel(), random);
  const Vec line{layout.numel()}, one{1};
  host_to_card(all.data(), type, line, one, card.at, layout, {0, one}, numerics);
  const Vec out_strides = random_host_strides(random, back.sizes, false);
  const auto out_bytes = static_cast<size_t>(extent(back.sizes, out_strides) * host_bytes(type));
  Bytes out(out_bytes, kCanary), out_expected(out_bytes, kCanary);
  card_to_host(card.at, layout, {back.offset, back.strides}, out.data(), type, back.sizes,
               out_strides, numerics);
  each(back.sizes, [&](const Vec& index) {
    decode(format, type, card.at + layout.element_offset(back.offset + dot(index, back.strides)),
           out_expected.data() + dot(index, out_strides) * host_bytes(type), 1, numerics);
  });
  if (out != out_expected) throw check::Failure("card_to_host differs on " + layout.str());
}

void one_card_copy(Random& random) {
  const auto format = static_cast<Format>(random.below(kFormatCount));
  const int64_t bytes = format_bytes(format);
  const Layout from = random_layout(random, format, true);
  const Case view = random_view(random, from, false);
  if (numel_of(view.sizes) > 60000) return;
  // The destination: the view's sizes dense, in any layout of that space, or a slice of it.
  Vec to_strides = dense(view.sizes);
  Layout to = random.chance(2) ? Layout::make(view.sizes, format)
                               : Layout::linear(numel_of(view.sizes) + 70, format);
  const int64_t offset = to.numel() - numel_of(view.sizes);
  if (random.chance(3) && view.sizes.size() > 1 && view.sizes.size() < 5) {
    Vec order(view.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random.engine);
    if (offset == 0) to = Layout::make(view.sizes, format, order);
  }
  Block src(from.nbytes()), dst(to.nbytes()), expected(to.nbytes());
  for (int64_t i = 0; i < src.size; ++i) src.at[i] = std::byte(random.below(256));
  card_to_card(src.at, from, {view.offset, view.strides}, dst.at, to, {offset, to_strides},
               view.sizes);
  each(view.sizes, [&](const Vec& index) {
    std::memcpy(expected.at + to.element_offset(offset + dot(index, to_strides)),
                src.at + from.element_offset(view.offset + dot(index, view.strides)),
                static_cast<size_t>(bytes));
  });
  if (std::memcmp(dst.at, expected.at, static_cast<size_t>(dst.size)))
    throw check::Failure("card_to_card differs: " + from.str() + " to " + to.str());
}

void one_fill(Random& random) {
  const auto format = static_cast<Format>(random.below(kFormatCount));
  const auto bytes = static_cast<size_t>(format_bytes(format));
  const Layout layout = random_layout(random, format, true);
  const Case c = random_view(random, layout, true);
  std::byte code[16];
  for (std::byte& b : code) b = std::byte(random.below(256));
  Block card(layout.nbytes()), expected(layout.nbytes());
  fill(card.at, layout, {c.offset, c.strides}, c.sizes, code);
  each(c.sizes, [&](const Vec& index) {
    const int64_t at = layout.element_offset(c.offset + dot(index, c.strides));
    for (int64_t copy : copies_of(layout)) std::memcpy(expected.at + at + copy, code, bytes);
  });
  if (std::memcmp(card.at, expected.at, static_cast<size_t>(card.size)))
    throw check::Failure("fill differs on " + layout.str());
  // Poison: every byte but the elements' own.
  Block poisoned(layout.nbytes()), want(layout.nbytes());
  poison_pads(poisoned.at, layout);
  poison(format, want.at, static_cast<size_t>(want.size));
  for (int64_t e = 0; e < layout.numel(); ++e)
    for (int64_t copy : copies_of(layout))
      std::fill_n(want.at + layout.element_offset(e) + copy, bytes, kCanary);
  if (std::memcmp(poisoned.at, want.at, static_cast<size_t>(want.size)))
    throw check::Failure("poison_pads differs on " + layout.str());
}

void repeat(int rounds, unsigned seed, void (*body)(Random&)) {
  for (int i = 0; i < check::rounds(rounds); ++i) {
    Random random{std::mt19937(seed + static_cast<unsigned>(i))};
    try {
      body(random);
    } catch (const std::exception& e) {
      throw check::Failure("seed " + std::to_string(seed + static_cast<unsigned>(i)) + ": " +
                           e.what());
    }
  }
}

TEST(transfer_random_views_both_ways) { repeat(1500, 1000, one_round_trip); }
TEST(transfer_random_card_to_card) { repeat(700, 50000, one_card_copy); }
TEST(transfer_random_fill_and_poison) { repeat(400, 90000, one_fill); }

// A pool of its own for a test: all its threads are joined, and an open one is left behind.
class FreshPool {
 public:
  explicit FreshPool(int budget) : before_(Pool::get().threads()) { renew(budget); }
  ~FreshPool() { renew(before_); }
  FreshPool(const FreshPool&) = delete;
  FreshPool& operator=(const FreshPool&) = delete;

 private:
  static void renew(int budget) {
    Pool::get().shutdown();
    Pool::get().abandon();
    Pool::get().set_threads(budget);
  }
  const int before_;
};

// Large enough for the pool, blocks of several tiles and streaming stores.
void large(HostType type, Format format, const Vec& sizes, const Vec& host_strides, Case view,
           const Layout& layout) {
  Random random{std::mt19937(3)};
  const Bytes host = host_data(type, extent(sizes, host_strides), random);
  Block card(layout.nbytes()), expected(layout.nbytes());
  const Numerics numerics;
  host_to_card(host.data(), type, sizes, host_strides, card.at, layout, {view.offset, view.strides},
               numerics);
  const Vec all = dense(sizes);
  Bytes codes(static_cast<size_t>(numel_of(sizes) * format_bytes(format)));
  Bytes line(static_cast<size_t>(numel_of(sizes) * host_bytes(type)));
  each(sizes, [&](const Vec& index) {
    std::memcpy(line.data() + dot(index, all) * host_bytes(type),
                host.data() + dot(index, host_strides) * host_bytes(type),
                static_cast<size_t>(host_bytes(type)));
  });
  encode(type, format, line.data(), codes.data(), static_cast<size_t>(numel_of(sizes)), numerics);
  each(sizes, [&](const Vec& index) {
    std::memcpy(expected.at + layout.element_offset(view.offset + dot(index, view.strides)),
                codes.data() + dot(index, all) * format_bytes(format),
                static_cast<size_t>(format_bytes(format)));
  });
  CHECK(std::memcmp(card.at, expected.at, static_cast<size_t>(card.size)) == 0);
  Bytes out(host.size(), kCanary), want(host.size(), kCanary);
  card_to_host(card.at, layout, {view.offset, view.strides}, out.data(), type, sizes, host_strides,
               numerics);
  decode(format, type, codes.data(), line.data(), static_cast<size_t>(numel_of(sizes)), numerics);
  each(sizes, [&](const Vec& index) {
    std::memcpy(want.data() + dot(index, host_strides) * host_bytes(type),
                line.data() + dot(index, all) * host_bytes(type),
                static_cast<size_t>(host_bytes(type)));
  });
  CHECK(out == want);
}

TEST(transfer_large_copies_on_four_threads) {
  const FreshPool four(4);
  const auto f16 = HostType::F16;
  const auto half = Format::SEN169_FP16;
  large(f16, half, {2048, 2080}, {2080, 1}, {{}, {2080, 1}, 0},
        Layout::make(Vec{2048, 2080}, half));
  large(f16, half, {700, 830}, {1, 700}, {{}, {830, 1}, 0}, Layout::make(Vec{700, 830}, half));
  large(f16, half, {700, 500}, {500, 1}, {{}, {830, 1}, 77}, Layout::make(Vec{700, 830}, half));
  large(f16, half, {600001}, {1}, {{}, {1}, 5}, Layout::linear(600100, half));
  large(HostType::F32, Format::IEEE_FP32, {1500, 1536}, {1536, 1}, {{}, {1536, 1}, 0},
        Layout::make(Vec{1500, 1536}, Format::IEEE_FP32));
  large(HostType::I64, Format::IEEE_INT64, {1100, 130}, {1, 1100}, {{}, {130, 1}, 0},
        Layout::make(Vec{1100, 130}, Format::IEEE_INT64));
  large(HostType::BOOL, half, {1030, 1030}, {1030, 1}, {{}, {1030, 1}, 0},
        Layout::make(Vec{1030, 1030}, half, Vec{1, 0}));
  large(HostType::F32, Format::IEEE_FP32, {400, 400}, {400, 1}, {{}, {1203, 3}, 2},
        Layout::make(Vec{400, 1203}, Format::IEEE_FP32));
}

TEST(transfer_common_views_are_affine) {
  // The views of real models must not fall to the general path.
  const auto count = [](const Vec& host, Vec sizes, Vec strides, int64_t offset) {
    const Layout layout = Layout::make(host, Format::SEN169_FP16);
    const auto boxes = affine_boxes(layout, offset, sizes, strides, 0, dense(sizes));
    return boxes ? static_cast<int64_t>(boxes->size()) : int64_t{-1};
  };
  CHECK_EQ(count({1024, 256}, {1024, 256}, {256, 1}, 0), 1);
  CHECK_EQ(count({1024, 256}, {256, 1024}, {1, 256}, 0), 1);   // transposed
  CHECK_EQ(count({1024, 256}, {1024 * 256}, {1}, 0), 1);       // flattened
  CHECK_EQ(count({100, 150}, {100, 150}, {150, 1}, 0), 2);     // body and partial stick
  CHECK_EQ(count({1024, 256}, {1024, 100}, {256, 1}, 37), 3);  // column slice
  CHECK_EQ(count({2, 77, 1024}, {2, 16, 77, 64}, {78848, 64, 1024, 1}, 0), 1);  // heads
  CHECK_EQ(count({2, 77, 1024}, {2, 32, 77, 32}, {78848, 32, 1024, 1}, 0), 1);  // half a stick
  CHECK_EQ(count({2, 77, 768}, {2, 8, 77, 96}, {59136, 96, 768, 1}, 0), 20);    // 1.5 sticks
  CHECK_EQ(count({1024, 256}, {512, 256}, {512, 1}, 256), 1);                   // every second row
  CHECK_EQ(count({64, 256}, {64, 128}, {256, 2}, 1), 1);  // every second column
  CHECK_EQ(count({64, 256}, {64, 4}, {257, 1}, 0), -1);   // a band is no nest
}

TEST(transfer_refuses_bad_arguments_and_changes_nothing) {
  const Layout layout = Layout::make(Vec{4, 70}, Format::SEN169_FP16);
  Block card(layout.nbytes());
  Bytes host(4096);
  const Numerics numerics;
  const Vec sizes{4, 70}, strides{70, 1}, one_stride{1}, expanded{0, 1};
  const auto put = [&](HostType type, const Vec& s, const Vec& v, int64_t offset) {
    host_to_card(host.data(), type, s, s.size() == 2 ? strides : one_stride, card.at, layout,
                 {offset, v}, numerics);
  };
  CHECK_THROWS(put(HostType::F16, sizes, strides, 1), std::invalid_argument);
  CHECK_THROWS(put(HostType::F16, sizes, strides, -1), std::invalid_argument);
  CHECK_THROWS(put(HostType::F16, sizes, one_stride, 0), std::invalid_argument);
  CHECK_THROWS(put(HostType::F16, sizes, expanded, 0), std::invalid_argument);
  CHECK_THROWS(put(HostType::F16, {281}, one_stride, 0), std::invalid_argument);
  CHECK_THROWS(put(HostType::I64, sizes, strides, 0), std::invalid_argument);
  put(HostType::F16, {0, 70}, strides, 0);
  CHECK(std::all_of(card.data.begin(), card.data.end(), [](std::byte b) { return b == kCanary; }));
  const Layout other = Layout::make(Vec{4, 70}, Format::IEEE_FP32);
  Block wide(other.nbytes());
  CHECK_THROWS(card_to_card(card.at, layout, {0, strides}, wide.at, other, {0, strides}, sizes),
               std::invalid_argument);
}

}  // namespace
}  // namespace openspyre::machine
