// The decoding step in one call: what superres/nn/step.py computes, for CPUs. superres/nn/compiled.py compiles it, native.py
// drives it.
//
// Every sum runs in an order that depends on the position alone, never on the step width, the batch or the number of
// threads. So a block of k tokens is scored bit for bit as the same tokens would be one at a time.
//
// A session's rows are dealt to teams of threads. A team of one needs no synchronisation; with fewer rows than threads,
// the threads of a team share the outputs of each product and meet at a barrier after it.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sched.h>
#include <vector>

#if defined(__AVX512BF16__) || defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#ifdef _OPENMP
#include <omp.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace {

constexpr int LANES = 16;
constexpr int PANEL = 2 * LANES;  // outputs that lie side by side in a packed weight
constexpr int MAX_ROWS = 12;      // rows of one register tile: 12 x 2 accumulators, and the registers are full
constexpr int MAX_TEAMS = 64;
constexpr float EPSILON = 1e-5f;  // of layer norm, as in torch

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

ALWAYS_INLINE vec load(const float* p) { vec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE uvec load(const uint32_t* p) { uvec v; std::memcpy(&v, p, sizeof v); return v; }
ALWAYS_INLINE void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
ALWAYS_INLINE vec fill(float x) { return x - vec{}; }
ALWAYS_INLINE vec pick(ivec mask, vec yes, vec no) { return mask ? yes : no; }

ALWAYS_INLINE float sum(vec v) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}
ALWAYS_INLINE float largest(vec v) {
  float m = v[0];
  for (int i = 1; i < LANES; i++) m = v[i] > m ? v[i] : m;
  return m;
}

// exp(x) for x <= 0 to within 2e-7 relative: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes expf).
ALWAYS_INLINE vec exponential(vec x) {
  x = pick(x < -87.0f, fill(-87.0f), x);
  const vec shifted = x * 1.44269504088896341f + 12582912.0f;  // rounds to a whole number in the low bits
  const vec n = shifted - 12582912.0f;
  vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vec p = fill(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const ivec bits = (__builtin_convertvector(n, ivec) + 127) << 23;
  return p * (vec)bits;
}

}  // namespace

extern "C" {

// y = x @ weight + bias. The weight is packed as [outputs / PANEL][inputs][PANEL], outputs padded with zeros; as bfloat16
// (half), two inputs of an output lie side by side: [outputs / PANEL][inputs / 2][PANEL][2].
struct Linear {
  int64_t inputs, panels, half;
  const void* weight;
  const float* bias;
};

// The output projection once more, in bytes: see `winners`.
struct Screen {
  const uint32_t* weight;  // [outputs / PANEL][inputs / 4][PANEL][4], signed; null where there is none
  const float *bias, *scale, *norm;  // of each output: bias, or -inf behind the last; what 1 stands for; sum of |weight|
  const int32_t* sum;                // of its bytes, 128 times
  float rounding;                    // of a row, in what 1 stands for there, at most
};

// Softmax attention over a cache: keys [row][head][size][slots], values [row][head][slots][size].
struct Cache {
  float *key, *value;
};

struct Layer {
  Linear projection, output, expand, contract, cross_query, cross_output;
  const float *norm_weight[3], *norm_bias[3];  // after attention, cross-attention, feed-forward; only where norm is "post"
  Cache self, cross;
};

struct Heads {
  int64_t count, size, adaptive, earlier;
  Linear expand, adapt;
  const Linear* contract;                    // of each head, without bias
  const float *bias, *norm_weight, *norm_bias;  // bias [count, D]
  const float *conditioning, *direct;        // [rows or 1, T, D]; [channels, count, N]
};

// The decoder's loop: see `LoopState` in superres/scoring.py.
struct Loop {
  int64_t block_size, room, stride;  // strides of `proposals` and `store`
  int64_t minimum, best, bound;      // best: a proposal passes among the `bound` best; else within `bound` of the best
  int64_t end_token;                 // -1 where there is none
  int64_t *position, *limit, *store, *proposals;
  int64_t *tokens, *place, *index, *first, *next, *winners;  // scratch
  float *hidden, *scores, *scratch;
};

struct Session {
  int64_t batch, width, length, size_d, attention_heads, filter, layers, vocabulary, channels, outputs;
  int64_t slots, block_length, cross_slots, pre, threads;
  int64_t stride;  // of a row of `projected`: 3 * D, or the outputs if they are more
  const Layer* layer;
  const float *final_weight, *final_bias;    // null where there is no final norm
  Linear project;
  Screen screen;
  // Input
  const float *token_table, *position_table;  // [V * channels + 1, D], [rows or 1, T, D]
  int64_t conditioned;                        // whether each row has a position table of its own
  const float* cross_mask;                    // [batch, cross_slots], 0 or -inf
  // Numeric neighbourhood; numbers is 0 without it
  int64_t numbers, near, cell_size, ordinal;
  const int64_t *near_table, *cell, *cell_positions;  // [T, near], [T], [T, cell_size]
  const float *estimate, *budget;                     // [batch, T], [batch, S]
  int64_t source_length;
  float* deviation;                                   // [batch, T + 2]
  Linear first, second;                               // `first` without bias
  const float *channel_bias, *direct;                 // [channels, filter], [channels, numbers]
  float residual_scale, initial_sharpness;
  Heads heads;
  double* seconds;  // [PARTS] to which the parts' times are added, or null
  // Scratch, a slice a row of the batch
  float *x, *normed, *wide, *attended, *weights, *gathered, *projected;
};

}  // extern "C"

namespace {

struct Team {
  int rank, size;
  volatile int* arrived;  // [2]: threads at the barrier, and its generation
  void meet() const {
    if (size == 1) return;
    const int generation = __atomic_load_n(&arrived[1], __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived[0], 1, __ATOMIC_ACQ_REL) == size) {
      __atomic_store_n(&arrived[0], 0, __ATOMIC_RELAXED);
      __atomic_store_n(&arrived[1], generation + 1, __ATOMIC_RELEASE);
      return;
    }
    for (int spins = 0; __atomic_load_n(&arrived[1], __ATOMIC_ACQUIRE) == generation; spins++)
      if (spins > 2000) sched_yield();  // somebody else needs the core
  }
  void share(int64_t count, int64_t& begin, int64_t& end) const {
    begin = count * rank / size;
    end = count * (rank + 1) / size;
  }
};

enum Part { INPUT, ATTENTION, FEED_FORWARD, SCORES };

// Adds the time since the last lap to a part of the session's clock; the first thread's time counts.
struct Clock {
  double* seconds;
  double last;
  static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
  }
  explicit Clock(double* seconds) : seconds(seconds), last(seconds ? now() : 0) {}
  void lap(Part part) {
    if (!seconds) return;
    const double time = now();
    seconds[part] += time - last;
    last = time;
  }
};

enum Mode { STORE, RELU, ADD };

// How a product reads rows and weights: `values` of a row at a time, and a weight for each of them.
struct Single {
  typedef float weight;
  typedef float value;
  typedef vec panel;
  static constexpr int values = 1;
  static ALWAYS_INLINE void add(vec& total, const float* x, panel w) { total += fill(*x) * w; }
};

#ifdef __AVX512BF16__
// Rows are bfloat16, too: the processor multiplies and adds a pair at a time.
struct Paired {
  typedef uint32_t weight;
  typedef uint32_t value;
  typedef uvec panel;
  static constexpr int values = 1;
  static ALWAYS_INLINE void add(vec& total, const uint32_t* x, panel w) {
    total = (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_set1_epi32((int)*x), (__m512bh)w);
  }
};

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
struct Paired {
  typedef uint32_t weight;
  typedef float value;
  typedef uvec panel;
  static constexpr int values = 2;
  static ALWAYS_INLINE void add(vec& total, const float* x, panel w) {
    total += fill(x[0]) * (vec)(w << 16);
    total += fill(x[1]) * (vec)(w & 0xffff0000u);
  }
};
#endif

template <typename K, int R, int P>
ALWAYS_INLINE void tile(const typename K::weight* weight, int64_t steps, const float* bias, const typename K::value* x,
                        int64_t xs, float* y, int64_t ys, Mode mode) {
  vec total[R][2 * P];
  for (int r = 0; r < R; r++)
    for (int p = 0; p < 2 * P; p++) total[r][p] = bias ? load(bias + p * LANES) : vec{};
  const int64_t stride = steps * PANEL;
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
      vec v = total[r][p];
      if (mode == RELU) v = pick(v > 0.0f, v, vec{});
      if (mode == ADD) v += load(out);
      store(out, v);
    }
}

constexpr int panels_of(int rows) { return rows <= 3 ? 4 : rows <= 6 ? 2 : 1; }

template <typename K, int R>
void rows_tile(const typename K::weight* weight, int64_t steps, int64_t panels, const float* bias,
               const typename K::value* x, int64_t xs, float* y, int64_t ys, Mode mode) {
  constexpr int P = panels_of(R);
  int64_t p = 0;
  for (; p + P <= panels; p += P)
    tile<K, R, P>(weight + p * steps * PANEL, steps, bias ? bias + p * PANEL : bias, x, xs, y + p * PANEL, ys, mode);
  for (; p < panels; p++)
    tile<K, R, 1>(weight + p * steps * PANEL, steps, bias ? bias + p * PANEL : bias, x, xs, y + p * PANEL, ys, mode);
}

template <typename K>
void product(const typename K::weight* weight, int64_t steps, int64_t panels, const float* bias,
             const typename K::value* x, int64_t xs, int64_t rows, float* y, int64_t ys, Mode mode) {
  // Few panels at a time, so that they stay in the first-level cache while all rows pass.
  constexpr int64_t GROUP = 4;
  for (int64_t p = 0; p < panels; p += GROUP) {
    const int64_t count = panels - p < GROUP ? panels - p : GROUP;
    const typename K::weight* w = weight + p * steps * PANEL;
    const float* b = bias ? bias + p * PANEL : bias;
    for (int64_t done = 0; done < rows;) {
      const int64_t left = rows - done;
      const typename K::value* from = x + done * xs;
      float* to = y + done * ys + p * PANEL;
      const int take = left > MAX_ROWS ? (left >= 2 * MAX_ROWS ? MAX_ROWS : (int)(left + 1) / 2) : (int)left;
      switch (take) {
#define CASE(R) case R: rows_tile<K, R>(w, steps, count, b, from, xs, to, ys, mode); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
      }
      done += take;
    }
  }
}

// Rows [rows, inputs] at distance xs to rows at distance ys; the team's threads share the outputs.
void apply(const Linear& linear, const Team& team, const float* x, int64_t xs, int64_t rows, float* y, int64_t ys,
           Mode mode) {
  int64_t begin, end;
  team.share(linear.panels, begin, end);
  if (begin == end) return;
  const int64_t steps = linear.half ? linear.inputs / 2 : linear.inputs, start = begin * steps * PANEL;
  const float* bias = linear.bias ? linear.bias + begin * PANEL : nullptr;
  y += begin * PANEL;
  if (!linear.half) {
    product<Single>((const float*)linear.weight + start, steps, end - begin, bias, x, xs, rows, y, ys, mode);
    return;
  }
  const uint32_t* weight = (const uint32_t*)linear.weight + start;
#ifdef __AVX512BF16__
  product<Paired>(weight, steps, end - begin, bias, paired(x, xs, rows, linear.inputs), steps, rows, y, ys, mode);
#else
  product<Paired>(weight, steps, end - begin, bias, x, xs, rows, y, ys, mode);
#endif
}

// Layer norm of a row; without weight and bias where these are folded into the next product.
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

// What R queries of one attention head see. Keys are taken in groups of LANES at absolute positions, the first of which
// holds `begin`; a query q sees those from from[q] to last[q].
template <int R>
void attend(const float* query, int64_t qs, const float* key, const float* value, int64_t slots, int64_t size,
            int64_t begin, int64_t end, const int64_t* from, const int64_t* last, const float* mask, float* weights,
            int64_t ws, float* out, int64_t os) {
  const int64_t first = begin / LANES * LANES;
  const int64_t groups = (end - first) / LANES + 1;
  ivec lanes;
  for (int i = 0; i < LANES; i++) lanes[i] = i;
  vec most[R];
  for (int r = 0; r < R; r++) most[r] = fill(-INFINITY);
  for (int64_t g = 0; g < groups; g++) {
    const int64_t position = first + g * LANES, slot = position % slots;
    vec score[R] = {};
    for (int64_t d = 0; d < size; d++) {
      const vec k = load(key + d * slots + slot);
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) score[r] += query[r * qs + d] * k;
    }
    const ivec place = lanes + (int32_t)position;
    for (int r = 0; r < R; r++) {
      if (mask) score[r] += load(mask + slot);
      const ivec visible = (place >= (int32_t)from[r]) & (place <= (int32_t)last[r]);
      score[r] = pick(visible, score[r], fill(-INFINITY));
      most[r] = pick(score[r] > most[r], score[r], most[r]);
      store(weights + r * ws + g * LANES, score[r]);
    }
  }
  float scale[R];
  for (int r = 0; r < R; r++) {
    const float top = largest(most[r]);
    vec total{};
    for (int64_t g = 0; g < groups; g++) {
      float* place = weights + r * ws + g * LANES;
      const vec score = load(place);
      const vec e = pick(score > -INFINITY, exponential(score - top), vec{});
      total += e;
      store(place, e);
    }
    scale[r] = 1.0f / sum(total);
  }
  for (int64_t d = 0; d < size; d += LANES) {
    vec total[R] = {};
    for (int64_t g = 0; g < groups; g++) {
      const int64_t slot = (first + g * LANES) % slots;
      for (int i = 0; i < LANES; i++) {
        const vec v = load(value + (slot + i) * size + d);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) total[r] += weights[r * ws + g * LANES + i] * v;
      }
    }
    for (int r = 0; r < R; r++) store(out + r * os + d, total[r] * scale[r]);
  }
}

void attend_rows(int64_t rows, const float* query, int64_t qs, const float* key, const float* value, int64_t slots,
                 int64_t size, const int64_t* from, const int64_t* last, const float* mask, float* weights, int64_t ws,
                 float* out, int64_t os) {
  for (int64_t done = 0; done < rows;) {
    const int64_t left = rows - done;
    const int take = left > MAX_ROWS ? (left >= 2 * MAX_ROWS ? MAX_ROWS : (int)(left + 1) / 2) : (int)left;
    const int64_t *f = from + done, *l = last + done;
    switch (take) {
#define CASE(R) case R: attend<R>(query + done * qs, qs, key, value, slots, size, f[0], l[R - 1], f, l, mask, \
                                  weights + done * ws, ws, out + done * os, os); break;
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
    }
    done += take;
  }
}

// The rows of one team: batch rows [begin, end), their W columns each.
struct Rows {
  const Session& s;
  const Team& team;
  int64_t begin, end;
  const int64_t *tokens, *position;

  int64_t count() const { return (end - begin) * s.width; }
  float* of(float* scratch, int64_t stride) const { return scratch + begin * s.width * stride; }
  int64_t place(int64_t b, int64_t w) const { return position[b] + w; }
  int64_t inside(int64_t b, int64_t w) const { return place(b, w) < s.length ? place(b, w) : s.length - 1; }

  // Normalises all rows of the team into `normed`; every thread does so for itself, which spares a barrier.
  const float* normed(const float* x, float* scratch, const float* weight, const float* bias) const {
    for (int64_t r = 0; r < count(); r++) normalise(x + r * s.size_d, s.size_d, weight, bias, scratch + r * s.size_d);
    return scratch;
  }

  void embed(float* x) const {
    const int64_t D = s.size_d;
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, x += D) {
        const int64_t before = place(b, w) - 1;
        const int64_t row = before < 0 ? s.vocabulary * s.channels : tokens[b * s.width + w] + before % s.channels * s.vocabulary;
        const float* table = s.position_table + ((s.conditioned ? b * s.length : 0) + inside(b, w)) * D;
        for (int64_t i = 0; i < D; i += LANES) store(x + i, load(s.token_table + row * D + i) + load(table + i));
        if (s.numbers && before >= 0 && before < s.length) {
          const float estimate = s.estimate[b * s.length + before];
          s.deviation[b * (s.length + 2) + before] = (tokens[b * s.width + w] - estimate) / s.residual_scale;
        }
      }
  }

  // The numbers of a target: deviations of its neighbours, then its cell's remainder at the place of its pixels left.
  void gather(int64_t b, int64_t place, float* numbers) const {
    const float* deviation = s.deviation + b * (s.length + 2);
    for (int64_t i = 0; i < s.near; i++) numbers[i] = deviation[s.near_table[place * s.near + i]];
    if (!s.cell_size) return;
    float spent = 0;
    int64_t left = s.cell_size;
    for (int64_t i = 0; i < s.cell_size; i++) {
      const int64_t pixel = s.cell_positions[place * s.cell_size + i];
      if (pixel < place) spent += deviation[pixel], left--;
      numbers[s.near + i] = 0;
    }
    numbers[s.near + left - 1] = (s.budget[b * s.source_length + s.cell[place]] - spent) / left;
  }

  void neighbourhood(float* x) const {
    float* numbers = of(s.gathered, s.numbers);
    float* wide = of(s.wide, s.filter);
    if (team.rank == 0)
      for (int64_t b = begin; b < end; b++)
        for (int64_t w = 0; w < s.width; w++) gather(b, inside(b, w), numbers + ((b - begin) * s.width + w) * s.numbers);
    team.meet();
    apply(s.first, team, numbers, s.numbers, count(), wide, s.filter, STORE);
    int64_t from, to;
    team.share(s.first.panels, from, to);
    for (int64_t b = begin, r = 0; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, r++) {
        const float* bias = s.channel_bias + inside(b, w) % s.channels * s.filter;
        for (int64_t i = from * PANEL; i < to * PANEL; i += LANES) {
          const vec v = load(wide + r * s.filter + i) + load(bias + i);
          store(wide + r * s.filter + i, pick(v > 0.0f, v, vec{}));
        }
      }
    team.meet();
    apply(s.second, team, wide, s.filter, count(), x, s.size_d, ADD);
    team.meet();
  }

  void write(const Cache& cache, const float* projected) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    int64_t first, last;
    team.share(s.attention_heads, first, last);
    for (int64_t b = begin; b < end; b++)
      for (int64_t w = 0; w < s.width; w++) {
        const float* row = projected + ((b - begin) * s.width + w) * s.stride;
        const int64_t slot = place(b, w) % s.slots;
        for (int64_t h = first; h < last; h++) {
          const int64_t start = (b * s.attention_heads + h) * s.slots * size;
          for (int64_t i = 0; i < size; i++) cache.key[start + i * s.slots + slot] = row[D + h * size + i];
          std::memcpy(cache.value + start + slot * size, row + 2 * D + h * size, size * sizeof(float));
        }
      }
  }

  // Each thread writes and reads the cache of its own attention heads.
  void self_attention(const Layer& layer, const float* projected, float* out) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    write(layer.self, projected);
    int64_t first, last, *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    team.share(s.attention_heads, first, last);
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    for (int64_t b = begin; b < end; b++) {
      for (int64_t w = 0; w < s.width; w++) {
        to[w] = place(b, w);
        const int64_t start = (to[w] / s.block_length - 1) * s.block_length;
        from[w] = start > 0 ? start : 0;
      }
      for (int64_t h = first; h < last; h++) {
        const int64_t start = (b * s.attention_heads + h) * s.slots * size, row = (b - begin) * s.width;
        attend_rows(s.width, projected + row * s.stride + h * size, s.stride, layer.self.key + start, layer.self.value + start,
                    s.slots, size, from, to, nullptr, s.weights + (b * s.attention_heads + h) * s.width * stride, stride,
                    out + row * D + h * size, D);
      }
    }
  }

  void cross_attention(const Layer& layer, const float* query, float* out) const {
    const int64_t D = s.size_d, size = D / s.attention_heads;
    int64_t first, last, *from = (int64_t*)__builtin_alloca(2 * s.width * sizeof(int64_t)), *to = from + s.width;
    team.share(s.attention_heads, first, last);
    const int64_t stride = s.slots > s.cross_slots ? s.slots : s.cross_slots;
    for (int64_t w = 0; w < s.width; w++) from[w] = 0, to[w] = s.cross_slots - 1;
    for (int64_t b = begin; b < end; b++)
      for (int64_t h = first; h < last; h++) {
        const int64_t start = (b * s.attention_heads + h) * s.cross_slots * size, row = (b - begin) * s.width;
        attend_rows(s.width, query + row * D + h * size, D, layer.cross.key + start, layer.cross.value + start,
                    s.cross_slots, size, from, to, s.cross_mask + b * s.cross_slots,
                    s.weights + (b * s.attention_heads + h) * s.width * stride, stride, out + row * D + h * size, D);
      }
  }

  // The norm after a sub-layer, where norm is "post".
  void after(const Layer& layer, int sublayer, float* x) const {
    if (s.pre) return;
    if (team.rank == 0) normed(x, x, layer.norm_weight[sublayer], layer.norm_bias[sublayer]);
    team.meet();
  }

  // Thread-private room for normalised rows: the barriers allow no thread to be a whole sub-layer ahead of another.
  float* own() const { return s.normed + team.rank * s.batch * s.width * s.size_d + begin * s.width * s.size_d; }

  const float* before(const float* x) const { return s.pre ? normed(x, own(), nullptr, nullptr) : x; }

  void run(const Layer& layer, float* x, Clock& clock) const {
    const int64_t D = s.size_d, n = count();
    float *wide = of(s.wide, s.filter), *projected = of(s.projected, s.stride), *attended = of(s.attended, D);
    apply(layer.projection, team, before(x), D, n, projected, s.stride, STORE);
    team.meet();
    self_attention(layer, projected, attended);
    team.meet();
    apply(layer.output, team, attended, D, n, x, D, ADD);
    team.meet();
    after(layer, 0, x);
    if (s.cross_slots) {
      apply(layer.cross_query, team, before(x), D, n, projected, D, STORE);
      team.meet();
      cross_attention(layer, projected, attended);
      team.meet();
      apply(layer.cross_output, team, attended, D, n, x, D, ADD);
      team.meet();
      after(layer, 1, x);
    }
    clock.lap(ATTENTION);
    apply(layer.expand, team, before(x), D, n, wide, s.filter, RELU);
    team.meet();
    apply(layer.contract, team, wide, s.filter, n, x, D, ADD);
    team.meet();
    after(layer, 2, x);
    clock.lap(FEED_FORWARD);
  }
};

ALWAYS_INLINE float dot(const float* a, const float* b, int64_t count) {
  float total = 0;
  for (int64_t i = 0; i < count; i++) total += a[i] * b[i];
  return total;
}

ALWAYS_INLINE float slope_of(const Session& s, const float* projected) {
  float sharpness = projected[s.outputs - 1] + s.initial_sharpness;
  sharpness = sharpness < -7.0f ? -7.0f : sharpness > 3.0f ? 3.0f : sharpness;
  return std::exp(sharpness);
}

// The scores [V] of intensities around mu, with the free scores where there are any.
ALWAYS_INLINE void scores_around(const Session& s, float mu, float slope, const float* projected, float* scores) {
  const bool free_scores = s.outputs > 2;
  for (int64_t v = 0; v < s.vocabulary; v++) {
    const float score = -slope * std::fabs((float)v - mu);
    scores[v] = free_scores ? score + projected[v] : score;
  }
}

ALWAYS_INLINE int64_t within(const Session& s, int64_t position) { return position < s.length ? position : s.length - 1; }

// Where a row of the batch makes proposals: p1's target and the numbers around it.
struct Row {
  const Session& s;
  int64_t b, place;
  const float* numbers;

  // The scores [V] of head p(h + 2). A sequential head reads p1's token `first` and the `tokens` of the heads before it.
  void score(int64_t h, const float* projected, const float* linear, int64_t first, const int64_t* tokens,
             float* scores) const {
    if (!s.ordinal) {
      std::memcpy(scores, projected, s.vocabulary * sizeof(float));
      return;
    }
    const Heads& heads = s.heads;
    const float* estimate = s.estimate + b * s.length;
    float mu = estimate[within(s, place + h + 1)] + projected[s.outputs - 2] * s.residual_scale;
    if (s.numbers) {
      float deviation = dot(numbers, heads.direct + (place % s.channels * heads.count + h) * s.numbers, s.numbers);
      if (heads.adaptive) deviation += dot(numbers, linear, s.numbers);
      mu += deviation * s.residual_scale;
    }
    for (int64_t e = 0; e <= h && e < heads.earlier; e++)
      mu += linear[s.numbers + e] * ((e ? tokens[e - 1] : first) - estimate[within(s, place + e)]);
    scores_around(s, mu, slope_of(s, projected), projected, scores);
  }
};

// argmax, the first of equals.
ALWAYS_INLINE int64_t largest_of(const float* scores, int64_t count) {
  vec most = fill(-INFINITY);
  ivec place, where{};
  for (int i = 0; i < LANES; i++) place[i] = i;
  int64_t v = 0;
  for (; v + LANES <= count; v += LANES, place += LANES) {
    const vec score = load(scores + v);
    const ivec better = score > most;
    most = pick(better, score, most);
    where = better ? place : where;
  }
  float top = -INFINITY;
  int64_t winner = 0;
  for (int i = 0; i < LANES; i++)
    if (most[i] > top || (most[i] == top && where[i] < winner)) top = most[i], winner = where[i];
  for (; v < count; v++)
    if (scores[v] > top) top = scores[v], winner = v;
  return winner;
}

// argmax(scores / temperature + noise); greedy where both are null.
ALWAYS_INLINE int64_t best(const Session& s, float* scores, const float* temperature, const float* noise) {
  if (noise)
    for (int64_t v = 0; v < s.vocabulary; v++) scores[v] = scores[v] / *temperature + noise[v];
  return largest_of(scores, s.vocabulary);
}

// The output projection of `count` states: by the team where the vocabulary is large, by its first thread where meeting
// would take longer than a few hundred outputs.
void project(const Session& s, const Team& team, const float* states, int64_t count, float* projected) {
  const bool together = s.project.panels >= 64;
  if (together) team.meet();
  if (together || team.rank == 0)
    apply(s.project, together ? team : Team{0, 1, nullptr}, states, s.size_d, count, projected, s.stride, STORE);
  if (together) team.meet();
}

#ifdef __AVX512VNNI__
// States as bytes, four inputs a word, 128 added; for each state what 1 stands for, and the sum of magnitudes.
struct Bytes {
  std::vector<uint32_t> words;
  std::vector<float> scale, norm;

  void read(const float* states, int64_t count, int64_t size) {
    words.resize(count * size / 4);
    scale.resize(count);
    norm.resize(count);
    uint8_t* out = (uint8_t*)words.data();
    for (int64_t r = 0; r < count; r++, states += size, out += size) {
      vec most{};
      for (int64_t i = 0; i < size; i += LANES) {
        const vec x = load(states + i);
        most = pick(x > most, x, most);
        most = pick(-x > most, -x, most);
      }
      scale[r] = largest(most) / 127;
      const float by = scale[r] > 0 ? 1 / scale[r] : 0;
      int64_t total = 0;
      for (int64_t i = 0; i < size; i++) {
        const int x = (int)std::nearbyint(states[i] * by);
        out[i] = (uint8_t)(x + 128);
        total += x < 0 ? -x : x;
      }
      norm[r] = total * scale[r];
    }
  }
};

template <int R>
void screen_tile(const Screen& screen, int64_t steps, int64_t panel, const uint32_t* x, const float* scale, float* y,
                 int64_t ys) {
  __m512i total[R][2];
  for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm512_setzero_si512();
  const uint32_t* weight = screen.weight + panel * steps * PANEL;
  for (int64_t i = 0; i < steps; i++, weight += PANEL) {
    const __m512i low = (__m512i)load(weight), high = (__m512i)load(weight + LANES);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const __m512i value = _mm512_set1_epi32((int)x[r * steps + i]);
      total[r][0] = _mm512_dpbusd_epi32(total[r][0], value, low);
      total[r][1] = _mm512_dpbusd_epi32(total[r][1], value, high);
    }
  }
  for (int r = 0; r < R; r++)
    for (int p = 0; p < 2; p++) {
      const int64_t at = panel * PANEL + p * LANES;
      ivec offset;
      std::memcpy(&offset, screen.sum + at, sizeof offset);
      const vec sum = __builtin_convertvector((ivec)total[r][p] - offset, vec);
      store(y + r * ys + at, load(screen.bias + at) + sum * (load(screen.scale + at) * scale[r]));
    }
}

// The first of the largest scores of a state, of which `rough` is known.
int64_t winner(const Session& s, const float* state, float scale, float norm, const float* rough) {
  const Screen& screen = s.screen;
  const int64_t bytes = s.project.inputs * PANEL * (s.project.half ? 2 : 4);
  const auto error = [&](int64_t v) {
    return load(screen.norm + v) * (screen.rounding * scale) + load(screen.scale + v) * (0.51f * norm);
  };
  vec least = fill(-INFINITY);
  for (int64_t v = 0; v < s.project.panels * PANEL; v += LANES) {
    const vec score = load(rough + v) - error(v);
    least = pick(score > least, score, least);
  }
  const float bar = largest(least);
  float top = -INFINITY, scores[PANEL];
  int64_t found = 0;
  for (int64_t p = 0; p < s.project.panels; p++) {
    const int64_t v = p * PANEL;
    const ivec low = load(rough + v) + error(v) >= bar, high = load(rough + v + LANES) + error(v + LANES) >= bar;
    if (!_mm512_test_epi32_mask((__m512i)(low | high), (__m512i)(low | high))) continue;
    Linear one = s.project;
    one.panels = 1;
    one.weight = (const char*)one.weight + p * bytes;
    one.bias += v;
    apply(one, Team{0, 1, nullptr}, state, s.size_d, 1, scores, PANEL, STORE);
    for (int64_t i = 0; i < PANEL && v + i < s.vocabulary; i++)
      if (scores[i] > top) top = scores[i], found = v + i;
  }
  return found;
}

// The argmax of the output projection of each of `count` states, the first of equals: just that of `project`. Products of
// bytes tell every score to within an error that is bounded; only panels that may hold the largest are computed.
void winners(const Session& s, const Team& team, const float* states, int64_t count, float* rough, int64_t* tokens) {
  static thread_local Bytes bytes;
  team.meet();
  bytes.read(states, count, s.size_d);
  const int64_t steps = s.size_d / 4;
  int64_t begin, end;
  team.share(s.project.panels, begin, end);
  for (int64_t p = begin; p < end; p++)
    for (int64_t done = 0; done < count;) {
      const int64_t take = count - done < MAX_ROWS ? count - done : MAX_ROWS;
      const uint32_t* x = bytes.words.data() + done * steps;
      const float* scale = bytes.scale.data() + done;
      float* y = rough + done * s.stride;
      switch (take) {
#define CASE(R) case R: screen_tile<R>(s.screen, steps, p, x, scale, y, s.stride); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
      }
      done += take;
    }
  team.meet();
  team.share(count, begin, end);
  for (int64_t r = begin; r < end; r++)
    tokens[r] = winner(s, states + r * s.size_d, bytes.scale[r], bytes.norm[r], rough + r * s.stride);
  team.meet();
}
#else
void winners(const Session&, const Team&, const float*, int64_t, float*, int64_t*) {}
#endif

// Whether the winners of verified tokens are all that an iteration needs.
ALWAYS_INLINE bool screened(const Session& s, const Loop& l) { return s.screen.weight && !l.best; }

ALWAYS_INLINE int64_t chosen(const Session& s, const Loop& l, int64_t b, int64_t column) {
  const int64_t r = b * s.width + column;
  return screened(s, l) ? l.winners[r] : largest_of(l.scores + r * s.vocabulary, s.vocabulary);
}

// Whether the proposal at a column passes by the scores at the one before.
ALWAYS_INLINE bool passes(const Session& s, const Loop& l, int64_t b, int64_t column) {
  const int64_t token = l.tokens[b * s.width + column];
  if (!l.best) return std::llabs(token - chosen(s, l, b, column - 1)) <= l.bound;
  const float* scores = l.scores + (b * s.width + column - 1) * s.vocabulary;
  int64_t better = 0;
  for (int64_t v = 0; v < s.vocabulary; v++) better += scores[v] > scores[token];
  return better < l.bound;
}

// Accepts a row's proposals, commits them, moves on, and chooses p1's token there; the heads' follow later.
void advance(const Session& s, const Loop& l, int64_t b, int64_t* record) {
  const int64_t start = l.position[b], room = start < 0 ? 1 : l.limit[b] - start;
  const int64_t* tokens = l.tokens + b * s.width;
  int64_t accepted = 1;
  while (accepted < l.block_size && accepted < room && passes(s, l, b, accepted)) accepted++;
  if (accepted < l.minimum) accepted = l.minimum;
  if (accepted > room) accepted = room;
  for (int64_t i = 0; i < accepted; i++)
    if (tokens[i] == l.end_token) {
      accepted = i + 1;
      l.limit[b] = start + accepted;
    }
  std::memcpy(l.store + b * l.stride + l.place[b], tokens, s.width * sizeof(int64_t));
  int64_t* proposals = l.proposals + b * l.room;
  record[0] = start;
  record[1] = accepted;
  std::memcpy(record + 2, proposals, l.room * sizeof(int64_t));
  l.position[b] = start + accepted;
  l.index[b] = accepted > 0 ? accepted - 1 : 0;
  l.first[b] = chosen(s, l, b, l.index[b]);
  for (int64_t i = 0; i < s.width; i++) proposals[i] = l.first[b];
}

template <typename Body>
void in_teams(const Session& s, Body body) {
  volatile int arrived[MAX_TEAMS][16] = {};  // a cache line each
  const auto work = [&](int thread, int threads) {
    const int most = s.batch < MAX_TEAMS ? (int)s.batch : MAX_TEAMS;
    const int teams = most < threads ? most : threads, size = threads / teams, number = thread / size;
    if (number >= teams) return;  // the threads do not come out even
    const Team team{thread % size, size, arrived[number]};
    body(team, s.batch * number / teams, s.batch * (number + 1) / teams);
  };
#ifdef _OPENMP
#pragma omp parallel num_threads((int)s.threads)
  work(omp_get_thread_num(), omp_get_num_threads());  // there may be fewer than asked for
#else
  work(0, 1);
#endif
}

// Reads tokens [B, W] at positions [B] + 0..W-1; see `superres_step`. Writes the argmax of each column's scores in place of
// them where `winning` [B, W] is not null.
void step(const Session& s, const int64_t* tokens, const int64_t* position, float* hidden, float* scores, int64_t* winning) {
  in_teams(s, [&](const Team& team, int64_t begin, int64_t end) {
    const Rows rows{s, team, begin, end, tokens, position};
    Clock clock(team.rank || begin ? nullptr : s.seconds);
    float* x = rows.of(s.x, s.size_d);
    if (team.rank == 0) rows.embed(x);
    if (s.numbers) rows.neighbourhood(x);
    else team.meet();
    clock.lap(INPUT);
    for (int64_t l = 0; l < s.layers; l++) rows.run(s.layer[l], x, clock);
    float* states = rows.of(hidden, s.size_d);
    if (team.rank == 0) {
      if (s.final_weight) rows.normed(x, states, s.final_weight, s.final_bias);
      else std::memcpy(states, x, rows.count() * s.size_d * sizeof(float));
    }
    float* projected = rows.of(s.projected, s.stride);
    if (winning) {
      winners(s, team, states, rows.count(), projected, winning + begin * s.width);
      clock.lap(SCORES);
      return;
    }
    project(s, team, states, rows.count(), projected);
    if (team.rank != 0) return;  // what is left is small
    for (int64_t b = begin, r = begin * s.width; b < end; b++)
      for (int64_t w = 0; w < s.width; w++, r++) {
        const float* out = projected + (r - begin * s.width) * s.stride;
        if (!s.ordinal) {
          std::memcpy(scores + r * s.vocabulary, out, s.vocabulary * sizeof(float));
          continue;
        }
        const int64_t target = rows.inside(b, w);
        float mu = s.estimate[b * s.length + target] + out[s.outputs - 2] * s.residual_scale;
        if (s.numbers)
          mu += dot(s.gathered + r * s.numbers, s.direct + target % s.channels * s.numbers, s.numbers) * s.residual_scale;
        scores_around(s, mu, slope_of(s, out), out, scores + r * s.vocabulary);
      }
    clock.lap(SCORES);
  });
}

}  // namespace

extern "C" {

// Whether the processor has what a `Screen` needs.
int64_t superres_screens() {
#ifdef __AVX512VNNI__
  return 1;
#else
  return 0;
#endif
}

// Reads tokens [B, W] at positions [B] + 0..W-1; writes p1's scores [B, W, V] and the hidden states [B, W, D], and where
// there is a numeric neighbourhood its numbers into `gathered` [B, W, N].
void superres_step(const Session* session, const int64_t* tokens, const int64_t* position, float* hidden, float* scores) {
  step(*session, tokens, position, hidden, scores, nullptr);
}

// Floats of scratch that `superres_propose` needs for a row.
int64_t superres_propose_room(const Session* session, int64_t count) {
  const Heads& heads = session->heads;
  const int64_t adapted = heads.adapt.panels * PANEL;
  return session->size_d + heads.count * heads.size + count * (session->size_d + adapted + session->stride) + session->vocabulary;
}

// Proposes `count` tokens a row with heads p2.. at step column index[b]: argmax(scores / temperature + noise), in order.
// temperature [B, count] and noise [B, count, V] may be null for greedy choices. first is p1's token [B].
void superres_propose(const Session* session, const int64_t* position, const int64_t* index, const int64_t* first,
                      int64_t count, const float* hidden, const float* temperature, const float* noise, float* scratch,
                      int64_t* tokens) {
  const Session& s = *session;
  const Heads& heads = s.heads;
  const int64_t D = s.size_d, wide = heads.count * heads.size, adapted = heads.adapt.panels * PANEL;
  const int64_t room = superres_propose_room(session, count);
  in_teams(s, [&](const Team& team, int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    float *here = scratch + begin * room, *inner = here + rows * D, *states = inner + rows * wide;
    float *linear = states + rows * count * D, *projected = linear + rows * count * adapted, *scores = projected + rows * count * s.stride;
    if (team.rank == 0)
      for (int64_t b = begin; b < end; b++)
        std::memcpy(here + (b - begin) * D, hidden + (b * s.width + index[b]) * D, D * sizeof(float));
    team.meet();
    Linear expand = heads.expand;
    expand.panels = (count * heads.size + PANEL - 1) / PANEL;
    apply(expand, team, here, D, rows, inner, wide, RELU);
    team.meet();
    int64_t from, to;
    team.share(count, from, to);
    const Team alone{0, 1, nullptr};
    for (int64_t h = from; h < to; h++) {
      for (int64_t r = 0; r < rows; r++) std::memcpy(states + (r * count + h) * D, heads.bias + h * D, D * sizeof(float));
      apply(heads.contract[h], alone, inner + h * heads.size, wide, rows, states + h * D, count * D, ADD);
      for (int64_t b = begin; b < end; b++) {
        float* state = states + ((b - begin) * count + h) * D;
        const float* vectors = heads.conditioning;
        const int64_t target = within(s, position[b] + index[b] + h + 1);
        if (vectors) vectors += ((s.conditioned ? b * s.length : 0) + target) * D;
        for (int64_t i = 0; i < D; i += LANES) {
          const vec v = load(state + i) + load(here + (b - begin) * D + i);
          store(state + i, vectors ? v + load(vectors + i) : v);
        }
        normalise(state, D, heads.norm_weight, heads.norm_bias, state);
      }
    }
    if (s.screen.weight && !noise) {
      winners(s, team, states, rows * count, projected, tokens + begin * count);
      return;
    }
    team.meet();
    project(s, team, states, rows * count, projected);
    if (team.rank != 0) return;  // what is left is small
    if (heads.adaptive) apply(heads.adapt, alone, states, D, rows * count, linear, adapted, STORE);
    for (int64_t b = begin; b < end; b++) {
      const Row row{s, b, within(s, position[b] + index[b]), s.gathered + (b * s.width + index[b]) * s.numbers};
      for (int64_t h = 0; h < count; h++) {
        const int64_t r = (b - begin) * count + h;
        row.score(h, projected + r * s.stride, linear + r * adapted, first[b], tokens + b * count, scores);
        tokens[b * count + h] = best(s, scores, temperature ? temperature + b * count + h : nullptr,
                                     noise ? noise + (b * count + h) * s.vocabulary : nullptr);
      }
    }
  });
}

// Does up to `count` iterations of greedy decoding as superres/decoding/loop.py does them, until all rows are
// complete, and returns how many. Writes position, accepted tokens and proposals of each to `record` [count, B, 2 + room].
int64_t superres_iterate(const Session* session, const Loop* loop, int64_t count, int64_t* record) {
  const Session& s = *session;
  const Loop& l = *loop;
  for (int64_t n = 0; n < count; n++, record += s.batch * (2 + l.room)) {
    bool complete = true;
    for (int64_t b = 0; b < s.batch; b++) {
      complete = complete && l.position[b] >= l.limit[b];
      l.place[b] = l.position[b] + 1;
      std::memcpy(l.tokens + b * s.width, l.proposals + b * l.room, s.width * sizeof(int64_t));
    }
    if (complete) return n;
    step(s, l.tokens, l.place, l.hidden, l.scores, screened(s, l) ? l.winners : nullptr);
    in_teams(s, [&](const Team& team, int64_t begin, int64_t end) {
      if (team.rank == 0)
        for (int64_t b = begin; b < end; b++) advance(s, l, b, record + b * (2 + l.room));
    });
    const int64_t more = l.block_size - 1;
    if (!more) continue;
    superres_propose(session, l.place, l.index, l.first, more, l.hidden, nullptr, nullptr, l.scratch, l.next);
    for (int64_t b = 0; b < s.batch; b++)
      std::memcpy(l.proposals + b * l.room + 1, l.next + b * more, more * sizeof(int64_t));
  }
  return count;
}

}  // extern "C"
