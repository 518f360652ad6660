// Attention of a few queries over a cache.

#pragma once

#include "products.h"

namespace {

// V vectors of the attention output of R queries: weighted sums of the values, multiplied by each query's `scale`.
template <int R, int V>
ALWAYS_INLINE void attend_values(const float* value, int64_t slots, int64_t size, int64_t first, int64_t groups,
                                 const float* weights, int64_t ws, const float* scale, float* out, int64_t os) {
  vec total[V][R] = {};
  for (int64_t g = 0; g < groups; g++) {
    const int64_t slot = (first + g * LANES) % slots;
    for (int i = 0; i < LANES; i++)
#pragma GCC unroll 2
      for (int v = 0; v < V; v++) {
        const vec x = load(value + (slot + i) * size + v * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) total[v][r] += weights[r * ws + g * LANES + i] * x;
      }
  }
  for (int v = 0; v < V; v++)
    for (int r = 0; r < R; r++) store(out + r * os + v * LANES, total[v][r] * scale[r]);
}

// Attention of R queries of one attention head. Keys are read in groups of LANES absolute positions; the first group
// holds `begin`. Query q sees positions from[q]..last[q]. The order of every sum is fixed. With few queries, the sums of
// several groups are interleaved, since each addition waits for the one before it.
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
  constexpr int G = R == 1 ? 4 : R <= 3 ? 2 : 1;
  for (int64_t g = 0; g < groups; g += G) {
    int64_t slot[G];
    // Past the last group, the last group is computed again and not stored.
    for (int i = 0; i < G; i++) slot[i] = (first + (g + i < groups ? g + i : groups - 1) * LANES) % slots;
    vec score[G][R] = {};
    for (int64_t d = 0; d < size; d++)
#pragma GCC unroll 4
      for (int i = 0; i < G; i++) {
        const vec k = load(key + d * slots + slot[i]);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) score[i][r] += query[r * qs + d] * k;
      }
    for (int i = 0; i < G && g + i < groups; i++) {
      const ivec place = lanes + (int32_t)(first + (g + i) * LANES);
      for (int r = 0; r < R; r++) {
        vec v = score[i][r];
        if (mask) v += load(mask + slot[i]);
        const ivec visible = (place >= (int32_t)from[r]) & (place <= (int32_t)last[r]);
        v = pick(visible, v, fill(-INFINITY));
        most[r] = pick(v > most[r], v, most[r]);
        store(weights + r * ws + (g + i) * LANES, v);
      }
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
  int64_t d = 0;
  if (R <= 6)
    for (; d + 2 * LANES <= size; d += 2 * LANES)
      attend_values<R, 2>(value + d, slots, size, first, groups, weights, ws, scale, out + d, os);
  for (; d < size; d += LANES)
    attend_values<R, 1>(value + d, slots, size, first, groups, weights, ws, scale, out + d, os);
}

// Attention of any number of queries of one attention head: see `attend`.
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

}  // namespace
