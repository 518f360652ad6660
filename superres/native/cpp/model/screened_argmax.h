// The argmax or a sample over a large vocabulary from int8 bounds on the scores, computing exact scores of few panels only.

#pragma once

#include "kernels/noise.h"
#include "model/scores.h"

namespace {

// Gumbel noise of a row and position, which is added to scores / temperature; none if the temperature is 0.
struct GumbelAt {
  Stream stream;
  int64_t position;
  float temperature;

  GumbelAt(const Sampling* sampling, int64_t b, int64_t position)
      : stream(sampling ? sampling->seed : 0, sampling ? sampling->keys[b] : 0), position(position),
        temperature(sampling ? sampling->temperature[position % sampling->channels] : 0) {}
};

// Whether a sample is the argmax of scores / temperature + Gumbel noise of all tokens.
ALWAYS_INLINE bool is_gumbel(const Sizes& size, const Sampling& sampling) {
  return sampling.kind == GUMBEL && sampling.top_k >= size.vocabulary && sampling.nucleus >= 1;
}

// The scores of a state within bounds: approximate scores `rough`, and their largest error.
struct Bounds {
  const Session& s;
  const float *state, *rough;
  const float scale, norm;
  const GumbelAt& gumbel_at;
  const int64_t count = s.weights.project.panels * PANEL;

  vec error(int64_t v) const {
    // Half a unit for the rounding to int8 of the state, and of the weights. The excess covers the rounding of the sums.
    const Int8Filter& f = s.weights.int8_filter;
    return load(f.norm + v) * (0.51f * scale) + load(f.product.scale + v) * (0.51f * norm);
  }
  vec tempered(vec score) const { return gumbel_at.temperature > 0 ? score / gumbel_at.temperature : score; }
  vec least(int64_t v) const { return tempered(load(rough + v) - error(v)); }
  vec most(int64_t v) const { return tempered(load(rough + v) + error(v)); }

  float largest_least() const {
    vec top = fill(-INFINITY);
    for (int64_t v = 0; v < count; v += LANES) top = larger(least(v), top);
    return largest(top);
  }

  // Writes the noise of all tokens that may have the largest sum, and -inf for others. Returns a lower bound of that sum.
  float write_noise(float* noise) const {
    float bar = largest_least() + LEAST_GUMBEL;
    for (int64_t group = 0; group < count; group += GROUP) {
      const int64_t end = group + GROUP < count ? group + GROUP : count;
      bool near = false;
      for (int64_t v = group; v < end; v += LANES) {
        near = near || any(most(v) + MOST_GUMBEL >= bar);
        store(noise + v, fill(-INFINITY));
      }
      if (!near) continue;
      uvec words[4];
      group_words(gumbel_at.stream, gumbel_at.position, group, words);
      for (int64_t v = group; v < end; v += LANES) {
        const vec u = uniform_of(words[(v - group) / LANES]);
        if (!any(most(v) + gumbel_bound(u) >= bar)) continue;
        const vec own = gumbel(u);
        store(noise + v, own);
        const float sum = largest(least(v) + own);
        bar = sum > bar ? sum : bar;
      }
    }
    return bar;
  }

  // The argmax of the exact sums. A panel is computed exactly only if one of its sums may exceed the largest lower bound.
  int64_t argmax() const {
    float* noise = gumbel_at.temperature > 0 ? scratch<NOISE>(count) : nullptr;
    const float bar = noise ? write_noise(noise) : largest_least();
    const auto near = [&](int64_t v) { return (noise ? most(v) + load(noise + v) : most(v)) >= bar; };
    float top = -INFINITY, scores[PANEL];
    int64_t found = 0;
    for (int64_t v = 0; v < count; v += PANEL) {
      if (!any(near(v) | near(v + LANES))) continue;
      const Slice one{s.weights.project, v / PANEL, v / PANEL + 1, 0, s.size.d};
      apply(one, Inputs(one.linear, state, s.size.d, 1, s.size.d), 1, scores, PANEL, STORE, one.bias());
      for (int64_t i = 0; i < PANEL && v + i < s.size.vocabulary; i++) {
        const float sum = noise ? scores[i] / gumbel_at.temperature + noise[v + i] : scores[i];
        if (sum > top) top = sum, found = v + i;
      }
    }
    refuse_unless(s.report, std::isfinite(top));
    return found;
  }
};

// Writes the argmax of the output projection of each of `count` states to tokens[r * apart]; of equal scores, the first.
// With noise, it is the argmax of scores / temperature + noise; gumbel_at(r) returns the `GumbelAt` of a state. The result is
// that of `project`, exactly: int8 products give every score within a known error bound, and all panels that may hold the
// largest sum are then computed in full.
template <typename At>
void screened_argmax(const Session& s, Team& team, const float* states, int64_t count, float* rough, int64_t* tokens,
                     int64_t apart, const At& gumbel_at) {
  const int64_t D = s.size.d;
  const ByteRows own = quantise_rows<SCREENED>(states, D, count, D);  // in the calling thread's memory
  team.share(s.weights.project.panels, [=, &s](int64_t begin, int64_t end) {
    const Slice slice{s.weights.int8_filter.product, begin, end, 0, D};
    apply_bytes(slice, own, count, rough + begin * PANEL, s.size.stride, STORE, slice.bias());
  });
  team.share(count, [=, &s](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      const float scale = own.rows[r].scale, norm = norm_bound(states + r * D, D, scale);
      tokens[r * apart] = Bounds{s, states + r * D, rough + r * s.size.stride, scale, norm, gumbel_at(r)}.argmax();
    }
  });
}

}  // namespace
