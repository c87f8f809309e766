// MAP, REDUCE, FOLD and SCAN on random tiles, against a slow SFU that goes point by point: sizes
// with tails, strides in any order and direction, formats, broadcasts, sparse tiles, other sticks,
// poisoned pads. Every instruction set; nothing outside the tiles' sticks is touched.
#include "check.h"
#include "sfu_reference.h"

using namespace slow;

namespace {

constexpr Format kAll[] = {Format::SEN169_FP16, Format::IEEE_FP16,  Format::BFLOAT16,
                           Format::IEEE_FP32,   Format::SEN143_FP8, Format::SEN152_FP8,
                           Format::SENINT8,     Format::SENINT16,   Format::IEEE_INT32,
                           Format::IEEE_INT64,  Format::SENUINT8};

Format exact(Register type) {
  if (type == Register::F32) return Format::IEEE_FP32;
  return type == Register::I64 ? Format::IEEE_INT64 : Format::IEEE_INT32;
}

uint64_t random_code(Random& random, Format format) {
  if (pick(random, 0, 39) == 0) return random();
  Number x;
  register_of(format, &x.type);
  x.f = float(pick(random, -64, 64)) / 7;  // sums depend on their order
  x.i = pick(random, -100, 100);
  return encoded(format, x, {});
}

// A task on random tiles. The instruction names what the kernels read of it.
struct Case {
  Instruction code;
  ComputeTask task{};
  std::vector<int64_t> sizes;
  std::vector<Tile> inputs, outputs;
  Numerics numerics;

  explicit Case(Kind kind) {
    code.tag = Instruction::Compute;
    code.kind = kind;
    code.has_combine = kind != Kind::Map;
  }
  void boxes(Random& random, int labels, int64_t largest) {
    int64_t points = 1;
    for (int l = 0; l < labels; ++l) {
      const int64_t limit = std::max<int64_t>(1, std::min<int64_t>(largest, 4000 / points));
      sizes.push_back(pick(random, 0, 3) ? pick(random, 1, limit) : pick(random, 1, 4));
      points *= sizes.back();
      task.start[l] = 128 * pick(random, 0, 3);
      task.size[l] = sizes.back();
      Label label;
      label.name = std::string(1, char('a' + l));
      code.over.push_back(label);
    }
    task.labels = labels;
    numerics.tie = TieRule(pick(random, 0, 4));
    numerics.merged_is_nan = pick(random, 0, 1);
  }
  Access access(const std::vector<int>& moved, Format format, int stick, bool lanes) const {
    Access a{};
    a.format = format;
    a.stick = stick;
    a.lanes = lanes;
    for (const int l : moved) a.strides.push_back({l, {}});
    return a;
  }
  void input(Random& random, Format format, const std::vector<int>& moved, int stick,
             bool lanes = false) {
    inputs.emplace_back(random, format, sizes, moved, stick, lanes);
    inputs.back().fill([&] { return random_code(random, format); });
    code.inputs.push_back(access(moved, format, stick, lanes));
  }
  void output(Random& random, Format format, const std::vector<int>& moved, int stick,
              bool lanes = false) {
    outputs.emplace_back(random, format, sizes, moved, stick, lanes);
    outputs.back().fill([&] { return random_code(random, format); });
    code.outputs.push_back(access(moved, format, stick, lanes));
  }
  int node(Op op, Register type, std::vector<int> args = {}, int64_t immediate = 0) {
    Node n;
    n.op = op;
    n.type = type;
    n.arity = int(args.size());
    for (size_t i = 0; i < args.size(); ++i) n.args[i] = args[i];
    n.immediate = immediate;
    const OpInfo& info = op_info(op);
    n.result = info.result == 'T'   ? type
               : info.result == '*' ? Register(immediate)
                                    : register_of_letter(info.result);
    code.body.nodes.push_back(n);
    return int(code.body.nodes.size()) - 1;
  }
  Register type_of(int n) const { return code.body.nodes[size_t(n)].result; }
  int as(int n, Register type) {
    return type_of(n) == type ? n : node(Op::Cast, type_of(n), {n}, int64_t(type));
  }

  // Runs `kernel` of every instruction set on copies of the outputs and holds them against
  // `expected`, which is filled already.
  void check(void (*Kernels::*kernel)(const ComputeTask&), std::vector<Tile>& expected,
             uint64_t seed) {
    task.code = &code;
    task.inputs = int(inputs.size());
    task.outputs = int(outputs.size());
    task.numerics = &numerics;
    for (int i = 0; i < task.inputs; ++i) task.input[i] = inputs[size_t(i)].view;
    for (const Isa isa : isas()) {
      std::vector<Tile> got(outputs);
      for (int o = 0; o < task.outputs; ++o) task.output[o] = got[size_t(o)].view;
      (kernels_for(isa).*kernel)(task);
      for (int o = 0; o < task.outputs; ++o) {
        const std::string what =
            "case " + std::to_string(seed) + " " + isa_name(isa) + " output " + std::to_string(o);
        if (outputs[size_t(o)].strayed(got[size_t(o)])) {
          throw check::Failure(what + ": written outside its sticks");
        }
        expected[size_t(o)].each([&](const std::vector<int64_t>& point) {
          const int64_t lanes = expected[size_t(o)].view.lanes ? kLaneAccumulators : 1;
          for (int64_t lane = 0; lane < lanes; ++lane) {
            const uint64_t want = expected[size_t(o)].bits(point, lane);
            const uint64_t have = got[size_t(o)].bits(point, lane);
            if (want == have) continue;
            std::string at;
            for (const int64_t t : point) at += " " + std::to_string(t);
            throw check::Failure(what + " at" + at + " lane " + std::to_string(lane) + ": " +
                                 std::to_string(have) + " is not " + std::to_string(want));
          }
        });
      }
    }
  }
};

std::vector<int> some_labels(Random& random, int labels, bool all) {
  std::vector<int> moved;
  for (int l = 0; l < labels; ++l) {
    if (all || pick(random, 0, 3)) moved.push_back(l);
  }
  return moved;
}
int one_of_labels(Random& random, const std::vector<int>& moved) {
  if (moved.empty() || pick(random, 0, 3) == 0) return -1;
  return moved[size_t(pick(random, 0, int64_t(moved.size()) - 1))];
}

void put(Tile& tile, const std::vector<int64_t>& point, const Number& x, const Numerics& numerics,
         int64_t lane = 0) {
  const uint64_t bits = encoded(tile.view.format, x, numerics);
  std::memcpy(tile.at(point, lane), &bits, size_t(format_bytes(tile.view.format)));
}

// Visits every point of the box in lexicographic order.
template <class F>
void each_point(const std::vector<int64_t>& sizes, F visit) {
  std::vector<int64_t> point(sizes.size(), 0);
  for (;;) {
    visit(point);
    int l = int(sizes.size()) - 1;
    while (l >= 0 && ++point[size_t(l)] == sizes[size_t(l)]) point[size_t(l--)] = 0;
    if (l < 0) return;
  }
}

// A body over the case's inputs: casts to one type, some operations, comparisons, an index.
int random_body(Random& random, Case& c, Register type) {
  std::vector<int> pool;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    Register held;
    register_of(c.inputs[i].view.format, &held);
    pool.push_back(c.as(c.node(Op::Input, held, {}, int64_t(i)), type));
  }
  if (pick(random, 0, 1) && c.task.labels > 0) {
    const int64_t label = pick(random, 0, c.task.labels - 1);
    pool.push_back(c.as(c.node(Op::Index, Register::I64, {}, label), type));
  }
  if (pick(random, 0, 1)) {
    float half = 0.5f;
    uint32_t bits;
    std::memcpy(&bits, &half, 4);
    pool.push_back(c.node(Op::Const, type, {}, type == Register::F32 ? int64_t(bits) : 3));
  }
  const auto any = [&] { return pool[size_t(pick(random, 0, int64_t(pool.size()) - 1))]; };
  for (int64_t n = pick(random, 0, 6); n > 0; --n) {
    constexpr Op kOf2[] = {Op::Add, Op::Sub, Op::Mul, Op::Min, Op::Max};
    const auto kind = pick(random, 0, 4);
    if (kind == 0) {
      pool.push_back(c.node(Op::Abs, type, {any()}));
    } else if (kind == 1) {
      const int condition = c.node(Op::Lt, type, {any(), any()});
      pool.push_back(c.node(Op::Where, type, {condition, any(), any()}));
    } else if (kind == 2 && type == Register::F32) {
      pool.push_back(c.node(Op::Sigmoid, type, {any()}));
    } else {
      pool.push_back(c.node(kOf2[size_t(pick(random, 0, 4))], type, {any(), any()}));
    }
  }
  return pool.back();
}

}  // namespace

TEST(sfu_map_is_the_body_at_every_point) {
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(200)); ++seed) {
    Random random(1000 + seed);
    Case c(Kind::Map);
    const int labels = int(pick(random, 0, 4));
    c.boxes(random, labels, 150);
    const std::vector<int> every = some_labels(random, labels, true);
    const int stick = one_of_labels(random, every);
    const int64_t inputs = pick(random, 1, 3), outputs = pick(random, 1, 2);
    for (int64_t i = 0; i < inputs; ++i) {
      const std::vector<int> moved = some_labels(random, labels, pick(random, 0, 1));
      int on = one_of_labels(random, moved);
      const bool has = std::find(moved.begin(), moved.end(), stick) != moved.end();
      if (pick(random, 0, 2) && (has || stick < 0)) on = stick;
      c.input(random, kAll[size_t(pick(random, 0, 10))], moved, on);
    }
    constexpr Register kTypes[] = {Register::F32, Register::F32, Register::I32, Register::I64};
    const Register type = kTypes[size_t(pick(random, 0, 3))];
    for (int64_t o = 0; o < outputs; ++o) {
      int result = random_body(random, c, type);
      Format format = kAll[size_t(pick(random, 0, 10))];
      Register held;
      register_of(format, &held);
      if (pick(random, 0, 4) == 0) {
        result = c.as(result, Register::Bool);
      } else {
        result = c.as(result, held);
      }
      c.code.body.results.push_back(result);
      c.output(random, format, every, pick(random, 0, 3) ? stick : one_of_labels(random, every));
    }
    std::vector<Tile> expected(c.outputs);
    c.task.code = &c.code;
    c.task.numerics = &c.numerics;
    each_point(c.sizes, [&](const std::vector<int64_t>& point) {
      const std::vector<Number> values = body(c.task, c.inputs, point);
      for (size_t o = 0; o < expected.size(); ++o) {
        put(expected[o], point, values[size_t(c.code.body.results[o])], c.numerics);
      }
    });
    c.check(&Kernels::map, expected, seed);
  }
}

TEST(sfu_map_works_in_place) {
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(40)); ++seed) {
    Random random(1500 + seed);
    Case c(Kind::Map);
    c.boxes(random, 2, 150);
    const int stick = int(pick(random, -1, 1));
    const Format format = pick(random, 0, 1) ? Format::SEN169_FP16 : Format::IEEE_FP32;
    c.input(random, format, {0, 1}, stick);
    const int x = c.node(Op::Input, Register::F32, {}, 0);
    c.code.body.results.push_back(c.node(Op::Add, Register::F32, {x, x}));
    c.outputs.push_back(c.inputs[0]);
    c.code.outputs = c.code.inputs;
    std::vector<Tile> expected(c.outputs);
    c.task.code = &c.code;
    c.task.numerics = &c.numerics;
    c.task.labels = 2;
    each_point(c.sizes, [&](const std::vector<int64_t>& point) {
      put(expected[0], point, body(c.task, c.inputs, point)[1], c.numerics);
    });
    for (const Isa isa : isas()) {
      Tile both(c.inputs[0]);
      c.task.inputs = c.task.outputs = 1;
      c.task.input[0] = c.task.output[0] = both.view;
      kernels_for(isa).map(c.task);
      expected[0].each([&](const std::vector<int64_t>& point) {
        CHECK_EQ(both.bits(point), expected[0].bits(point));
      });
    }
  }
}

// A combine and what it combines: `type` registers, in `parts` parts.
struct Way {
  Way(Random& random, Combine how) : how(how), type(Register(pick(random, 0, 2))) {
    if (how == Combine::Welford) type = Register::F32;
  }
  Register part(int number) const { return number == 1 && arg ? Register::I64 : type; }

  Combine how;
  Register type;
  bool arg = how == Combine::ArgMax || how == Combine::ArgMin;
  bool truth = how == Combine::Any || how == Combine::All;
  int parts = how == Combine::Welford ? 3 : arg ? 2 : 1;
};

TEST(sfu_reduce_adds_in_the_written_order) {
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(270)); ++seed) {
    Random random(2000 + seed);
    Case c(Kind::Reduce);
    const int labels = int(pick(random, 1, 4));
    c.boxes(random, labels, 200);
    c.code.combine = Combine(seed % 9);
    Way way(random, c.code.combine);
    const Combine how = way.how;
    const bool arg = way.arg, truth = way.truth;
    const int lane = int(pick(random, -1, labels - 1));
    std::vector<int> kept;
    const int only = int(pick(random, 0, labels - 1));
    for (int l = 0; l < labels; ++l) {
      if (arg ? l != only : pick(random, 0, 1)) kept.push_back(l);
    }
    const std::vector<int> every = some_labels(random, labels, true);
    c.input(random, kAll[size_t(pick(random, 0, 10))], every, lane);
    if (pick(random, 0, 1)) {
      const std::vector<int> moved = some_labels(random, labels, false);
      const bool has = std::find(moved.begin(), moved.end(), lane) != moved.end();
      c.input(random, kAll[size_t(pick(random, 0, 10))], moved,
              has && pick(random, 0, 1) ? lane : -1);
    }
    int result = random_body(random, c, way.type);
    if (truth) result = c.as(result, way.type = Register::Bool);
    c.code.body.results.push_back(result);
    const bool lanes = lane >= 0 && std::find(kept.begin(), kept.end(), lane) == kept.end();
    const int parts = way.parts;
    for (int o = 0; o < parts; ++o) {
      c.output(random, exact(way.part(o)), kept, lanes ? -1 : lane, lanes);
    }
    c.task.accumulate = pick(random, 0, 1);
    if (c.task.accumulate) {  // what they hold must be partial results
      for (int o = 0; o < parts; ++o) {
        Tile& tile = c.outputs[size_t(o)];
        tile.fill([&] {
          Number x;
          x.type = way.part(o);
          x.f = float(pick(random, o == 2 ? 0 : -9, 9));
          x.i = o == 1 && arg ? pick(random, -1, 100)
                : truth       ? pick(random, 0, 1)
                              : pick(random, -9, 9);
          return encoded(tile.view.format, x, {});
        });
      }
    }
    std::vector<Tile> expected(c.outputs);
    c.task.code = &c.code;
    c.task.numerics = &c.numerics;
    const auto get = [&](const std::vector<int64_t>& point, int64_t at) {
      Parts parts_now;
      for (Tile& tile : expected) {
        parts_now.push_back(decoded(tile.view.format, tile.bits(point, at), c.numerics));
        if (truth) parts_now.back().type = Register::Bool;
      }
      return parts_now;
    };
    const auto set = [&](const std::vector<int64_t>& point, int64_t at, const Parts& values) {
      for (size_t o = 0; o < values.size(); ++o) {
        put(expected[o], point, values[o], c.numerics, at);
      }
    };
    if (!c.task.accumulate) {
      expected[0].each([&](const std::vector<int64_t>& point) {
        for (int64_t at = 0; at < (lanes ? kLaneAccumulators : 1); ++at) {
          set(point, at, identity(how, way.type));
        }
      });
    }
    each_point(c.sizes, [&](const std::vector<int64_t>& point) {
      const Number x = body(c.task, c.inputs, point)[size_t(result)];
      const int64_t at = lanes ? (c.task.start[lane] + point[size_t(lane)]) % kLaneAccumulators : 0;
      Parts acc = get(point, at);
      take(how, acc, x, arg ? c.task.start[only] + point[size_t(only)] : 0);
      set(point, at, acc);
    });
    c.check(&Kernels::reduce, expected, seed);
  }
}

TEST(sfu_fold_goes_by_halves) {
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(90)); ++seed) {
    Random random(3000 + seed);
    Case c(Kind::Fold);
    const int labels = int(pick(random, 0, 3));
    c.boxes(random, labels, 9);
    c.code.combine = Combine(seed % 9);
    Way way(random, c.code.combine);
    const Combine how = way.how;
    const bool truth = way.truth;
    if (truth) way.type = Register::Bool;
    const std::vector<int> every = some_labels(random, labels, true);
    const int parts = way.parts;
    for (int o = 0; o < parts; ++o) {
      const Format format = exact(way.part(o));
      c.input(random, format, every, -1, true);
      c.output(random, format, every, -1);
      c.inputs.back().fill([&] {
        Number x;
        x.type = way.part(o);
        x.f = pick(random, 0, 60) == 0 ? NAN : float(pick(random, o == 2 ? 0 : -50, 50)) / 7;
        if (o == 2) x.f = float(pick(random, 0, 3));
        x.i = truth ? pick(random, 0, 1) : pick(random, o == 1 ? -1 : -40, 40);
        return encoded(format, x, {});
      });
    }
    std::vector<Tile> expected(c.outputs);
    expected[0].each([&](const std::vector<int64_t>& point) {
      std::vector<Parts> acc(kLaneAccumulators);
      for (int64_t i = 0; i < kLaneAccumulators; ++i) {
        for (Tile& tile : c.inputs) {
          acc[size_t(i)].push_back(decoded(tile.view.format, tile.bits(point, i), c.numerics));
          if (truth) acc[size_t(i)].back().type = Register::Bool;
        }
      }
      for (int64_t h = 32; h >= 1; h /= 2) {
        for (int64_t i = 0; i < h; ++i) join(how, acc[size_t(i)], acc[size_t(i + h)]);
      }
      for (size_t o = 0; o < expected.size(); ++o) put(expected[o], point, acc[0][o], c.numerics);
    });
    c.check(&Kernels::fold, expected, seed);
  }
}

TEST(sfu_scan_runs_along_any_label) {
  for (uint64_t seed = 0; seed < uint64_t(check::rounds(160)); ++seed) {
    Random random(4000 + seed);
    Case c(Kind::Scan);
    const int labels = int(pick(random, 1, 3));
    c.boxes(random, labels, 200);
    const int label = int(pick(random, 0, labels - 1));
    c.code.index_label = label;
    c.code.combine = Combine(seed % 4);
    const std::vector<int> every = some_labels(random, labels, true);
    std::vector<int> others;
    for (const int l : every) {
      if (l != label) others.push_back(l);
    }
    const int stick = one_of_labels(random, every);
    const Format format = kAll[size_t(pick(random, 0, 10))];
    Register type;
    register_of(format, &type);
    Format out = kAll[size_t(pick(random, 0, 10))];
    Register held;
    register_of(out, &held);
    if (held != type) out = format;
    const int carry_stick = stick == label ? -1 : stick;
    c.input(random, format, every, pick(random, 0, 3) ? stick : one_of_labels(random, every));
    c.input(random, exact(type), others, carry_stick);
    c.output(random, out, every, stick);
    c.output(random, exact(type), others, carry_stick);
    c.task.accumulate = pick(random, 0, 1);
    std::vector<Tile> expected(c.outputs);
    std::vector<int64_t> rest = c.sizes;
    rest[size_t(label)] = 1;
    each_point(rest, [&](std::vector<int64_t> point) {
      Number running = decoded(exact(type), c.inputs[1].bits(point), c.numerics);
      for (int64_t t = 0; t < c.sizes[size_t(label)]; ++t) {
        point[size_t(label)] = t;
        const Number x = decoded(format, c.inputs[0].bits(point), c.numerics);
        running = t == 0 && !c.task.accumulate ? x : one_of(c.code.combine, running, x);
        put(expected[0], point, running, c.numerics);
      }
      point[size_t(label)] = 0;
      put(expected[1], point, running, c.numerics);
    });
    c.check(&Kernels::scan, expected, seed);
  }
}

TEST(sfu_a_body_of_many_operations_needs_few_registers) {
  Random random(5000);
  Case c(Kind::Map);
  c.boxes(random, 1, 1);
  c.sizes = {3000};
  c.task.size[0] = 3000;
  c.input(random, Format::IEEE_FP32, {0}, 0);
  c.output(random, Format::IEEE_FP32, {0}, 0);
  int x = c.node(Op::Input, Register::F32, {}, 0);
  for (int i = 0; i < 4000; ++i)
    x = c.node(i % 2 ? Op::Add : Op::Abs, Register::F32,
               i % 2 ? std::vector<int>{x, 0} : std::vector<int>{x});
  c.code.body.results = {x};
  CHECK_EQ(std::string(unsupported(c.code)), std::string());
  for (int i = 0; i < 200; ++i) c.node(Op::Abs, Register::F32, {x});
  CHECK(std::string(unsupported(c.code)).find("4096") != std::string::npos);
  c.code.body.nodes.resize(4001);
  std::vector<Tile> expected(c.outputs);
  c.task.code = &c.code;
  c.task.numerics = &c.numerics;
  expected[0].each([&](const std::vector<int64_t>& point) {
    float in, y;
    const uint64_t bits = c.inputs[0].bits(point);
    std::memcpy(&in, &bits, 4);
    y = in;
    for (int i = 0; i < 4000; ++i) y = i % 2 ? y + in : std::fabs(y);
    Number number;
    number.f = y;
    put(expected[0], point, number, c.numerics);
  });
  c.check(&Kernels::map, expected, 0);
}
