// Kernels that move elements by number or order, RING's combine, the adding STORE, relayouts.
#include "check.h"
#include "kernel_tiles.h"
#include "machine/kernels/index_kernels.h"
#include "machine/program/execute.h"

using namespace tiles;

namespace {

constexpr Format kFloats[] = {Format::SEN169_FP16, Format::IEEE_FP16,  Format::BFLOAT16,
                              Format::IEEE_FP32,   Format::SEN143_FP8, Format::SEN152_FP8};
constexpr Format kIntegers[] = {Format::SENINT8, Format::SENUINT8, Format::SENINT16,
                                Format::IEEE_INT32, Format::IEEE_INT64};

std::vector<Format> formats() {
  std::vector<Format> all;
  for (const Format format : kFloats) all.push_back(format);
  for (const Format format : kIntegers) all.push_back(format);
  return all;
}
uint64_t only(Format format, uint64_t bits) {
  const int width = 8 * format_bytes(format);
  return width == 64 ? bits : bits & ((uint64_t(1) << width) - 1);
}
// A code that went through a register.
uint64_t passed(Format format, uint64_t bits, const Numerics& numerics) {
  return is_float(format) && std::isnan(value_of(format, bits, numerics)) ? nan_of(format) : bits;
}
uint64_t added(Format format, uint64_t a, uint64_t b, const Numerics& numerics) {
  if (!is_float(format)) return only(format, a + b);
  const float sum = value_of(format, a, numerics) + value_of(format, b, numerics);
  return encoded_float(format, sum, numerics);
}

struct Case {
  explicit Case(std::vector<int64_t> sizes, Kind kind, int label = -1) : sizes(std::move(sizes)) {
    code.kind = kind;
    code.index_label = label;
    task.code = &code;
    task.labels = int(this->sizes.size());
    for (int i = 0; i < task.labels; ++i) {
      task.size[i] = this->sizes[size_t(i)];
      task.start[i] = 64 * i;
      code.over.push_back({std::string(1, char('a' + i)), {}, {}});
    }
    task.numerics = &numerics;
  }
  Case(const Case&) = delete;
  void tiles(std::vector<const Tile*> in, std::vector<Tile*> out) {
    task.inputs = int(in.size()), task.outputs = int(out.size());
    for (size_t i = 0; i < in.size(); ++i) task.input[i] = in[i]->view;
    for (size_t i = 0; i < out.size(); ++i) task.output[i] = out[i]->view;
  }
  std::vector<int64_t> sizes;
  Instruction code{};
  ComputeTask task{};
  Numerics numerics;
};

void same(Tile& want, Tile& got, const std::string& what) {
  want.each([&](const std::vector<int64_t>& point) {
    for (int64_t lane = 0; lane < (want.view.lanes ? kLaneAccumulators : 1); ++lane) {
      if (want.bits(point, lane) == got.bits(point, lane)) continue;
      std::ostringstream text;
      text << what << " " << format_name(want.view.format) << " at";
      for (const int64_t i : point) text << " " << i;
      text << std::hex << ": " << got.bits(point, lane) << " is not " << want.bits(point, lane);
      throw check::Failure(text.str());
    }
  });
}

std::vector<int> all_labels(size_t n) {
  std::vector<int> labels;
  for (size_t i = 0; i < n; ++i) labels.push_back(int(i));
  return labels;
}

void gather_or_scatter(Random& random, Format format, bool gathers, bool add) {
  const std::vector<int64_t> sizes = {pick(random, 1, 4), pick(random, 1, 9), pick(random, 1, 140)};
  const int label = int(pick(random, 0, 2)), stick = int(pick(random, -1, 2));
  Case c(sizes, gathers ? Kind::Gather : Kind::Scatter, label);
  c.numerics.merged_is_nan = pick(random, 0, 1) == 1;
  c.code.add = add;
  c.task.limit = pick(random, 1, 150);
  std::vector<int64_t> longer = sizes;
  longer[size_t(label)] = c.task.limit;
  Tile indexed(random, format, longer, {0, 1, 2}, stick);
  Tile plain(random, format, sizes, {0, 1, 2}, stick);
  std::vector<int> index_labels;
  for (int i = 0; i < 3; ++i) {
    if (i == label || pick(random, 0, 2) == 0) index_labels.push_back(i);
  }
  const Format integer = pick(random, 0, 1) ? Format::IEEE_INT32 : Format::IEEE_INT64;
  Tile index(random, integer, sizes, index_labels, pick(random, 0, 1) ? label : -1);
  indexed.fill([&] { return random(); });
  plain.fill([&] { return random(); });
  index.fill([&] { return uint64_t(pick(random, 0, c.task.limit - 1)); });

  Tile& target = gathers ? plain : indexed;
  Tile want(target), got(target);
  Tile walk(random, format, sizes, {0, 1, 2}, stick);
  walk.each([&](const std::vector<int64_t>& point) {
    std::vector<int64_t> moved = point, at(3, 0);
    for (const int i : index_labels) at[size_t(i)] = point[size_t(i)];
    moved[size_t(label)] = integer_of(integer, index.bits(at));
    const auto& to = gathers ? point : moved;
    const uint64_t bits = gathers ? indexed.bits(moved) : plain.bits(point);
    const uint64_t result =
        add ? added(format, want.bits(to), bits, c.numerics) : passed(format, bits, c.numerics);
    std::memcpy(want.at(to), &result, size_t(format_bytes(format)));
  });
  c.tiles({gathers ? &indexed : &plain, &index}, {&got});
  gathers ? gather(c.task) : scatter(c.task);
  same(want, got, gathers ? "gather" : add ? "scatter add" : "scatter");
  CHECK(!target.strayed(got));
}

// The asked order of two codes.
bool before(Format format, uint64_t a, uint64_t b, bool descending) {
  if (!is_float(format)) {
    const int64_t x = integer_of(format, a), y = integer_of(format, b);
    return descending ? x > y : x < y;
  }
  const float x = value_of(format, a), y = value_of(format, b);
  if (std::isnan(x) || std::isnan(y)) {
    return std::isnan(x) == std::isnan(y) ? false : std::isnan(x) == descending;
  }
  return descending ? x > y : x < y;
}
using Entry = std::pair<uint64_t, int64_t>;
std::vector<Entry> ordered(Format format, std::vector<Entry> entries, bool descending) {
  std::stable_sort(entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
    return before(format, a.first, b.first, descending);
  });
  for (Entry& entry : entries) entry.first = passed(format, entry.first, {});
  return entries;
}
// Few different values, so that ties are common, and among them the special ones.
uint64_t sortable(Random& random, Format format) {
  if (!is_float(format)) return only(format, uint64_t(pick(random, -9, 9)) * 0x0101010101010101);
  const float values[] = {0.0f, -0.0f, 1.0f, -1.0f, 2.5f, -448.0f, std::nanf("")};
  const auto which = pick(random, 0, 7);
  if (which == 7) return only(format, random());
  return encoded_float(format, values[which], {});
}
std::vector<Entry> row(Tile& values, Tile* indices, std::vector<int64_t> point, int label,
                       int64_t n, int64_t start) {
  std::vector<Entry> entries;
  for (int64_t i = 0; i < n; ++i) {
    point[size_t(label)] = i;
    const int64_t index =
        indices ? integer_of(indices->view.format, indices->bits(point)) : start + i;
    entries.emplace_back(values.bits(point), index);
  }
  return entries;
}

}  // namespace

TEST(gather_and_scatter_equal_plain_loops) {
  Random random(11);
  for (const Format format : formats()) {
    for (int round = 0; round < check::rounds(12); ++round) {
      gather_or_scatter(random, format, true, false);
      gather_or_scatter(random, format, false, false);
      gather_or_scatter(random, format, false, true);
    }
  }
}

TEST(gather_and_scatter_name_the_point_of_an_index_beyond_the_limit) {
  Random random(12);
  for (const Kind kind : {Kind::Gather, Kind::Scatter}) {
    for (const int64_t wrong : {int64_t(-1), int64_t(10), std::numeric_limits<int64_t>::min()}) {
      Case c({3, 64}, kind, 0);
      c.task.limit = 10;
      Tile indexed(random, Format::SEN169_FP16, {10, 64}, {0, 1}, 1);
      Tile plain(random, Format::SEN169_FP16, {3, 64}, {0, 1}, 1);
      Tile index(random, Format::IEEE_INT64, {3, 64}, {0}, -1);
      index.fill([] { return uint64_t(9); });
      std::memcpy(index.at({2, 0}), &wrong, 8);
      const bool gathers = kind == Kind::Gather;
      c.tiles({gathers ? &indexed : &plain, &index}, {gathers ? &plain : &indexed});
      try {
        gathers ? gather(c.task) : scatter(c.task);
        CHECK(false);
      } catch (const LaunchFault& fault) {
        CHECK(fault.kind == LaunchFault::Kind::Index);
        const std::string text = fault.what();
        CHECK(text.find("a=2") != std::string::npos);
        CHECK(text.find(std::to_string(wrong)) != std::string::npos);
        CHECK(text.find("0..9") != std::string::npos);
      }
    }
  }
}

TEST(sort_is_stable_with_nan_above_everything) {
  Random random(13);
  for (const Format format : formats()) {
    for (int round = 0; round < check::rounds(10); ++round) {
      const std::vector<int64_t> sizes = {pick(random, 1, 3), pick(random, 1, 150)};
      const int label = int(pick(random, 0, 1)), stick = int(pick(random, -1, 1));
      const bool given = round % 2 == 1;
      Case c(sizes, Kind::Sort, label);
      c.code.descending = round % 3 == 0;
      Tile values(random, format, sizes, {0, 1}, stick);
      Tile indices(random, Format::IEEE_INT32, sizes, {0, 1}, stick);
      values.fill([&] { return sortable(random, format); });
      indices.fill([&] { return random(); });
      Tile sorted(random, format, sizes, {0, 1}, 1);
      Tile order(random, Format::IEEE_INT64, sizes, {0, 1}, -1);
      Tile want(sorted), want_order(order), clean(sorted);
      const int other = 1 - label;
      for (int64_t i = 0; i < sizes[size_t(other)]; ++i) {
        std::vector<int64_t> point(2, i);
        const auto entries = ordered(format,
                                     row(values, given ? &indices : nullptr, point, label,
                                         sizes[size_t(label)], c.task.start[label]),
                                     c.code.descending);
        for (size_t j = 0; j < entries.size(); ++j) {
          point[size_t(label)] = int64_t(j);
          std::memcpy(want.at(point), &entries[j].first, size_t(format_bytes(format)));
          std::memcpy(want_order.at(point), &entries[j].second, 8);
        }
      }
      given ? c.tiles({&values, &indices}, {&sorted, &order})
            : c.tiles({&values}, {&sorted, &order});
      sort(c.task);
      same(want, sorted, "sort");
      same(want_order, order, "sort order");
      CHECK(!clean.strayed(sorted));
    }
  }
}

TEST(merge_of_two_sorted_runs_is_the_sorted_whole) {
  Random random(14);
  for (const Format format : formats()) {
    const int64_t n = pick(random, 1, 90);
    const std::vector<int64_t> sizes = {2, n};
    Case c(sizes, Kind::Merge, 1);
    c.code.descending = pick(random, 0, 1) == 1;
    Tile va(random, format, sizes, {0, 1}, 1), vb(random, format, sizes, {0, 1}, 1);
    Tile ia(random, Format::IEEE_INT64, sizes, {0, 1}, 1), ib(ia);
    Tile low(va), high(vb), low_i(ia), high_i(ia);
    std::vector<std::vector<Entry>> whole;
    for (int64_t r = 0; r < 2; ++r) {
      std::vector<Entry> both;
      for (int part = 0; part < 2; ++part) {
        std::vector<Entry> run;
        for (int64_t i = 0; i < n; ++i) run.emplace_back(sortable(random, format), i + 1000 * part);
        run = ordered(format, run, c.code.descending);
        for (int64_t i = 0; i < n; ++i) {
          std::memcpy((part ? vb : va).at({r, i}), &run[size_t(i)].first,
                      size_t(format_bytes(format)));
          std::memcpy((part ? ib : ia).at({r, i}), &run[size_t(i)].second, 8);
        }
        both.insert(both.end(), run.begin(), run.end());
      }
      whole.push_back(ordered(format, both, c.code.descending));
    }
    c.tiles({&va, &ia, &vb, &ib}, {&low, &low_i, &high, &high_i});
    merge(c.task);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < 2 * n; ++i) {
        const auto& [value, index] = whole[size_t(r)][size_t(i)];
        CHECK_EQ((i < n ? low : high).bits({r, i % n}), value);
        CHECK_EQ(int64_t((i < n ? low_i : high_i).bits({r, i % n})), index);
      }
    }
  }
}

TEST(topk_in_parts_is_topk_of_the_whole) {
  Random random(15);
  for (const Format format : formats()) {
    for (int round = 0; round < 8; ++round) {
      const int64_t n = pick(random, 1, 100), k = pick(random, 1, 12);
      const int label = int(pick(random, 0, 1));
      std::vector<int64_t> sizes(2, 3), whole_sizes(2, 3), top_sizes(2, 3);
      sizes[size_t(label)] = n, whole_sizes[size_t(label)] = 2 * n, top_sizes[size_t(label)] = k;
      Tile whole(random, format, whole_sizes, {0, 1}, 1);
      whole.fill([&] { return sortable(random, format); });
      Tile top(random, format, top_sizes, {0, 1}, 1);
      Tile which(random, Format::IEEE_INT64, top_sizes, {0, 1}, -1), clean(top);
      const bool descending = round % 2 == 0;
      for (int part = 0; part < 2; ++part) {
        Case c(sizes, Kind::TopK, label);
        c.code.descending = descending;
        c.task.limit = k;
        c.task.accumulate = part == 1;
        c.task.start[label] = part * n;
        Tile values(random, format, sizes, {0, 1}, 1);
        values.each([&](std::vector<int64_t> point) {
          std::vector<int64_t> from = point;
          from[size_t(label)] += part * n;
          const uint64_t bits = whole.bits(from);
          std::memcpy(values.at(point), &bits, size_t(format_bytes(format)));
        });
        c.tiles({&values}, {&top, &which});
        topk(c.task);
      }
      for (int64_t i = 0; i < 3; ++i) {
        std::vector<int64_t> point(2, i);
        auto entries = ordered(format, row(whole, nullptr, point, label, 2 * n, 0), descending);
        entries.resize(size_t(k), {0, -1});
        for (int64_t j = 0; j < k; ++j) {
          point[size_t(label)] = j;
          CHECK_EQ(top.bits(point), entries[size_t(j)].first);
          CHECK_EQ(int64_t(which.bits(point)), entries[size_t(j)].second);
        }
      }
      CHECK(!clean.strayed(top));
    }
  }
}

TEST(combine_joins_tiles_element_by_element) {
  Random random(16);
  for (const Format format : {Format::IEEE_FP32, Format::IEEE_INT32, Format::IEEE_INT64}) {
    for (const Combine op :
         {Combine::Sum, Combine::Prod, Combine::Max, Combine::Min, Combine::Any, Combine::All}) {
      for (int round = 0; round < 8; ++round) {
        const bool lanes = round == 3;
        const int stick = lanes ? -1 : int(pick(random, -1, 2));
        const std::vector<int64_t> sizes = {pick(random, 1, 3), pick(random, 1, 5),
                                            pick(random, 1, 70)};
        const std::vector<int> labels = all_labels(3);
        Tile target(random, format, sizes, labels, stick, lanes);
        Tile source(random, format, sizes, labels, stick, lanes);
        const auto any = [&]() -> uint64_t { return round % 2 ? random() : random() % 3; };
        target.fill(any);
        source.fill(any);
        Tile want(target), clean(target);
        want.each([&](const std::vector<int64_t>& point) {
          for (int64_t lane = 0; lane < (lanes ? kLaneAccumulators : 1); ++lane) {
            const uint64_t a = target.bits(point, lane), b = source.bits(point, lane);
            const float x = value_of(Format::IEEE_FP32, a), y = value_of(Format::IEEE_FP32, b);
            const int64_t i = integer_of(format, a), j = integer_of(format, b);
            const bool floats = format == Format::IEEE_FP32;
            const bool t = floats ? x != 0 : i != 0, u = floats ? y != 0 : j != 0;
            float f = 0;
            int64_t n = 0;
            if (op == Combine::Sum) f = x + y, n = int64_t(a + b);
            if (op == Combine::Prod) f = x * y, n = int64_t(a * b);
            if (op == Combine::Max) f = std::isnan(x) || x >= y ? x : y, n = std::max(i, j);
            if (op == Combine::Min) f = std::isnan(x) || x <= y ? x : y, n = std::min(i, j);
            if (op == Combine::Any) f = t || u, n = t || u;
            if (op == Combine::All) f = t && u, n = t && u;
            const uint64_t bits = floats ? encoded_float(format, f, {}) : only(format, uint64_t(n));
            std::memcpy(want.at(point, lane), &bits, size_t(format_bytes(format)));
          }
        });
        combine(op, 3, sizes.data(), target.view, source.view);
        same(want, target, "combine");
        CHECK(!clean.strayed(target));
      }
    }
  }
}

TEST(add_elements_rounds_once_in_every_format) {
  Random random(17);
  for (const Format format : formats()) {
    for (const Isa isa : isas()) {
      set_isa(isa);
      Numerics numerics;
      numerics.tie = TieRule(pick(random, 0, 4));
      const int64_t n = pick(random, 1, 700), bytes = format_bytes(format);
      std::vector<std::byte> target(size_t(n * bytes)), source(target.size()), was;
      for (auto& byte : target) byte = std::byte(random());
      for (auto& byte : source) byte = std::byte(random());
      was = target;
      add_elements(format, target.data(), source.data(), n, numerics);
      for (int64_t i = 0; i < n; ++i) {
        uint64_t a = 0, b = 0, found = 0;
        std::memcpy(&a, &was[size_t(i * bytes)], size_t(bytes));
        std::memcpy(&b, &source[size_t(i * bytes)], size_t(bytes));
        std::memcpy(&found, &target[size_t(i * bytes)], size_t(bytes));
        CHECK_EQ(found, added(format, a, b, numerics));
      }
    }
    set_isa(best_isa());
  }
}

TEST(relayout_moves_each_element_to_its_stick) {
  Random random(18);
  for (const Format format : formats()) {
    for (int round = 0; round < check::rounds(16); ++round) {
      std::vector<int64_t> sizes = {pick(random, 1, 3), pick(random, 1, 150), pick(random, 1, 150)};
      std::vector<int> sticks = {-1, 0, 1, 2};
      std::shuffle(sticks.begin(), sticks.end(), random);
      std::vector<int> labels = all_labels(3);
      Case c(sizes, Kind::Map);
      c.numerics.merged_is_nan = round % 2 == 1;
      std::vector<int> read = labels;
      if (round % 5 == 4 && sticks[0] != 0) read.erase(read.begin());  // broadcast
      Tile in(random, format, sizes, read, sticks[0]);
      Tile out(random, format, sizes, labels, sticks[1]);
      in.fill([&] { return random(); });
      Tile want(out), clean(out);
      want.each([&](const std::vector<int64_t>& point) {
        const uint64_t bits = passed(format, in.bits(point), c.numerics);
        std::memcpy(want.at(point), &bits, size_t(format_bytes(format)));
      });
      Node node{};
      node.op = Op::Input;
      c.code.body.nodes.push_back(node);
      c.code.body.results.push_back(0);
      c.tiles({&in}, {&out});
      CHECK(map_relayout(c.task));
      same(want, out, "relayout");
      CHECK(!clean.strayed(out));
    }
  }
}

TEST(relayout_leaves_other_maps_alone) {
  Random random(19);
  Case c({64, 64}, Kind::Map);
  Tile in(random, Format::SEN169_FP16, {64, 64}, {0, 1}, 0);
  Tile same_stick(random, Format::SEN169_FP16, {64, 64}, {0, 1}, 0);
  Tile other_format(random, Format::IEEE_FP16, {64, 64}, {0, 1}, 1);
  Tile out(random, Format::SEN169_FP16, {64, 64}, {0, 1}, 1);
  Node node{};
  node.op = Op::Input;
  c.code.body.nodes.push_back(node);
  c.code.body.results.push_back(0);
  c.tiles({&in}, {&same_stick});
  CHECK(!map_relayout(c.task));
  c.tiles({&in}, {&other_format});
  CHECK(!map_relayout(c.task));
  c.code.body.nodes[0].op = Op::Const;
  c.tiles({&in}, {&out});
  CHECK(!map_relayout(c.task));
}
