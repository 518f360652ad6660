// Attention of a few queries over a cache.

#pragma once

#include "products.h"

namespace {

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

}  // namespace
