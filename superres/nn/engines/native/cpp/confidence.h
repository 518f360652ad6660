// The block size of the next iteration, chosen as the heads propose: superres/decoding/confidence.py.

#pragma once

#include "scores.h"

namespace {

// The expected tokens per second of a team's rows at each block size, and the best block size.
struct BlockSize {
  const Session& s;
  const Loop& l;
  int64_t begin, best = 1;
  double share = 0, expected = 0, gain = 0;  // rows that accept the latest token; sum of shares; tokens per second
  std::vector<double> survival;              // of each row

  BlockSize(const Session& s, const Loop& l, int64_t begin, int64_t end) : s(s), l(l), begin(begin), survival(end - begin, 1.0) {
    for (int64_t b = begin; b < end; b++) share += l.position[b] < l.limit[b];
  }

  // Reads row b's proposal of head p(h + 2), given the head's centre and log(1 / s).
  void judge(int64_t b, int64_t h, float centre, float sharpness, int64_t token) {
    const Widths& w = l.widths;
    const float slope = std::exp(w.offset + w.exponent * sharpness), above = centre - (float)token, most = (float)(s.vocabulary - 1);
    const float low = token <= w.reach ? 0 : std::exp(-slope * std::fmax(w.reach + above, 0.0f));
    const float high = token >= most - w.reach ? 0 : std::exp(-slope * std::fmax(w.reach - above, 0.0f));
    survival[b - begin] *= 1 - (low + high) / 2;
    if (l.limit[b] - l.position[b] > h + 1) share += survival[b - begin];
  }

  // Takes the first `size` tokens of a block into account, and returns whether more of them may pay.
  bool more(int64_t size) {
    const double* costs = l.widths.costs;
    expected += share;
    if (expected > gain * costs[size - 1]) best = size, gain = expected / costs[size - 1];
    double hope = expected;
    for (int64_t n = size; n < l.widths.count; n++) {
      share *= l.widths.optimism;
      hope += share;
      if (n < l.minimum || hope > gain * costs[n]) {
        share = 0;
        return true;
      }
    }
    return false;
  }
};

}  // namespace
