// Products of rows and a packed weight, and layer norm.

#pragma once

#include <vector>

#include "abi.h"
#include "kernels/int8.h"
#include "runtime/threads.h"

namespace {

enum Part { INPUT, ATTENTION, FEED_FORWARD, SCORES };

// Adds the time since the last lap to a part of the session's `seconds`. Only the team of the first rows is timed.
struct Clock {
  double* seconds;
  double last;
  explicit Clock(double* seconds) : seconds(seconds), last(seconds ? now() : 0) {}
  void lap(Part part) {
    if (!seconds) return;
    const double time = now();
    seconds[part] += time - last;
    last = time;
  }
};

// What happens to a product: overwrite the output, overwrite it after ReLU, or add to it.
enum Mode { STORE, RELU, ADD };

// What turns the sums of INT8 products into numbers: per output, and per row.
struct Units {
  const float* scale;
  const ByteRow* rows;
};

// How a product reads inputs and float32 weights: each addition consumes `values` inputs and their weights.
struct Single {
  typedef float weight;
  typedef float value;
  typedef vec panel;
  typedef vec total;
  static constexpr int values = 1;
  static ALWAYS_INLINE vec start(const float* bias) { return bias ? load(bias) : vec{}; }
  static ALWAYS_INLINE void add(vec& total, const float* x, panel w) { total = fused(fill(*x), w, total); }
  static ALWAYS_INLINE vec finish(vec total, const float*, const Units&, int, int) { return total; }
};

#ifdef __AVX512BF16__
// bfloat16 weights and inputs: the processor multiplies and adds a pair of inputs at a time.
struct Paired : Single {
  typedef uint32_t weight;
  typedef uint32_t value;
  typedef uvec panel;
  static ALWAYS_INLINE void add(vec& total, const uint32_t* x, panel w) {
    total = (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_set1_epi32((int)*x), (__m512bh)w);
  }
};

// Rows converted to bfloat16, two inputs per word.
const uint32_t* paired(const float* x, int64_t xs, int64_t rows, int64_t inputs) {
  static thread_local std::vector<uint32_t> room;
  if ((int64_t)room.size() < rows * inputs / 2) room.resize(rows * inputs / 2);
  uint32_t* out = room.data();
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < inputs; i += LANES, out += LANES / 2) {
      const __m256bh halves = _mm512_cvtneps_pbh((__m512)load(x + r * xs + i));
      std::memcpy(out, &halves, sizeof halves);
    }
  return room.data();
}
#else
// bfloat16 weights and float32 inputs.
struct Paired : Single {
  typedef uint32_t weight;
  typedef float value;
  typedef uvec panel;
  static constexpr int values = 2;
  static ALWAYS_INLINE void add(vec& total, const float* x, panel w) {
    total = fused(fill(x[0]), (vec)(w << 16), total);
    total = fused(fill(x[1]), (vec)(w & 0xffff0000u), total);
  }
};
#endif

// INT8 weights and inputs: four inputs at a time.
struct Bytes {
  typedef uint32_t weight;
  typedef int32_t value;
  typedef uvec panel;
  typedef ivec total;
  static constexpr int values = 1;
  static ALWAYS_INLINE ivec start(const float*) { return ivec{}; }
  static ALWAYS_INLINE void add(ivec& total, const int32_t* x, panel w) { total = dot4(total, w, *x); }
  static ALWAYS_INLINE vec finish(ivec total, const float* bias, const Units& units, int r, int output) {
    const ByteRow& row = units.rows[r];
    const vec v = __builtin_convertvector(total - row.offset, vec) * (load(units.scale + output) * row.scale);
    return bias ? v + load(bias) : v;
  }
};

// Rows quantised to bytes.
struct ByteRows {
  std::vector<int32_t> words;  // [rows, inputs / 4]
  std::vector<ByteRow> rows;

  void read(const float* x, int64_t xs, int64_t count, int64_t inputs) {
    if ((int64_t)words.size() < count * inputs / 4) words.resize(count * inputs / 4);
    if ((int64_t)rows.size() < count) rows.resize(count);
    for (int64_t r = 0; r < count; r++) rows[r] = quantise(x + r * xs, inputs, (int8_t*)(words.data() + r * inputs / 4));
  }
};

// R rows times P panels, accumulated in registers. `stride` is the distance of panels in the weight.
template <typename K, int R, int P>
ALWAYS_INLINE void tile(const typename K::weight* weight, int64_t steps, int64_t stride, const float* bias, const Units& units,
                        const typename K::value* x, int64_t xs, float* y, int64_t ys, Mode mode) {
  typename K::total total[R][2 * P];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < 2 * P; p++) total[r][p] = K::start(past(bias, p * LANES));
  for (int64_t i = 0; i < steps; i++) {
    typename K::panel w[2 * P];
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
      w[2 * p] = load(weight + p * stride + i * PANEL);
      w[2 * p + 1] = load(weight + p * stride + i * PANEL + LANES);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
      for (int p = 0; p < 2 * P; p++) K::add(total[r][p], x + r * xs + i * K::values, w[p]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < 2 * P; p++) {
      float* out = y + r * ys + p * LANES;
      vec v = K::finish(total[r][p], past(bias, p * LANES), units, r, p * LANES);
      if (mode == RELU) v = pick(v > 0.0f, v, vec{});
      if (mode == ADD) v += load(out);
      store(out, v);
    }
}

// Panels per tile for which the accumulators of `rows` rows fit the registers.
constexpr int panels_of(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }

// R rows times any number of panels.
template <typename K, int R>
void rows_tile(const typename K::weight* weight, int64_t steps, int64_t stride, int64_t panels, const float* bias, const Units& units,
               const typename K::value* x, int64_t xs, float* y, int64_t ys, Mode mode) {
  constexpr int P = panels_of(R);
  int64_t p = 0;
  const auto own = [&](int64_t done) { return Units{past(units.scale, done * PANEL), units.rows}; };
  for (; p + P <= panels; p += P)
    tile<K, R, P>(weight + p * stride, steps, stride, past(bias, p * PANEL), own(p), x, xs, y + p * PANEL, ys, mode);
  if (P > 2 && p + 2 <= panels) {
    tile<K, R, 2>(weight + p * stride, steps, stride, past(bias, p * PANEL), own(p), x, xs, y + p * PANEL, ys, mode);
    p += 2;
  }
  for (; p < panels; p++)
    tile<K, R, 1>(weight + p * stride, steps, stride, past(bias, p * PANEL), own(p), x, xs, y + p * PANEL, ys, mode);
}

// Any number of rows times any number of panels.
template <typename K>
void product(const typename K::weight* weight, int64_t steps, int64_t stride, int64_t panels, const float* bias, const Units& units,
             const typename K::value* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode) {
  // A few panels at a time, so that they stay in the first-level cache while all rows are multiplied.
  constexpr int64_t GROUP = 4;
  for (int64_t p = 0; p < panels; p += GROUP) {
    const int64_t count = panels - p < GROUP ? panels - p : GROUP;
    const typename K::weight* w = weight + p * stride;
    const float* b = past(bias, p * PANEL);
    for (int64_t done = 0; done < rows;) {
      const int64_t left = rows - done;
      const typename K::value* from = x + done * xs;
      const Units own{past(units.scale, p * PANEL), past(units.rows, done)};
      float* to = y + done * ys + p * PANEL;
      const int take = left > MAX_ROWS ? (left >= 2 * MAX_ROWS ? MAX_ROWS : (int)(left + 1) / 2) : (int)left;
      switch (take) {
#define CASE(R) case R: rows_tile<K, R>(w, steps, stride, count, b, own, from, xs, to, ys, mode); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
      }
      done += take;
    }
  }
}

// Panels [begin, end) of a product with inputs [from, from + inputs) of a weight.
struct Slice {
  const Linear& linear;
  int64_t begin, end, from, inputs;

  // The weights from the slice's first on, where `group` inputs lie side by side in a W.
  template <typename W>
  const W* weight(int64_t group) const { return (const W*)linear.weight + begin * stride(group) + from / group * PANEL; }
  int64_t stride(int64_t group) const { return linear.inputs / group * PANEL; }
  const float* bias() const { return past(linear.bias, begin * PANEL); }
};

// The product of quantised rows.
void apply_bytes(const Slice& slice, const int32_t* x, const ByteRow* units, int64_t rows, float* y, int64_t ys, Mode mode,
                 const float* bias) {
  const int64_t steps = slice.inputs / 4;
  product<Bytes>(slice.weight<uint32_t>(4), steps, slice.stride(4), slice.end - slice.begin, bias,
                 {slice.linear.scale + slice.begin * PANEL, units}, x, steps, rows, y, ys, mode);
}

// The product of x [rows, inputs], row stride xs, into y with row stride ys.
void apply(const Slice& slice, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode, const float* bias) {
  const int64_t panels = slice.end - slice.begin, inputs = slice.inputs;
  if (slice.linear.format == INT8) {
    static thread_local ByteRows own;
    own.read(x, xs, rows, inputs);
    apply_bytes(slice, own.words.data(), own.rows.data(), rows, y, ys, mode, bias);
  } else if (slice.linear.format == FLOAT32) {
    product<Single>(slice.weight<float>(1), inputs, slice.stride(1), panels, bias, {}, x, xs, rows, y, ys, mode);
  } else {
#ifdef __AVX512BF16__
    x = (const float*)paired(x, xs, rows, inputs), xs = inputs / 2;
#endif
    product<Paired>(slice.weight<uint32_t>(2), inputs / 2, slice.stride(2), panels, bias, {}, (const Paired::value*)x, xs, rows, y,
                    ys, mode);
  }
}

// Output panels [begin, end) of x [rows, inputs], row stride xs, times a weight, into y with row stride ys.
void apply_panels(const Linear& linear, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode,
                  int64_t begin, int64_t end) {
  const Slice slice{linear, begin, end, 0, linear.inputs};
  apply(slice, x, xs, rows, y + begin * PANEL, ys, mode, slice.bias());
}

// The product of one of `groups` equal ranges of inputs, without the bias; x starts at the range.
void apply_slice(const Linear& linear, int64_t group, int64_t groups, const float* x, int64_t xs, int64_t rows, float* y,
                 int64_t ys) {
  const int64_t inputs = linear.inputs / groups;
  apply({linear, 0, linear.panels, group * inputs, inputs}, x, xs, rows, y, ys, STORE, nullptr);
}

// All output panels, shared by the threads of the team.
void apply(const Linear& linear, Team& team, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode) {
  team.share(linear.panels, [=, linear = &linear](int64_t begin, int64_t end) {
    apply_panels(*linear, x, xs, rows, y, ys, mode, begin, end);
  });
}

// Layer norm of a row. Weight and bias are null where they are fused into the next product.
void normalise(const float* x, int64_t size, const float* weight, const float* bias, float* y) {
  vec total{};
  for (int64_t i = 0; i < size; i += LANES) total += load(x + i);
  const float mean = sum(total) / size;
  vec squares{};
  for (int64_t i = 0; i < size; i += LANES) {
    const vec d = load(x + i) - mean;
    squares += d * d;
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / size + EPSILON);
  for (int64_t i = 0; i < size; i += LANES) {
    vec v = (load(x + i) - mean) * scale;
    if (weight) v = v * load(weight + i) + load(bias + i);
    store(y + i, v);
  }
}

}  // namespace
