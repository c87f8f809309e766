// Products of few rows: b is decoded in registers as it streams by, once.
//
// Included by matmul_avx2.cpp and matmul_avx512.cpp inside their unnamed namespaces, after
// matmul_body.h. The includer adds to its primitives
//   values<format, exact>(src, merged_is_nan)   kLanes elements of a stick as floats
//   dl16_pair(src, seen, low, high)             2 * kLanes DLFloat16 codes as floats in an order of
//                                               its own, and what any_merged asks of `seen`
//   in_order(low, high), as_unpacked(low, high) from that order and to it
//   note<count>(src, seen)                      where sums may be of one vector: for any_merged
//   kSums                                       accumulators that registers hold while b is decoded
// Same chains of additions as matmul_body.h, so the same bits; it only saves the way of b through
// scratch memory.

constexpr int64_t kFewRows = 8;
// Rows of b that are fetched ahead, into the first cache, where one pass reads it: 6 KiB of a
// format of 16 bits. (One row times 4096x4096: 4.4 ms; 256 rows ahead into the second cache: 4.7
// ms.)
constexpr int64_t kNear = 48;

// Vectors of the output's columns that are summed at a time, a power of two: the more rows, the
// fewer. A block of b is read from memory by the first pass over it and from the cache by others.
static constexpr int few_vectors(int rows, int64_t columns) {
  int vectors = int(columns / kLanes);
  while (vectors > 1 && rows * vectors > kSums) vectors /= 2;
  return vectors;
}

// Rows of the output in registers over `depth` steps of k; `vectors` times kLanes columns of one or
// two sticks of b. Returns false, with out untouched, when DLFloat16's merged code was met and
// `exact` is not set.
template <Format format, bool exact, int rows, int vectors, bool is_fused>
static bool few(const MatmulTile& t, int64_t k0, int64_t depth, int64_t column, Ends ends) {
  ends.integers = format == Format::SENINT8;  // known here: less code
  constexpr int64_t bytes = kBytes<format>, eps = 128 / bytes;
  constexpr int kPerStick = 32 / kLanes;  // of float32
  // Ordinary DLFloat16: columns stay in the order of unpacking until they are stored.
  constexpr bool paired = format == Format::SEN169_FP16 && !exact && vectors > 1;
  Vec sum[rows][vectors];
  std::byte* out[vectors];
#pragma GCC unroll 16
  for (int j = 0; j < vectors; ++j) {
    const int64_t at = column + kLanes * j;
    out[j] = t.out + (at / 32) * t.out_stick + (at % 32) * 4;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      sum[r][j] = ends.start || ends.integers ? splat(0.0f) : load(out[j] + r * t.out_row);
    }
  }
  if constexpr (paired) {
    if (!ends.start) {
#pragma GCC unroll 16
      for (int i = 0; i < rows * vectors; i += 2) {
        as_unpacked(sum[i / vectors][i % vectors], sum[i / vectors][i % vectors + 1]);
      }
    }
  }
  // A format of 4 bytes has the second half of 64 columns in another stick.
  const std::byte* b = t.b + k0 * t.b_row + (column / eps) * t.b_stick + (column % eps) * bytes;
  const int64_t second = eps == 32 && vectors > kPerStick ? t.b_stick - 128 : 0;
  Vec merged = splat(0.0f);
  const int64_t step = t.b_row;
  // Memory is as busy in the last pass over a block of b as in the first: each fetches its share of
  // the rows behind the block.
  constexpr int64_t width = vectors * kLanes, run = eps < kPanel ? eps : kPanel;
  constexpr int64_t passes = width < run ? run / width : 1;
  const std::byte* ahead =
      b - column % run * bytes +
      (passes == 1 ? kNear : depth + column % run / width * (depth / passes)) * step;
  for (int64_t k = 0; k < depth; ++k, b += step) {
    if (passes == 1 || k % passes == 0) {
      __builtin_prefetch(ahead, 0, passes == 1 ? 3 : 2);
      if constexpr (bytes > 1) __builtin_prefetch(ahead + 64, 0, passes == 1 ? 3 : 2);
      ahead += step;
    }
    if constexpr (format == Format::SEN169_FP16 && !exact && !paired) {
      note<kLanes>(b, merged);
    }
    // Few values wait in registers: the decoded ones of all columns, or a's of all rows.
    constexpr int together = vectors <= rows ? vectors : paired ? 2 : 1;
#pragma GCC unroll 16
    for (int j0 = 0; j0 < vectors; j0 += together) {
      Vec x[together];
      if constexpr (paired) {
#pragma GCC unroll 16
        for (int j = 0; j < together; j += 2) {
          dl16_pair(b + bytes * kLanes * (j0 + j), merged, x[j], x[j + 1]);
        }
      } else {
#pragma GCC unroll 16
        for (int j = 0; j < together; ++j) {
          const int64_t at = bytes * kLanes * (j0 + j) + (j0 + j >= kPerStick ? second : 0);
          x[j] = values<format, exact>(b + at, t.merged_is_nan);
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) {
        const Vec a = splat(t.a_scratch[r * kRowA + k]);
#pragma GCC unroll 16
        for (int j = 0; j < together; ++j) {
          Vec& to = sum[r][j0 + j];
          to = is_fused ? fused(a, x[j], to) : separate(a, x[j], to);
        }
      }
    }
  }
  if constexpr (format == Format::SEN169_FP16 && !exact) {
    if (any_merged(merged)) return false;
  }
  if constexpr (paired) {
#pragma GCC unroll 16
    for (int i = 0; i < rows * vectors; i += 2) {
      in_order(sum[i / vectors][i % vectors], sum[i / vectors][i % vectors + 1]);
    }
  }
#pragma GCC unroll 16
  for (int j = 0; j < vectors; ++j) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) finish(out[j] + r * t.out_row, sum[r][j], ends);
  }
  return true;
}

// `columns` of the output: 32 or 64.
template <Format format, int rows, int64_t columns>
static void few_columns(const MatmulTile& t, int64_t k0, int64_t depth, int64_t column,
                        bool may_be_fused, const Ends& ends) {
  constexpr int vectors = few_vectors(rows, columns);
  for (const int64_t end = column + columns; column < end; column += vectors * kLanes) {
    if constexpr (format == Format::IEEE_FP32) {
      few<format, true, rows, vectors, false>(t, k0, depth, column, ends);
    } else if constexpr (format == Format::SEN169_FP16) {
      if (!few<format, false, rows, vectors, true>(t, k0, depth, column, ends)) {
        few<format, true, rows, vectors, true>(t, k0, depth, column, ends);
      }
    } else if (format != Format::BFLOAT16 || may_be_fused) {
      few<format, true, rows, vectors, true>(t, k0, depth, column, ends);
    } else {
      few<format, true, rows, vectors, false>(t, k0, depth, column, ends);
    }
  }
}

// bfloat16: whether columns column .. column + 64 of b hold only values that may be fused.
static bool narrow_columns(const MatmulTile& t, int64_t k0, int64_t depth, int64_t column) {
  const int64_t valid = t.n - column < kPanel ? t.n - column : kPanel;
  for (int64_t k = k0; k < k0 + depth; ++k) {
    if (!narrow_bfloat16(t.b + k * t.b_row + (column / 64) * t.b_stick, valid)) return false;
  }
  return true;
}

template <Format format, int rows>
static void few_rows(const MatmulTile& t) {
  constexpr int64_t group = kBlockM / kFewRows * kBlockK;  // of k: what the scratch memory holds
  for (int64_t g0 = 0; g0 < t.k; g0 += group) {
    const int64_t end = t.k - g0 < group ? t.k : g0 + group;
    bool wide = false;
    MatmulTile part = t;  // block i of a lies behind block i - 1
    for (int64_t k0 = g0; k0 < end; k0 += kBlockK, part.a_scratch += rows * kRowA) {
      const int64_t depth = end - k0 < kBlockK ? end - k0 : kBlockK;
      Seen seen;
      OPENSPYRE_DECODE(t.a_format, decode_rows_as, seen, part, 0, t.m, k0, depth)
      wide = wide || seen.wide;
    }
    for (int64_t n0 = 0; n0 < t.n; n0 += kPanel) {  // b in long runs of memory
      part.a_scratch = t.a_scratch;
      for (int64_t k0 = g0; k0 < end; k0 += kBlockK, part.a_scratch += rows * kRowA) {
        const int64_t depth = end - k0 < kBlockK ? end - k0 : kBlockK;
        const Ends ends{k0 == 0 && !t.accumulate, k0 + depth == t.k, t.integers};
        bool fuse = !wide;
        if constexpr (format == Format::BFLOAT16) {
          fuse = fuse && narrow_columns(t, k0, depth, n0);
        }
        if (t.n - n0 <= 32) {
          few_columns<format, rows, 32>(part, k0, depth, n0, fuse, ends);
        } else {
          few_columns<format, rows, kPanel>(part, k0, depth, n0, fuse, ends);
        }
      }
    }
  }
}

template <Format format>
static void few_rows_of(const MatmulTile& t) {
  switch (t.m) {
    case 1:
      return few_rows<format, 1>(t);
    case 2:
      return few_rows<format, 2>(t);
    case 3:
      return few_rows<format, 3>(t);
    case 4:
      return few_rows<format, 4>(t);
    case 5:
      return few_rows<format, 5>(t);
    case 6:
      return few_rows<format, 6>(t);
    case 7:
      return few_rows<format, 7>(t);
    default:
      return few_rows<format, 8>(t);
  }
}

static void few(const MatmulTile& t) {
  switch (t.b_format) {
    case Format::SEN169_FP16:
      return few_rows_of<Format::SEN169_FP16>(t);
    case Format::IEEE_FP16:
      return few_rows_of<Format::IEEE_FP16>(t);
    case Format::BFLOAT16:
      return few_rows_of<Format::BFLOAT16>(t);
    case Format::SEN143_FP8:
      return few_rows_of<Format::SEN143_FP8>(t);
    case Format::SEN152_FP8:
      return few_rows_of<Format::SEN152_FP8>(t);
    case Format::SENINT8:
      return few_rows_of<Format::SENINT8>(t);
    default:
      return few_rows_of<Format::IEEE_FP32>(t);
  }
}
