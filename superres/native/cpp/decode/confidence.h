// The block size of the next iteration, chosen as the heads propose: superres/decoding/confidence.py.

#pragma once

#include <vector>

#include "decode/state.h"
#include "kernels/noise.h"

namespace {

// The expected tokens of a team's rows at each block size, and the size with the largest surplus over the current rate.
struct ConfidentBlockSize {
  const Session& s;
  LoopState& l;
  int64_t begin, end, best = 1;
  double *rate, *typical;          // see `BlockCosts`
  double speed, surplus = -INFINITY;  // tokens per second; expected tokens of the best size minus tokens in that time
  double share = 0, expected = 0, chosen = 0;  // rows that accept the latest token; sum of shares; the same at `best`
  double rows = 1;                             // that are not complete
  std::vector<double> survival;    // of each row

  ConfidentBlockSize(const Session& s, LoopState& l, int64_t begin, int64_t end) : s(s), l(l), begin(begin), end(end) {
    if (!l.block_costs.costs) return;
    rate = l.block_costs.rate + begin * (2 + s.size.channels);
    typical = rate + 2;
    survival.assign(end - begin, 1.0);
    for (int64_t b = begin; b < end; b++) {
      share += l.position[b] < l.limit[b];
      stop_at(b, l.first[b]);
    }
    rows = std::fmax(share, 1.0);
    speed = rows * rate[0] / rate[1];
  }

  // Reads row b's proposal of ordinal head p(h + 2), given the head's centre and log(1 / s).
  void judge(int64_t b, int64_t h, float centre, float sharpness, int64_t token) {
    const BlockCosts& w = l.block_costs;
    const float slope = odds(w.offset + w.exponent * sharpness), above = centre - (float)token;
    const bool least = token <= w.reach, most = token >= s.size.vocabulary - 1 - w.reach;
    const float low = least ? 0 : odds(-slope * std::fmax(w.reach + above, 0.0f));
    const float high = most ? 0 : odds(-slope * std::fmax(w.reach - above, 0.0f));
    take(b, h, 1 - (low + high) / 2, token);
  }

  // Reads row b's proposal of head p(h + 2), which has the largest of `count` scores.
  void judge(int64_t b, int64_t h, const float* scores, int64_t count, int64_t token) {
    const BlockCosts& w = l.block_costs;
    const float top = scores[largest_of(scores, count)];
    vec all{};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) all += exponential(load(scores + i) - top);
    double total = sum(all);
    for (; i < count; i++) total += exponential(scores[i] - top);
    const float log_odds = -logarithm(fill((float)std::fmax(total - 1, LEAST_ODDS)))[0];
    take(b, h, 1 / (1.0 + odds(-(w.offset + w.exponent * log_odds))), token);
  }

  // exp(x), the same on every processor.
  static float odds(float x) { return exponential(std::fmin(x, 79.0f)); }

  // Takes into account that row b's proposal of head p(h + 2) passes with this probability.
  void take(int64_t b, int64_t h, double passes, int64_t token) {
    double& usual = typical[(l.position[b] + h + 1) % s.size.channels];
    usual += (passes - usual) / MEMORY;
    survival[b - begin] *= passes;
    if (l.limit[b] - l.position[b] > h + 1) share += survival[b - begin];
    stop_at(b, token);
  }

  // No token of row b counts after its end token.
  void stop_at(int64_t b, int64_t token) {
    if (token == l.end_token) survival[b - begin] = 0;
  }

  // Takes the first `size` tokens of a block into account, and returns whether more of them may pay.
  bool more(int64_t size) {
    const BlockCosts& w = l.block_costs;
    expected += share;
    if (size <= l.minimum || expected - speed * w.costs[size - 1] > surplus) {
      best = size;
      chosen = expected;
      surplus = expected - speed * w.costs[size - 1];
    }
    double hope = expected;
    for (int64_t n = size; n < w.count; n++) {
      share *= typical[(l.position[begin] + n) % s.size.channels];
      hope += share;
      if (n < l.minimum || hope - speed * w.costs[n] > surplus) {
        share = 0;
        return true;
      }
    }
    return false;
  }

  // Takes the best size for the next iteration.
  void settle() {
    std::fill(l.block_costs.sizes + begin, l.block_costs.sizes + end, best);
    rate[0] += chosen / rows - rate[0] / MEMORY;
    rate[1] += l.block_costs.costs[best - 1] - rate[1] / MEMORY;
    // Every row has the running values, since the first one may be dropped before the others end.
    const int64_t entries = 2 + s.size.channels;
    for (int64_t b = begin + 1; b < end; b++) std::copy_n(rate, entries, rate + (b - begin) * entries);
  }

  static constexpr double MEMORY = 100;
  static constexpr double LEAST_ODDS = 1e-6;  // of all other tokens, so that the logarithm is finite
};

}  // namespace
