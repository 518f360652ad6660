// The keys and values of attention.

#pragma once

#include "model/rows.h"

namespace {

// Writes the key and value of an attention head to a slot of the cache. Other threads do not write the slots whose bytes of a
// value share its words if these words are `own`.
void write_slot(const Sizes& sizes, Cache& cache, int64_t head, int64_t slot, const float* key, const float* value, bool own) {
  const int64_t size = sizes.d / sizes.attention_heads, slots = sizes.slots, start = head * slots * size;
  if (!cache.key_scale) {
    float* keys = (float*)cache.key + start + key_place(slot, size);
    for (int64_t i = 0; i < size; i++) keys[i * LANES] = key[i];
    std::memcpy((float*)cache.value + start + slot * size, value, size * sizeof(float));
    return;
  }
  int8_t bytes[MAX_HEAD];
  cache.key_scale[head * slots + slot] = quantise(key, size, bytes).scale;
  uint32_t* keys = (uint32_t*)cache.key + start / 4 + key_place(slot, size / 4);
  for (int64_t i = 0; i < size / 4; i++) {
    uint32_t four;
    std::memcpy(&four, bytes + 4 * i, sizeof four);
    keys[i * LANES] = four ^ 0x80808080u;  // adds 128 to each byte
  }
  cache.value_scale[head * slots + slot] = quantise(value, size, bytes).scale;
  uint32_t* values = (uint32_t*)cache.value + start / 4 + slot / 4 * size;
  if (!own) {
    for (int64_t i = 0; i < size; i++) ((uint8_t*)(values + i))[slot % 4] = (uint8_t)bytes[i] ^ 0x80;
    return;
  }
  const uint32_t shift = slot % 4 * 8;
  for (int64_t i = 0; i < size; i += LANES) {
    const uvec mine = as<uvec>(load_bytes(bytes + i) + 128) << (int)shift;
    store(values + i, (load(values + i) & uvec(~(255u << shift))) | mine);
  }
}

// Writes the key and value of an attention head at a position to the cache, if the position has a key.
void write_key(const Sizes& sizes, Cache& cache, int64_t head, int64_t position, const float* key, const float* value,
               bool own = false) {
  if (position % sizes.key_distance == 0)
    write_slot(sizes, cache, head, position / sizes.key_distance % sizes.slots, key, value, own);
}

// Writes the keys and values of all columns, for attention heads [first, last). They are part of `projected` [rows, stride].
void write_columns(const Rows& rows, Cache& cache, const float* projected, int64_t first, int64_t last) {
  const Sizes& sizes = rows.s.size;
  const int64_t D = sizes.d, size = D / sizes.attention_heads, word = 4 * sizes.key_distance;  // positions of a word's slots
  for (int64_t b = rows.begin; b < rows.end; b++)
    for (int64_t w = 0; w < sizes.width; w++, projected += sizes.stride) {
      const int64_t position = rows.place(b, w), start = position / word * word;
      const bool own = start >= rows.place(b, 0) && start + word <= rows.place(b, sizes.width);
      for (int64_t h = first; h < last; h++)
        write_key(sizes, cache, b * sizes.attention_heads + h, position, projected + D + h * size, projected + 2 * D + h * size,
                  own);
    }
}

// Commits `count` columns of row b of the last step over a tree: writes their keys and values to the caches of all layers, and
// the deviations of their tokens, at the row's position and after it.
void keep_columns(Session& s, int64_t b, int64_t position, const int64_t* columns, int64_t count) {
  const int64_t D = s.size.d, size = D / s.size.attention_heads;
  for (int64_t i = 0; s.neighbourhood.features && i < count; i++)
    write_deviation(s, b, position + i - 1, s.neighbourhood.column_deviation[b * s.size.width + columns[i]]);
  for (int64_t l = 0; l < s.size.layers; l++)
    for (int64_t i = 0; i < count; i++) {
      const float* key = s.cache[l].columns + (b * s.size.width + columns[i]) * 2 * D;
      for (int64_t h = 0; h < s.size.attention_heads; h++)
        write_key(s.size, s.cache[l].self, b * s.size.attention_heads + h, position + i, key + h * size, key + D + h * size);
    }
}

// Writes the keys and values of positions [begin, end) to one row of a float32 cache. A position's keys [D] are at `keys`, row
// stride `stride`, and its values [D] follow them.
void write_positions(const float* keys, int64_t stride, int64_t D, int64_t heads, int64_t slots, int64_t begin, int64_t end,
                     float* key, float* value) {
  const int64_t size = D / heads;
  for (int64_t p = begin; p < end; p++)
    for (int64_t h = 0; h < heads; h++) {
      const float* from = keys + p * stride + h * size;
      float* to = key + h * slots * size + key_place(p, size);
      for (int64_t i = 0; i < size; i++) to[i * LANES] = from[i];
      std::memcpy(value + (h * slots + p) * size, from + D, size * sizeof(float));
    }
}

// Gathers the weights of row b's shortlist.
void gather_shortlist(const Shortlist& list, const Linear& all, int64_t b) {
  const int64_t groups = all.inputs / 4;
  for (int64_t i = 0; i < list.count; i++) {
    const int64_t place = b * list.count + i, token = list.tokens[place];
    list.bias[place] = token < 0 ? -INFINITY : all.bias[token];
    list.scale[place] = token < 0 ? 0 : all.scale[token];
    if (token < 0) continue;  // its products times 0 leave -inf
    const uint32_t* row = (const uint32_t*)(list.known + token * all.inputs);
    uint32_t* to = (uint32_t*)list.weight + (b * list.count + i / PANEL * PANEL) * groups + i % PANEL;
    for (int64_t g = 0; g < groups; g++) to[g * PANEL] = row[g];
  }
}

// Writes the keys and values of cross-attention to row b of the caches of all layers, and of recurrent heads that have a cache:
// those of row b's source, whose states are in states [batch, cross_slots, D]. Those of padding stay 0. Gathers the row's
// shortlist.
void remember(Session& s, const float* states, int64_t b) {
  const int64_t S = s.size.cross_slots, D = s.size.d, length = source_length(s, b);
  float* projected = scratch<WIDE_ROWS>(length * 2 * D);
  const auto write = [=, &s](const Linear& linear, Cache& cache) {
    apply_panels(linear, states + b * S * D, D, length, projected, 2 * D, STORE, 0, linear.panels);
    write_positions(projected, 2 * D, D, s.size.attention_heads, S, 0, length, (float*)cache.key + b * S * D,
                    (float*)cache.value + b * S * D);
  };
  for (int64_t l = 0; l < s.size.layers; l++) write(s.weights.layer[l].cross_source, s.cache[l].cross);
  if (s.heads.cross.key) write(s.heads.cross_source, s.heads.cross);
  if (s.heads.shortlist.count) gather_shortlist(s.heads.shortlist, s.weights.int8_filter.product, b);
}

}  // namespace
