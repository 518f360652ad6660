// Sampling a token from scores: the computation of superres/decoding/sampling.py, bit for bit.

#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"
#include "kernels/noise.h"
#include "runtime/scratch.h"

namespace {

enum { PROPOSAL, VERDICT, COMMITTED };         // purposes of a position's uniform numbers in speculative sampling
constexpr double LEAST_WEIGHT = 0x1p-40;       // unit of the weights that `draw` uses
constexpr int64_t PART = 64;                   // weights that `draw` skips together

// Whether score a is before b in descending order; NaN is last.
ALWAYS_INLINE bool above(float a, float b) { return a > b || (b != b && a == a); }

// Draws a token from weights of at most 1: the first whose cumulative weight exceeds u times the sum.
int64_t draw(const double* weights, int64_t count, double u) {
  int64_t* whole = scratch<WHOLE_WEIGHTS, int64_t>(count);
  int64_t total = 0;
  for (int64_t v = 0; v < count; v++) total += whole[v] = (int64_t)(weights[v] / LEAST_WEIGHT);
  const int64_t place = (int64_t)(u * (double)total);
  int64_t sum = 0, token = 0;
  for (int64_t part; token + PART < count; token += PART, sum += part) {
    part = 0;
    for (int64_t v = token; v < token + PART; v++) part += whole[v];
    if (sum + part > place) break;
  }
  while (token < count - 1 && (sum += whole[token]) <= place) token++;
  return token;
}

// The scores of one position and row, divided by the temperature and filtered; the choices made from them.
class Choice {
 public:
  // `count` is the vocabulary's size. A thread makes one choice at a time.
  Choice(int64_t count, const Sampling& sampling, int64_t b, int64_t position, const float* scores)
      : sampling(sampling), count(count), position(position), stream(sampling.seed, sampling.keys[b]) {
    const int64_t padded = (count + GROUP - 1) / GROUP * GROUP;
    scaled = scratch<SCALED>(padded);
    weight = scratch<WEIGHTS, int32_t>(padded);
    const float temperature = sampling.temperature[position % sampling.channels];
    for (int64_t v = 0; v < count; v++) scaled[v] = scores[v] / temperature;
    for (int64_t v = count; v < padded; v++) scaled[v] = -INFINITY;
    if (sampling.top_k < count) keep_best();
    if (sampling.nucleus < 1) keep_nucleus();
  }

  // The sample of seed-coupled sampling: the argmax of scores + Gumbel noise; of equal sums, the first. Noise is only
  // computed where it may decide.
  int64_t token() const {
    float bar = top() + LEAST_GUMBEL;
    vec most = fill(-INFINITY);
    ivec where{};
    for (int64_t v = 0; v < count; v += GROUP) {
      vec group = load(scaled + v);
      for (int w = 1; w < 4; w++) group = larger(group, load(scaled + v + w * LANES));
      if (!any(group + MOST_GUMBEL >= bar)) continue;
      uvec words[4];
      group_words(stream, position, v, words);
      for (int w = 0; w < 4; w++) {
        const vec score = load(scaled + v + w * LANES), u = uniform_of(words[w]);
        if (!any(score + gumbel_bound(u) >= bar)) continue;
        const vec sum = score + gumbel(u);
        const ivec better = sum > most;
        most = pick(better, sum, most);
        where = pick(better, numbers() + (int32_t)(v + w * LANES), where);
        bar = std::max(bar, largest(most));
      }
    }
    float tops[LANES];
    int32_t places[LANES];
    store(tops, most);
    store(places, where);
    int best = 0;
    for (int i = 1; i < LANES; i++)
      if (tops[i] > tops[best] || (tops[i] == tops[best] && places[i] < places[best])) best = i;
    return places[best];
  }

  // Whether coupled sampling could choose a token.
  bool is_possible(int64_t token) const { return scaled[token] > -INFINITY; }

  // Whether a token is among the `bound` best ones, by scores + Gumbel noise.
  bool is_among_best(int64_t token, int64_t bound) {
    if (!is_possible(token)) return false;
    for (int64_t v = 0; v < count; v += GROUP) {
      uvec words[4];
      group_words(stream, position, v, words);
      for (int w = 0; w < 4; w++) {
        float* at = scaled + v + w * LANES;
        store(at, load(at) + gumbel(uniform_of(words[w])));
      }
    }
    int64_t better = 0;
    for (int64_t v = 0; v < count; v++) better += scaled[v] > scaled[token];
    return better < bound;
  }

  // Draws a proposal, and writes its distribution to q [V], whose sum is returned in `q_total`.
  int64_t propose(int32_t* q, int64_t* q_total) {
    weigh();
    std::memcpy(q, weight, count * sizeof(int32_t));
    *q_total = total;
    return draw_rest(nullptr, 0, PROPOSAL);
  }

  // Whether speculative sampling accepts a proposal drawn from q; `q_total` is 0 without a proposal.
  bool accepts(int64_t token, const int32_t* q, int64_t q_total) {
    weigh();
    const double p_token = (double)weight[token] / (double)total, q_token = q_total ? (double)q[token] / (double)q_total : 0;
    return uniform(stream, position, VERDICT) * q_token < p_token;
  }

  // Draws the token after the accepted ones, where a proposal drawn from q was rejected.
  int64_t commit(const int32_t* q, int64_t q_total) {
    weigh();
    return draw_rest(q, q_total, COMMITTED);
  }

 private:
  const Sampling& sampling;
  const int64_t count, position;
  const Stream stream;
  float* scaled;    // [V, padded with -inf]
  int32_t* weight;  // [V, padded with 0]: proportional to the probabilities, once `weigh` has been called
  int64_t total = 0;

  // The largest score that is a number.
  float top() const {
    vec most = fill(-INFINITY);
    for (int64_t v = 0; v < count; v += LANES) most = larger(load(scaled + v), most);
    return largest(most);
  }

  void weigh() {
    const float most = top();
    total = 0;
    for (int64_t v = 0; v < count; v += LANES) store(weight + v, weights_of(load(scaled + v) - most));
    for (int64_t v = 0; v < count; v++) total += weight[v];
  }

  void keep_from(float least) {
    for (int64_t v = 0; v < count; v++) scaled[v] = scaled[v] < least ? -INFINITY : scaled[v];
  }

  void keep_best() {
    std::vector<float> sorted(scaled, scaled + count);
    std::nth_element(sorted.begin(), sorted.begin() + sampling.top_k - 1, sorted.end(), above);
    keep_from(sorted[sampling.top_k - 1]);
  }

  void keep_nucleus() {
    weigh();
    const auto below = [this](int64_t a, int64_t b) { return above(scaled[b], scaled[a]); };
    std::vector<int64_t> heap;
    for (int64_t v = 0; v < count; v++)
      if (weight[v] > 0) heap.push_back(v);
    std::make_heap(heap.begin(), heap.end(), below);
    const double wanted = (double)total * sampling.nucleus;
    float least = -INFINITY;
    int64_t sum = 0;
    for (bool any = false; !heap.empty() && (!any || (double)sum < wanted); any = true, heap.pop_back()) {
      std::pop_heap(heap.begin(), heap.end(), below);
      least = scaled[heap.back()];
      sum += weight[heap.back()];
    }
    keep_from(least);
  }

  int64_t draw_rest(const int32_t* q, int64_t q_total, int purpose) const {
    double* p = scratch<DISTRIBUTION, double>(count);
    int64_t left = 0;  // a flag; an integer, since compilers make no vectors of the largest of doubles
    if (q_total)
      for (int64_t v = 0; v < count; v++) {
        const double difference = (double)weight[v] / (double)total - (double)q[v] / (double)q_total;
        p[v] = difference > 0 ? difference : 0;
        left |= p[v] >= LEAST_WEIGHT;
      }
    if (!left)
      for (int64_t v = 0; v < count; v++) p[v] = (double)weight[v] / (double)total;
    return draw(p, count, uniform(stream, position, purpose));
  }
};

}  // namespace
