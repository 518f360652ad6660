// Products of rows and a packed weight, and layer norm.
//
// A packed weight is [panels][steps][PANEL][group]: `group` inputs of an output lie side by side. Every output has one
// accumulator, to which the inputs are added in order, so that no sum depends on the tile, the number of rows or the processor.

#pragma once

#include "kernels/int8.h"

namespace {

// Rows per register tile, and vectors of outputs for which the accumulators of `rows` rows fit the registers.
#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;  // 6 x 4 accumulators of 32 registers; more rows times 2 vectors take longer per row
constexpr int vectors_of(int rows) { return rows <= 3 ? 8 : 4; }
#elif defined(__AVX2__)
constexpr int MAX_ROWS = 6;  // 6 x 1 vectors are 12 of 16 registers
constexpr int vectors_of(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#elif defined(__aarch64__)
constexpr int MAX_ROWS = 6;  // 6 x 1 vectors are 24 of 32 registers
constexpr int vectors_of(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#else
constexpr int MAX_ROWS = 3;  // 3 x 1 vectors are 12 of 16 registers
constexpr int vectors_of(int rows) { return rows == 1 ? 2 : 1; }
#endif

// What happens to a product: overwrite the output, overwrite it after ReLU, or add to it.
enum Mode { STORE, RELU, ADD };

// What turns the sums of int8 products into numbers: per output, and per row.
struct Units {
  const float* scale;
  const ByteRow* rows;
};

// How a product reads float32 weights, and adds their products with inputs. A step has `values` inputs of an output, whose
// weights lie side by side; `read` returns those of input `part`. A register tile has `most_rows` rows at most.
struct Single {
  typedef float weight;
  typedef float value;
  typedef vec panel;
  typedef vec total;
  static constexpr int values = 1;
#if defined(__wasm__)
  static constexpr int most_rows = 2;  // V8 would keep the accumulators of three rows in memory, at half the speed
#else
  static constexpr int most_rows = MAX_ROWS;
#endif
  static ALWAYS_INLINE vec read(const float* w, int) { return load(w); }
  static ALWAYS_INLINE void keep_panel(vec& w) { keep(w); }
  static ALWAYS_INLINE vec start(const float* bias) { return bias ? load(bias) : vec{}; }
  static ALWAYS_INLINE void add(vec& total, const float* x, const vec& w) { total = fused(fill(*x), w, total); }
  static ALWAYS_INLINE vec finish(vec total, const float*, const Units&, int, int) { return total; }
};

// bfloat16 weights, two inputs of an output in a word, and float32 inputs. The sums are those of `Single`.
struct Paired : Single {
  typedef uint32_t weight;
  static constexpr int values = 2;
  static constexpr int most_rows = MAX_ROWS;
  static ALWAYS_INLINE vec read(const uint32_t* w, int part) {
    return as<vec>(part ? load(w) & uvec(0xffff0000u) : load(w) << 16);
  }
};

// int8 weights and inputs: four inputs at a time.
struct Bytes {
  typedef uint32_t weight;
  typedef Quad value;
  typedef Stored panel;
  typedef ivec total;
  static constexpr int values = 1;
  static constexpr int most_rows = MAX_ROWS;
  static ALWAYS_INLINE Stored read(const uint32_t* w, int) { return Stored(load(w)); }
  static ALWAYS_INLINE void keep_panel(Stored&) {}
  static ALWAYS_INLINE ivec start(const float*) { return ivec{}; }
  static ALWAYS_INLINE void add(ivec& total, const Quad* x, const Stored& w) { total = dot4(total, w, *x); }
  static ALWAYS_INLINE vec finish(ivec total, const float* bias, const Units& units, int r, int output) {
    const ByteRow& row = units.rows[r];
    const vec v = converted<vec>(total - row.offset) * (load(units.scale + output) * row.scale);
    return bias ? v + load(bias) : v;
  }
};

// R rows times V vectors of outputs, accumulated in registers. `stride` is the distance of panels in the weight. An odd V is 1.
template <typename K, int R, int V>
ALWAYS_INLINE void tile(const typename K::weight* weight, int64_t steps, int64_t stride, const float* bias, const Units& units,
                        const typename K::value* x, int64_t xs, float* y, int64_t ys, Mode mode) {
  typename K::total total[V][R];
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int r = 0; r < R; r++) total[v][r] = K::start(past(bias, v * LANES));
  }
  for (int64_t i = 0; i < steps; i++) {
    UNROLL for (int v = 0; v < V; v++) {
#if defined(__clang__) && defined(__AVX2__) && !defined(__AVX512F__)
      // The inputs are broadcast again for each vector: kept for all of them, they would not fit the registers.
      if (R > 2) asm("" : "+r"(x));
#endif
      UNROLL for (int part = 0; part < K::values; part++) {
        typename K::panel w = K::read(weight + v / 2 * stride + i * PANEL + v % 2 * LANES, part);
        if (R == 2) K::keep_panel(w);  // with more rows, it would not fit the registers
        UNROLL for (int r = 0; r < R; r++) K::add(total[v][r], x + r * xs + i * K::values + part, w);
      }
    }
  }
  UNROLL for (int r = 0; r < R; r++) {
    UNROLL for (int v = 0; v < V; v++) {
      float* out = y + r * ys + v * LANES;
      vec sum = K::finish(total[v][r], past(bias, v * LANES), units, r, v * LANES);
      if (mode == RELU) sum = pick(sum > 0.0f, sum, vec{});
      if (mode == ADD) sum += load(out);
      store(out, sum);
    }
  }
}

// R rows times any number of panels.
template <typename K, int R>
void rows_tile(const typename K::weight* weight, int64_t steps, int64_t stride, int64_t panels, const float* bias, const Units& units,
               const typename K::value* x, int64_t xs, float* y, int64_t ys, Mode mode) {
  constexpr int V = vectors_of(R);
  int64_t v = 0;
  const auto several = [&](auto vectors) {
    constexpr int N = decltype(vectors)::value;
    for (; v + N <= 2 * panels; v += N)
      tile<K, R, N>(weight + v / 2 * stride + v % 2 * LANES, steps, stride, past(bias, v * LANES),
                    Units{past(units.scale, v * LANES), units.rows}, x, xs, y + v * LANES, ys, mode);
  };
  several(std::integral_constant<int, V>());
  if constexpr (V > 4) several(std::integral_constant<int, 4>());
  if constexpr (V > 2) several(std::integral_constant<int, 2>());
}

// Calls body(R) with `rows`, at most MAX_ROWS, as a constant.
template <typename Body>
ALWAYS_INLINE void with_rows(int64_t rows, const Body& body) {
  switch (rows) {
#define CASE(R) case R: if constexpr (R <= MAX_ROWS) body(std::integral_constant<int, R <= MAX_ROWS ? R : 1>()); break;
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
  }
}

// How many of `left` rows to compute together, at most `most`: whole tiles, and at the end two of similar size.
ALWAYS_INLINE int64_t rows_of_tile(int64_t left, int64_t most = MAX_ROWS) {
  return left <= most ? left : left >= 2 * most ? most : (left + 1) / 2;
}

// Any number of rows times any number of panels. x has row stride `xs` and y row stride `ys`; `bias` may be null.
template <typename K>
void product(const typename K::weight* weight, int64_t steps, int64_t stride, int64_t panels, const float* bias, const Units& units,
             const typename K::value* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode) {
  // A few panels at a time, so that they stay in the first-level cache while all rows are multiplied.
  constexpr int64_t GROUP = 4;
  for (int64_t p = 0; p < panels; p += GROUP) {
    const int64_t count = panels - p < GROUP ? panels - p : GROUP;
    for (int64_t done = 0; done < rows;) {
      const int64_t take = rows_of_tile(rows - done, K::most_rows);
      with_rows(take, [&](auto tile_rows) {
        rows_tile<K, decltype(tile_rows)::value>(
            weight + p * stride, steps, stride, count, past(bias, p * PANEL), Units{past(units.scale, p * PANEL), past(units.rows, done)},
            x + done * xs, xs, y + done * ys + p * PANEL, ys, mode);
      });
      done += take;
    }
  }
}

// Layer norm of a row.
inline void normalise(const float* x, int64_t size, const float* weight, const float* bias, float* y) {
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
    const vec v = (load(x + i) - mean) * scale;
    store(y + i, v * load(weight + i) + load(bias + i));
  }
}

}  // namespace
