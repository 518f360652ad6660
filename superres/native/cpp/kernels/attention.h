// Attention of a few queries over a cache.

#pragma once

#include "kernels/products.h"
#include "runtime/scratch.h"

namespace {

// One attention head's part of a cache. As float32: keys [slots / LANES][size][LANES], values [slots][size]. With scales, as
// bytes: keys [slots / LANES][size / 4][LANES][4], values [slots / 4][size][4].
struct HeadCache {
  const void *key, *value;
  const float *key_scale, *value_scale;  // [slots], what one unit stands for; null for float32
};

// Where the key of a slot begins in an attention head's keys; its `size` numbers, or words of four bytes, are LANES apart.
ALWAYS_INLINE int64_t key_place(int64_t slot, int64_t size) { return slot / LANES * LANES * size + slot % LANES; }

// What the product of a query and a key of `size` numbers is multiplied by (Vaswani et al. 2017, section 3.2.1), in base 2.
ALWAYS_INLINE float score_unit(int64_t size) { return 1.44269504f / std::sqrt((float)size); }

// The slot of the ring that follows a group of LANES slots.
ALWAYS_INLINE int64_t next_slot(int64_t slot, int64_t slots) { return slot + LANES == slots ? 0 : slot + LANES; }

// Whether a query that sees positions from..last sees each of LANES positions.
ALWAYS_INLINE ivec visible(int64_t position, int64_t from, int64_t last) {
  const ivec place = numbers() + (int32_t)position;
  return (place >= (int32_t)from) & (place <= (int32_t)last);
}

// Queries of one attention head, and the slots of the ring that they read: groups of LANES absolute positions, of which the
// first holds `begin`. Query r sees positions from[r]..last[r], and all queries see the groups [whole, part) wholly. A query's
// weights go to weights + r * ws, in the order of the groups.
struct Queries {
  const float* query;
  int64_t qs, slots, size;
  const int64_t *from, *last;
  float* weights;
  int64_t ws;
  int64_t first, groups, whole, part;

  Queries(int64_t rows, const float* query, int64_t qs, int64_t slots, int64_t size, const int64_t* from, const int64_t* last,
          float* weights, int64_t ws)
      : query(query), qs(qs), slots(slots), size(size), from(from), last(last), weights(weights), ws(ws),
        first(from[0] / LANES * LANES), groups((last[rows - 1] - first) / LANES + 1),
        whole((from[rows - 1] - first + LANES - 1) / LANES), part((last[0] + 1 - first) / LANES) {}

  int64_t slot() const { return first % slots; }
  float* place(int r, int64_t g) const { return weights + r * ws + g * LANES; }

  // Whether a query sees a part of group g only, or nothing.
  bool hides(int64_t g) const { return g < whole || g >= part; }

  // `v` where query r sees the positions of group g, else `hidden`.
  ALWAYS_INLINE vec seen(int r, int64_t g, vec v, float hidden) const {
    return pick(visible(first + g * LANES, from[r], last[r]), v, fill(hidden));
  }
};

// Calls body(d, vectors) for the outputs [d, d + vectors * LANES) of an attention head: two vectors together where the
// accumulators of R queries fit the registers.
template <int R, typename Body>
ALWAYS_INLINE void by_vectors(int64_t size, const Body& body) {
  int64_t d = 0;
  if (vectors_of(R) >= 2)
    for (; d + 2 * LANES <= size; d += 2 * LANES) body(d, std::integral_constant<int, 2>());
  for (; d < size; d += LANES) body(d, std::integral_constant<int, 1>());
}

// Turns the scores of R queries into weights: 2^(unit * (score - the largest score)), given the largest scores of each lane.
// Sets `scale` to 1 / their sums.
template <int R>
ALWAYS_INLINE void softmax(const Queries& q, float unit, const vec* most, float* scale) {
  for (int r = 0; r < R; r++) {
    const vec top = fill(-unit * largest(most[r]));
    vec total{};
    for (int64_t g = 0; g < q.groups; g++) {
      const vec e = power_of_two(fused(load(q.place(r, g)), fill(unit), top));
      total += e;
      store(q.place(r, g), e);
    }
    scale[r] = 1.0f / sum(total);
  }
}

// V vectors of the attention output of R queries: weighted sums of the values, multiplied by each query's `scale`.
template <int R, int V>
ALWAYS_INLINE void attend_values(const Queries& q, const float* value, const float* scale, float* out, int64_t os) {
  vec total[V][R] = {};
  for (int64_t g = 0, slot = q.slot(); g < q.groups; g++, slot = next_slot(slot, q.slots))
    for (int i = 0; i < LANES; i++) {
      UNROLL for (int v = 0; v < V; v++) {
        const vec x = load(value + (slot + i) * q.size + v * LANES);
        UNROLL for (int r = 0; r < R; r++) total[v][r] = fused(fill(q.place(r, g)[i]), x, total[v][r]);
      }
    }
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int r = 0; r < R; r++) store(out + r * os + v * LANES, total[v][r] * scale[r]);
  }
}

// How the scores of float32 keys are computed, those of `together(R)` groups at a time: with few queries, each addition waits for
// the one before it.
struct FloatKeys {
  typedef vec total;
  static constexpr int together(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
  const Queries& q;
  const float *key, *mask;

  int64_t steps() const { return q.size; }
  ALWAYS_INLINE vec start(int) const { return vec{}; }
  ALWAYS_INLINE vec read(int64_t slot, int64_t d) const { return load(key + slot * q.size + d * LANES); }
  ALWAYS_INLINE vec add(vec total, int r, int64_t d, vec k) const { return fused(fill(q.query[r * q.qs + d]), k, total); }
  ALWAYS_INLINE vec finish(vec total, int64_t slot) const { return mask ? total + load(mask + slot) : total; }
};

// How those of bytes are: of queries in quads. The products are exact.
struct ByteKeys {
  typedef ivec total;
  static constexpr int together(int) { return 1; }
  const Queries& q;
  const HeadCache& cache;
  const Quad (*queries)[MAX_HEAD / 4];
  const ByteRow* units;

  int64_t steps() const { return q.size / 4; }
  ALWAYS_INLINE ivec start(int r) const { return -units[r].offset; }
  ALWAYS_INLINE Stored read(int64_t slot, int64_t d) const {
    return Stored(load((const uint32_t*)cache.key + slot * q.size / 4 + d * LANES));
  }
  ALWAYS_INLINE ivec add(ivec total, int r, int64_t d, const Stored& k) const { return dot4(total, k, queries[r][d]); }
  ALWAYS_INLINE vec finish(ivec total, int64_t slot) const { return converted<vec>(total) * load(cache.key_scale + slot); }
};

// Writes the scores of R queries to their places, and the largest of each lane to `most`.
template <int R, typename Keys>
ALWAYS_INLINE void scores(const Queries& q, const Keys& keys, vec* most) {
  for (int r = 0; r < R; r++) most[r] = fill(-INFINITY);
  constexpr int G = Keys::together(R);
  for (int64_t g = 0, next = q.slot(); g < q.groups; g += G) {
    int64_t slot[G];
    // Past the last group, the next one is computed and not stored.
    for (int i = 0; i < G; i++, next = next_slot(next, q.slots)) slot[i] = next;
    typename Keys::total score[G][R];
    UNROLL for (int i = 0; i < G; i++) {
      UNROLL for (int r = 0; r < R; r++) score[i][r] = keys.start(r);
    }
    for (int64_t d = 0; d < keys.steps(); d++) {
      UNROLL for (int i = 0; i < G; i++) {
        const auto k = keys.read(slot[i], d);
        UNROLL for (int r = 0; r < R; r++) score[i][r] = keys.add(score[i][r], r, d, k);
      }
    }
    UNROLL for (int i = 0; i < G; i++) {
      if (g + i == q.groups) break;
      const bool hides = q.hides(g + i);
      UNROLL for (int r = 0; r < R; r++) {
        vec v = keys.finish(score[i][r], slot[i]);
        if (hides) v = q.seen(r, g + i, v, -INFINITY);
        most[r] = larger(v, most[r]);
        store(q.place(r, g + i), v);
      }
    }
  }
}

// Attention of R queries of one attention head. The order of every sum is fixed.
template <int R>
void attend(const Queries& q, const HeadCache& cache, const float* mask, float* out, int64_t os) {
  const float *key = (const float*)cache.key, *value = (const float*)cache.value;
  vec most[R];
  scores<R>(q, FloatKeys{q, key, mask}, most);
  float scale[R];
  softmax<R>(q, score_unit(q.size), most, scale);
  by_vectors<R>(q.size, [&](int64_t d, auto vectors) {
    attend_values<R, decltype(vectors)::value>(q, value + d, scale, out + d, os);
  });
}

constexpr float LEVELS = 127;  // levels of an attention weight

// As `attend_values`, over bytes. With few queries, several sums are interleaved, which are exact in any order.
template <int R, int V>
ALWAYS_INLINE void attend_values_bytes(const Queries& q, const uint32_t* value, const Levels* weights, const float* scale,
                                       float* out, int64_t os) {
  constexpr int S = R == 1 ? 4 : R <= 3 ? 2 : 1;
  ivec total[S][V][R] = {};
  const int64_t ws = q.groups * LANES / 4;
  for (int64_t g = 0, slot = q.slot(); g < q.groups; g++, slot = next_slot(slot, q.slots))
    for (int i = 0; i < LANES / 4; i += S) {
      UNROLL for (int j = 0; j < S; j++) {
        UNROLL for (int v = 0; v < V; v++) {
          const Signed x(load(value + (slot / 4 + i + j) * q.size + v * LANES));
          UNROLL for (int r = 0; r < R; r++)
            total[j][v][r] = dot4(total[j][v][r], x, weights[r * ws + g * LANES / 4 + i + j]);
        }
      }
    }
  UNROLL for (int v = 0; v < V; v++) {
    UNROLL for (int r = 0; r < R; r++) {
      ivec all = total[0][v][r];
      UNROLL for (int i = 1; i < S; i++) all += total[i][v][r];
      store(out + r * os + v * LANES, converted<vec>(all) * scale[r]);
    }
  }
}

// The largest scale of the values that each of R queries sees.
template <int R>
ALWAYS_INLINE void largest_scales(const Queries& q, const float* value_scale, float* bound) {
  vec shared{}, own[R] = {};
  for (int64_t g = 0, slot = q.slot(); g < q.groups; g++, slot = next_slot(slot, q.slots)) {
    const vec scale = load(value_scale + slot);
    if (!q.hides(g)) shared = larger(scale, shared);
    else for (int r = 0; r < R; r++) own[r] = larger(q.seen(r, g, scale, 0), own[r]);
  }
  for (int r = 0; r < R; r++) bound[r] = largest(larger(own[r], shared));
}

// As `attend`, over bytes. The scores' products and the sums over values are exact.
template <int R>
void attend_bytes(const Queries& q, const HeadCache& cache, float* out, int64_t os) {
  const int64_t size = q.size, span = q.groups * LANES;
  Quad queries[R][MAX_HEAD / 4];
  ByteRow units[R];
  for (int r = 0; r < R; r++) units[r] = quantise(q.query + r * q.qs, size, queries[r]);
  vec most[R];
  scores<R>(q, ByteKeys{q, cache, queries, units}, most);
  Levels* levels = scratch<ATTENTION_BYTES, Levels>(R * span / 4);
  float scale[R], bound[R];
  largest_scales<R>(q, cache.value_scale, bound);
  for (int r = 0; r < R; r++) {
    const float unit = score_unit(size) * units[r].scale, by = units_per_value(bound[r]);
    const vec top = fill(-unit * largest(most[r]));
    vec total{};
    for (int64_t g = 0, slot = q.slot(); g < q.groups; g++, slot = next_slot(slot, q.slots)) {
      const vec e = power_of_two<true>(fused(load(q.place(r, g)), fill(unit), top));
      total += e;
      store_levels(levels + (r * span + g * LANES) / 4, nearest_bytes(e * load(cache.value_scale + slot), by));
    }
    scale[r] = bound[r] / LEVELS / sum(total);
  }
  by_vectors<R>(size, [&](int64_t d, auto vectors) {
    attend_values_bytes<R, decltype(vectors)::value>(q, (const uint32_t*)cache.value + d, levels, scale, out + d, os);
  });
}

// Attention of any number of queries of one attention head: see `Queries` and `attend`.
void attend_rows(int64_t rows, const float* query, int64_t qs, const HeadCache& cache, int64_t slots, int64_t size,
                 const int64_t* from, const int64_t* last, const float* mask, float* weights, int64_t ws, float* out,
                 int64_t os) {
  for (int64_t done = 0; done < rows;) {
    const int64_t take = rows_of_tile(rows - done);
    const Queries q(take, query + done * qs, qs, slots, size, from + done, last + done, weights + done * ws, ws);
    float* o = out + done * os;
    with_rows(take, [&](auto tile_rows) {
      constexpr int R = decltype(tile_rows)::value;
      if (cache.key_scale) attend_bytes<R>(q, cache, o, os);
      else attend<R>(q, cache, mask, o, os);
    });
    done += take;
  }
}

}  // namespace
