// The vector code of matrix products: included once by each matmul_<isa>.cpp, after its primitives.
//
// Private to those files and inside their unnamed namespace, so that no copy of a function made for
// one processor can be linked in for another. The includer defines, for vectors Vec of kLanes
// floats: load, store, splat, fused (a * b + c, rounded once, where it may), separate (a * b
// rounded, then + c), canonical (NaN to the one NaN), add_integers, and
//   decode_group<format, exact>(src, dst, merged_is_nan, seen)
//       kGroup<format, exact> elements of a stick, 16 or 32, to as many floats
// where, unless `exact`, DLFloat16's merged code is only noted in `seen`. kRows x kPanelWidth is
// the block of the output that is kept in registers.
//
// Bits: an output element is a chain of additions with k ascending. Blocks of k only store the
// accumulators in between, as float32, which changes nothing.

// What a decoded block tells about its values.
struct Seen {
  Vec bits{};         // used by decode_group<SEN169_FP16, false>
  bool wide = false;  // bfloat16: a product might leave float32's range
};

// bfloat16 values whose exponents allow any two to be multiplied exactly: then a fused operation
// rounds no other way. Zero, infinity and NaN do no harm.
static bool narrow_bfloat16(const std::byte* src, int64_t n) {
  uint16_t wide = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint16_t code;
    std::memcpy(&code, src + 2 * i, 2);
    const uint16_t mag = code & 0x7FFF;
    const bool small = mag != 0 && mag < (60 << 7);
    const bool large = mag >= (189 << 7) && mag < 0x7F80;
    wide |= uint16_t(small | large);
  }
  return wide == 0;
}

// The decoders copy what they need of `t`: a store of floats might change it, for all the compiler
// knows.
template <Format format, bool exact>
static void decode_rows_as(const MatmulTile& t, int64_t m0, int64_t rows, int64_t k0, int64_t depth,
                           Seen& seen) {
  constexpr int64_t bytes = kBytes<format>, eps = 128 / bytes;
  const bool merged_is_nan = t.merged_is_nan;
  const int64_t a_row = t.a_row, a_stick = t.a_stick;
  const std::byte* row = t.a + m0 * a_row + (k0 / eps) * a_stick;  // k0: at a stick's beginning
  float* to = t.a_scratch;
  Seen met = seen;
  for (int64_t m = 0; m < rows; ++m, row += a_row, to += kRowA) {
    for (int64_t k = 0; k < depth; k += kGroup<format, exact>) {
      const std::byte* from = row + (k / eps) * a_stick + (k % eps) * bytes;
      decode_group<format, exact>(from, to + k, merged_is_nan, met);
      if constexpr (format == Format::BFLOAT16) {
        if (!narrow_bfloat16(from, depth - k < 16 ? depth - k : 16)) met.wide = true;
      }
    }
  }
  seen = met;
}

// Columns n0 .. n0 + columns of b, 32 or kPanel, as panels [columns / kPanelWidth][depth]
// [kPanelWidth].
template <Format format, bool exact, int64_t columns>
static void decode_columns_as(const MatmulTile& t, int64_t k0, int64_t depth, int64_t n0,
                              Seen& seen) {
  constexpr int64_t bytes = kBytes<format>, eps = 128 / bytes, group = kGroup<format, exact>;
  const bool merged_is_nan = t.merged_is_nan;
  const int64_t b_row = t.b_row;
  const std::byte* from[columns / group];
  float* to[columns / group];
  for (int64_t i = 0; i < columns / group; ++i) {
    const int64_t c = group * i, at = n0 + c;
    from[i] = t.b + k0 * b_row + (at / eps) * t.b_stick + (at % eps) * bytes;
    to[i] = t.b_scratch + (c / kPanelWidth) * kPanelWidth * depth + c % kPanelWidth;
  }
  Seen met = seen;
  for (int64_t k = 0; k < depth; ++k) {
#pragma GCC unroll 4
    for (int64_t i = 0; i < columns / group; ++i) {
      const std::byte* source = from[i] + k * b_row;
      if constexpr (kPanelWidth < group) {
        float wide[group];
        decode_group<format, exact>(source, wide, merged_is_nan, met);
        for (int64_t part = 0; part < group; part += kPanelWidth) {
          std::memcpy(to[i] + part * depth + k * kPanelWidth, wide + part,
                      kPanelWidth * sizeof(float));
        }
      } else {
        decode_group<format, exact>(source, to[i] + k * kPanelWidth, merged_is_nan, met);
      }
      if constexpr (format == Format::BFLOAT16) {
        const int64_t valid = t.n - (n0 + group * i);
        if (!narrow_bfloat16(source, valid < group ? valid : group)) met.wide = true;
      }
    }
  }
  seen = met;
}
template <Format format, bool exact>
static void decode_panel_as(const MatmulTile& t, int64_t k0, int64_t depth, int64_t n0,
                            int64_t columns, Seen& seen) {
  if (columns == 32) return decode_columns_as<format, exact, 32>(t, k0, depth, n0, seen);
  decode_columns_as<format, exact, kPanel>(t, k0, depth, n0, seen);
}

// Calls function<format, exact>(...); DLFloat16 a second time when its merged code was met.
#define OPENSPYRE_DECODE(format_value, function, seen, ...)     \
  switch (format_value) {                                       \
    case Format::SEN169_FP16:                                   \
      function<Format::SEN169_FP16, false>(__VA_ARGS__, seen);  \
      if (any_merged(seen.bits)) {                              \
        function<Format::SEN169_FP16, true>(__VA_ARGS__, seen); \
      }                                                         \
      break;                                                    \
    case Format::IEEE_FP16:                                     \
      function<Format::IEEE_FP16, true>(__VA_ARGS__, seen);     \
      break;                                                    \
    case Format::BFLOAT16:                                      \
      function<Format::BFLOAT16, true>(__VA_ARGS__, seen);      \
      break;                                                    \
    case Format::SEN143_FP8:                                    \
      function<Format::SEN143_FP8, true>(__VA_ARGS__, seen);    \
      break;                                                    \
    case Format::SEN152_FP8:                                    \
      function<Format::SEN152_FP8, true>(__VA_ARGS__, seen);    \
      break;                                                    \
    case Format::SENINT8:                                       \
      function<Format::SENINT8, true>(__VA_ARGS__, seen);       \
      break;                                                    \
    default:                                                    \
      function<Format::IEEE_FP32, true>(__VA_ARGS__, seen);     \
      break;                                                    \
  }

// How a block's accumulators begin and end.
struct Ends {
  bool start;     // from zero, else from out
  bool last;      // the last block of k: NaN becomes canonical
  bool integers;  // exact integers of at most 2^24: added to out as int32
};

static inline void finish(std::byte* out, Vec value, const Ends& ends) {
  if (ends.integers) {
    add_integers(out, value, ends.start);
  } else {
    store(out, ends.last ? canonical(value) : value);
  }
}

// rows x (vectors * kLanes) elements of the output, in registers over `depth` steps of k. `b` has
// kPanelWidth floats a step. Vector j of a row is at out + j / kPerStick * out_stick.
template <int rows, int vectors, bool is_fused>
static void micro(const float* a, const float* b, int64_t depth, std::byte* out, int64_t out_row,
                  int64_t out_stick, const Ends& ends) {
  constexpr int kPerStick = 32 / kLanes;
  Vec sum[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < vectors; ++j) {
      const std::byte* at =
          out + r * out_row + (j / kPerStick) * out_stick + (j % kPerStick) * kLanes * 4;
      sum[r][j] = ends.start || ends.integers ? splat(0.0f) : load(at);
    }
  }
  // Two steps a turn: fewer instructions, which is what counts where a neighbour shares the core.
#pragma GCC unroll 2
  for (int64_t k = 0; k < depth; ++k) {
    Vec column[vectors];
#pragma GCC unroll 16
    for (int j = 0; j < vectors; ++j) column[j] = load(b + k * kPanelWidth + j * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Vec x = splat(a[r * kRowA + k]);
#pragma GCC unroll 16
      for (int j = 0; j < vectors; ++j) {
        sum[r][j] = is_fused ? fused(x, column[j], sum[r][j]) : separate(x, column[j], sum[r][j]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 16
    for (int j = 0; j < vectors; ++j) {
      finish(out + r * out_row + (j / kPerStick) * out_stick + (j % kPerStick) * kLanes * 4,
             sum[r][j], ends);
    }
  }
}

// The rows of b that the next panel will decode, fetched a few at a time while this one is
// multiplied: b is read once and comes from far away.
struct Ahead {
  const std::byte* at = nullptr;
  int64_t row = 0, rows = 0;
  int64_t share = 0;  // rows to fetch at a time
  void fetch() {
    const int64_t n = rows < share ? rows : share;
    for (int64_t i = 0; i < n; ++i, at += row) {
      __builtin_prefetch(at, 0, 2);
      __builtin_prefetch(at + 64, 0, 2);
    }
    rows -= n;
  }
};

template <int vectors, bool is_fused>
static void strip(int64_t rows, const float* a, const float* b, int64_t depth, std::byte* out,
                  int64_t out_row, int64_t out_stick, const Ends& ends, Ahead& ahead) {
  for (; rows >= kRows; rows -= kRows, a += kRows * kRowA, out += kRows * out_row) {
    ahead.fetch();
    micro<kRows, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
  }
  ahead.fetch();
  switch (rows) {
    case 1:
      return micro<1, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
    case 2:
      return micro<2, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
    case 3:
      return micro<3, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
    case 4:
      return micro<4, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
    case 5:
      return micro<5, vectors, is_fused>(a, b, depth, out, out_row, out_stick, ends);
    default:
      return;
  }
}

template <bool is_fused>
static void panels(const MatmulTile& t, int64_t m0, int64_t rows, int64_t depth, int64_t n0,
                   int64_t columns, const Ends& ends, Ahead& ahead) {
  for (int64_t c = 0; c < columns; c += kPanelWidth) {
    const int64_t at = n0 + c;
    std::byte* out = t.out + m0 * t.out_row + (at / 32) * t.out_stick + (at % 32) * 4;
    const float* b = t.b_scratch + c * depth;
    if constexpr (kPanelWidth > 32) {
      if (columns - c < kPanelWidth) {
        strip<32 / kLanes, is_fused>(rows, t.a_scratch, b, depth, out, t.out_row, t.out_stick, ends,
                                     ahead);
        continue;
      }
    }
    strip<kPanelWidth / kLanes, is_fused>(rows, t.a_scratch, b, depth, out, t.out_row, t.out_stick,
                                          ends, ahead);
  }
}

static bool may_fuse(const MatmulTile& t, bool wide) {
  if (t.a_format == Format::IEEE_FP32 || t.b_format == Format::IEEE_FP32) return false;
  return !wide;
}

static Ahead next_panel(const MatmulTile& t, int64_t k0, int64_t n0, int64_t rows) {
  int64_t k = k0, n = n0 + kPanel;
  if (n >= t.n) k += kBlockK, n = 0;
  if (k >= t.k) return {};
  const int64_t eps = 128 / format_width(t.b_format), depth = t.k - k < kBlockK ? t.k - k : kBlockK;
  const int64_t steps =
      (rows + kRows - 1) / kRows * (kPanelWidth < kPanel ? kPanel / kPanelWidth : 1);
  return {t.b + k * t.b_row + (n / eps) * t.b_stick, t.b_row, depth, (depth + steps - 1) / steps};
}

static void blocks(const MatmulTile& t) {
  for (int64_t k0 = 0; k0 < t.k; k0 += kBlockK) {
    const int64_t depth = t.k - k0 < kBlockK ? t.k - k0 : kBlockK;
    const Ends ends{k0 == 0 && !t.accumulate, k0 + depth == t.k, t.integers};
    for (int64_t m0 = 0; m0 < t.m; m0 += kBlockM) {
      const int64_t rows = t.m - m0 < kBlockM ? t.m - m0 : kBlockM;
      Seen a_seen;
      OPENSPYRE_DECODE(t.a_format, decode_rows_as, a_seen, t, m0, rows, k0, depth)
      for (int64_t n0 = 0; n0 < t.n; n0 += kPanel) {
        const int64_t columns = t.n - n0 <= 32 ? 32 : kPanel;  // whole sticks of the output
        Seen b_seen;
        OPENSPYRE_DECODE(t.b_format, decode_panel_as, b_seen, t, k0, depth, n0, columns)
        Ahead ahead = next_panel(t, k0, n0, rows);
        if (may_fuse(t, a_seen.wide || b_seen.wide)) {
          panels<true>(t, m0, rows, depth, n0, columns, ends, ahead);
        } else {
          panels<false>(t, m0, rows, depth, n0, columns, ends, ahead);
        }
      }
    }
  }
}
