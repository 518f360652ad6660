// Attention of a few queries over a cache.

#pragma once

#include "kernels/products.h"
#include "runtime/scratch.h"

namespace {

// One attention head's part of a cache. As float32: keys [size][slots], values [slots][size]. With scales, as bytes: keys
// [size / 4][slots][4], values [slots / 4][size][4].
struct HeadCache {
  const void *key, *value;
  const float *key_scale, *value_scale;  // [slots], what one unit stands for; null for float32
};

// What the product of a query and a key of `size` numbers is multiplied by (Vaswani et al. 2017, section 3.2.1).
ALWAYS_INLINE float score_unit(int64_t size) { return 1.0f / std::sqrt((float)size); }

// The slot of the ring that follows a group of LANES slots.
ALWAYS_INLINE int64_t next_slot(int64_t slot, int64_t slots) { return slot + LANES == slots ? 0 : slot + LANES; }

// Turns scores [groups * LANES] into exp(score - the largest score), given the largest scores of each lane. Returns 1 / their
// sum.
ALWAYS_INLINE float softmax(float* scores, int64_t groups, vec most) {
  const float top = largest(most);
  vec total{};
  for (int64_t g = 0; g < groups; g++) {
    const vec score = load(scores + g * LANES);
    const vec e = pick(score > -INFINITY, exponential(score - top), vec{});
    total += e;
    store(scores + g * LANES, e);
  }
  return 1.0f / sum(total);
}

// Whether query r sees each of LANES positions.
ALWAYS_INLINE ivec visible(int64_t position, int64_t from, int64_t last) {
  const ivec place = numbers() + (int32_t)position;
  return (place >= (int32_t)from) & (place <= (int32_t)last);
}

// Calls body(d, vectors) for the outputs [d, d + vectors * LANES) of an attention head: two vectors together where the
// accumulators of R queries fit the registers.
template <int R, typename Body>
ALWAYS_INLINE void by_vectors(int64_t size, const Body& body) {
  int64_t d = 0;
  if (vectors_of(R) >= 2)
    for (; d + 2 * LANES <= size; d += 2 * LANES) body(d, std::integral_constant<int, 2>());
  for (; d < size; d += LANES) body(d, std::integral_constant<int, 1>());
}

// V vectors of the attention output of R queries: weighted sums of the values, multiplied by each query's `scale`.
template <int R, int V>
ALWAYS_INLINE void attend_values(const float* value, int64_t slots, int64_t size, int64_t first, int64_t groups,
                                 const float* weights, int64_t ws, const float* scale, float* out, int64_t os) {
  vec total[V][R] = {};
  for (int64_t g = 0; g < groups; g++) {
    const int64_t slot = (first + g * LANES) % slots;
    for (int i = 0; i < LANES; i++) {
      UNROLL for (int v = 0; v < V; v++) {
        const vec x = load(value + (slot + i) * size + v * LANES);
        UNROLL for (int r = 0; r < R; r++) total[v][r] = fused(fill(weights[r * ws + g * LANES + i]), x, total[v][r]);
      }
    }
  }
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int r = 0; r < R; r++) store(out + r * os + v * LANES, total[v][r] * scale[r]);
  }
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
  const float unit = score_unit(size);
  vec most[R];
  for (int r = 0; r < R; r++) most[r] = fill(-INFINITY);
  constexpr int G = R == 1 ? 4 : R <= 3 ? 2 : 1;
  for (int64_t g = 0; g < groups; g += G) {
    int64_t slot[G];
    // Past the last group, the last group is computed again and not stored.
    for (int i = 0; i < G; i++) slot[i] = (first + (g + i < groups ? g + i : groups - 1) * LANES) % slots;
    vec score[G][R] = {};
    for (int64_t d = 0; d < size; d++) {
      UNROLL for (int i = 0; i < G; i++) {
        const vec k = load(key + d * slots + slot[i]);
        UNROLL for (int r = 0; r < R; r++) score[i][r] = fused(fill(query[r * qs + d]), k, score[i][r]);
      }
    }
    UNROLL for (int i = 0; i < G; i++) {
      if (g + i == groups) break;
      UNROLL for (int r = 0; r < R; r++) {
        vec v = score[i][r] * unit;
        if (mask) v += load(mask + slot[i]);
        const int64_t position = first + (g + i) * LANES;
        if (position < from[r] || position + LANES - 1 > last[r]) v = pick(visible(position, from[r], last[r]), v, fill(-INFINITY));
        most[r] = pick(v > most[r], v, most[r]);
        store(weights + r * ws + (g + i) * LANES, v);
      }
    }
  }
  float scale[R];
  for (int r = 0; r < R; r++) scale[r] = softmax(weights + r * ws, groups, most[r]);
  by_vectors<R>(size, [&](int64_t d, auto vectors) {
    attend_values<R, decltype(vectors)::value>(value + d, slots, size, first, groups, weights, ws, scale, out + d, os);
  });
}

constexpr float LEVELS = 127;  // levels of an attention weight

// As `softmax`, for scores in units of `unit`; then multiplies the exponentials by `scale` and sets `most` to the largest
// products of each lane.
ALWAYS_INLINE float scaled_softmax(float* scores, int64_t groups, float unit, const float* scale, vec& most) {
  const float top = largest(most), factor = unit * 1.44269504f;
  vec total{};
  most = vec{};
  for (int64_t g = 0; g < groups; g++) {
    vec e = power_of_two((load(scores + g * LANES) - top) * factor);
    total += e;
    e *= load(scale + g * LANES);
    most = larger(e, most);
    store(scores + g * LANES, e);
  }
  return 1.0f / sum(total);
}

// Rounds weights [groups * LANES], whose largest is `top`, to bytes. Returns EXCESS * their sum.
ALWAYS_INLINE int32_t round_weights(const float* weights, int64_t groups, float top, int8_t* bytes) {
  const float by = units_per_value(top);
  ivec total{};
  for (int64_t g = 0; g < groups; g++) {
    const ivec level = nearest(load(weights + g * LANES) * by);
    total += level;
    store_bytes(bytes + g * LANES, level);
  }
  return EXCESS * sum(total);
}

// As `attend_values`, over bytes; `offset` is EXCESS * the sum of each query's weights.
template <int R, int V>
ALWAYS_INLINE void attend_values_bytes(const uint32_t* value, int64_t slots, int64_t size, int64_t first, int64_t groups,
                                       const Quad* weights, const int32_t* offset, const float* scale, float* out,
                                       int64_t os) {
  ivec total[V][R] = {};
  const int64_t ws = groups * LANES / 4;
  for (int64_t g = 0, slot = first % slots; g < groups; g++, slot = next_slot(slot, slots))
    for (int i = 0; i < LANES / 4; i++) {
      UNROLL for (int v = 0; v < V; v++) {
        const Stored x(load(value + (slot / 4 + i) * size + v * LANES));
        UNROLL for (int r = 0; r < R; r++) total[v][r] = dot4(total[v][r], x, weights[r * ws + g * LANES / 4 + i]);
      }
    }
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int r = 0; r < R; r++) store(out + r * os + v * LANES, converted<vec>(total[v][r] - offset[r]) * scale[r]);
  }
}

// As `attend`, over bytes. The scores' products and the sums over values are exact.
template <int R>
void attend_bytes(const float* query, int64_t qs, const HeadCache& cache, int64_t slots, int64_t size, int64_t begin,
                  int64_t end, const int64_t* from, const int64_t* last, float* weights, int64_t ws, float* out, int64_t os) {
  const int64_t first = begin / LANES * LANES, groups = (end - first) / LANES + 1;
  const uint32_t *key = (const uint32_t*)cache.key, *value = (const uint32_t*)cache.value;
  const int64_t span = groups * LANES;
  Quad queries[R][MAX_HEAD / 4];
  int8_t bytes[MAX_HEAD];
  ByteRow units[R];
  for (int r = 0; r < R; r++) {
    units[r] = quantise(query + r * qs, size, bytes);
    to_quads(bytes, size, queries[r]);
  }
  // In the order of the groups: the scales, and the rounded weights.
  float *key_scale = scratch<ATTENTION_BYTES>(3 * span + R * span / 4 * (sizeof(Quad) / sizeof(float))), *value_scale = key_scale + span;
  int8_t* rounded = (int8_t*)(value_scale + span);
  Quad* quads = (Quad*)(value_scale + 2 * span);
  for (int64_t g = 0, slot = first % slots; g < groups; g++, slot = next_slot(slot, slots)) {
    ivec score[R] = {};
    for (int64_t d = 0; d < size / 4; d++) {
      const Stored k(load(key + d * slots + slot));
      UNROLL for (int r = 0; r < R; r++) score[r] = dot4(score[r], k, queries[r][d]);
    }
    UNROLL for (int r = 0; r < R; r++) store(weights + r * ws + g * LANES, as<vec>(score[r]));
    store(key_scale + g * LANES, load(cache.key_scale + slot));
    store(value_scale + g * LANES, load(cache.value_scale + slot));
  }
  // Each loop treats all queries, so that a query does not wait for the reductions of the query before it.
  vec most[R];
  int32_t offset[R];
  float scale[R];
  for (int r = 0; r < R; r++) {
    most[r] = fill(-INFINITY);
    for (int64_t g = 0; g < groups; g++) {
      float* place = weights + r * ws + g * LANES;
      const int64_t position = first + g * LANES;
      vec v = converted<vec>(as<ivec>(load(place)) - units[r].offset) * load(key_scale + g * LANES);
      if (position < from[r] || position + LANES - 1 > last[r]) v = pick(visible(position, from[r], last[r]), v, fill(-INFINITY));
      most[r] = larger(v, most[r]);
      store(place, v);
    }
  }
  const float unit = score_unit(size);
  for (int r = 0; r < R; r++) scale[r] = scaled_softmax(weights + r * ws, groups, units[r].scale * unit, value_scale, most[r]);
  for (int r = 0; r < R; r++) {
    const float top = largest(most[r]);
    offset[r] = round_weights(weights + r * ws, groups, top, rounded);
    to_quads(rounded, span, quads + r * span / 4);
    scale[r] *= top / LEVELS;
  }
  by_vectors<R>(size, [&](int64_t d, auto vectors) {
    attend_values_bytes<R, decltype(vectors)::value>(value + d, slots, size, first, groups, quads, offset, scale, out + d, os);
  });
}

// Attention of any number of queries of one attention head: see `attend`.
void attend_rows(int64_t rows, const float* query, int64_t qs, const HeadCache& cache, int64_t slots, int64_t size,
                 const int64_t* from, const int64_t* last, const float* mask, float* weights, int64_t ws, float* out,
                 int64_t os) {
  for (int64_t done = 0; done < rows;) {
    const int64_t take = rows_of_tile(rows - done);
    const int64_t *f = from + done, *l = last + done;
    const float* q = query + done * qs;
    float *w = weights + done * ws, *o = out + done * os;
    with_rows(take, [&](auto tile_rows) {
      constexpr int R = decltype(tile_rows)::value;
      if (cache.key_scale) attend_bytes<R>(q, qs, cache, slots, size, f[0], l[R - 1], f, l, w, ws, o, os);
      else attend<R>(q, qs, (const float*)cache.key, (const float*)cache.value, slots, size, f[0], l[R - 1], f, l, mask, w, ws, o, os);
    });
    done += take;
  }
}

}  // namespace
