// Sampling a token from scores: the computation of superres/decoding/plain/sampling.py, bit for bit.

#pragma once

#include <algorithm>
#include <vector>

#include "abi.h"
#include "kernels/noise.h"
#include "runtime/scratch.h"

namespace {

enum { PROPOSAL, VERDICT, COMMITTED };         // purposes of a position's uniform numbers in speculative sampling
constexpr double LEAST_WEIGHT = 0x1p-40;       // unit of the weights that `draw` uses; sums of whole units are exact
constexpr int64_t PART = 64;                   // weights that `draw` skips together

// Whether score a is before b in descending order; NaN is last.
ALWAYS_INLINE bool above(float a, float b) { return a > b || (b != b && a == a); }

// Draws a token from whole weights: the first whose cumulative weight exceeds u times the sum, `total`.
int64_t draw(const int64_t* weights, int64_t count, int64_t total, double u) {
  const int64_t place = (int64_t)(u * (double)total);
  int64_t sum = 0, token = 0;
  for (int64_t part; token + PART < count; token += PART, sum += part) {
    part = 0;
    for (int64_t v = token; v < token + PART; v++) part += weights[v];
    if (sum + part > place) break;
  }
  while (token < count - 1 && (sum += weights[token]) <= place) token++;
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
    whole = scratch<WHOLE_WEIGHTS, int64_t>(count);
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
    return largest_place(most, where);
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

  // Draws a proposal at `offset`, and writes its distribution to q [V], whose sum is returned in `q_total`.
  int64_t propose(int32_t* q, int64_t* q_total, int64_t offset) {
    weigh();
    std::memcpy(q, weight, count * sizeof(int32_t));
    *q_total = total;
    return draw(whole, count, residual(nullptr, 0, 1), uniform(stream, position, offset, PROPOSAL));
  }

  // p / q of a proposal drawn from q.
  double ratio(int64_t token, const int32_t* q, int64_t q_total) {
    weigh();
    return ((double)weight[token] / (double)total) / ((double)q[token] / (double)q_total);
  }

  // The sum of max(0, survival * p - q).
  double rest(const int32_t* q, int64_t q_total, double survival) {
    weigh();
    return (double)residual(q, q_total, survival) * LEAST_WEIGHT;
  }

  // Draws the token after the accepted ones; `q_total` is 0 if no proposal followed them.
  int64_t commit(const int32_t* q, int64_t q_total, double survival) {
    weigh();
    int64_t left = residual(q, q_total, survival);
    if (!left) left = residual(nullptr, 0, 1);
    return draw(whole, count, left, uniform(stream, position, 0, COMMITTED));
  }

 private:
  const Sampling& sampling;
  const int64_t count, position;
  const Stream stream;
  float* scaled;    // [V, padded with -inf]
  int32_t* weight;  // [V, padded with 0]: proportional to the probabilities, once `weigh` has been called
  int64_t* whole;   // [V]: see `residual`
  int64_t total = 0;

  // The largest score that is a number.
  float top() const {
    vec most = fill(-INFINITY);
    for (int64_t v = 0; v < count; v += LANES) most = larger(load(scaled + v), most);
    return largest(most);
  }

  void weigh() {
    if (total) return;
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
    total = 0;
  }

  // Computes max(0, survival * p - q), whole multiples of LEAST_WEIGHT, and returns their sum; `q_total` is 0 without q.
  int64_t residual(const int32_t* q, int64_t q_total, double survival) const {
    int64_t sum = 0;
    for (int64_t v = 0; v < count; v++) {
      const double p = (double)weight[v] / (double)total * survival, other = q_total ? (double)q[v] / (double)q_total : 0;
      sum += whole[v] = p > other ? (int64_t)((p - other) / LEAST_WEIGHT) : 0;
    }
    return sum;
  }
};

}  // namespace
