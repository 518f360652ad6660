// Tests of kernels/attention.h.

#include <algorithm>

#include "kernels/attention.h"
#include "test/check.h"

namespace {

constexpr int64_t ROWS = 25;
static_assert(ROWS > 2 * MAX_ROWS, "the last rows are two tiles of similar size, after a whole one");

// Queries, and a cache whose slots all have contents. Byte caches stand for `key` and `value`, too.
struct Problem {
  int64_t slots, size, rows;
  std::vector<float> query, key, value, mask;  // [rows][size], caches as in `HeadCache`, [slots] or empty
  std::vector<int64_t> from, last;             // [rows], neither descending
  std::vector<uint8_t> key_bytes, value_bytes;
  std::vector<float> key_scale, value_scale;   // [slots]

  Problem(Numbers& random, int64_t slots, int64_t size, int64_t rows)
      : slots(slots), size(size), rows(rows), query(random.reals(rows * size, 10)), key(random.reals(slots * size)),
        value(random.reals(slots * size)), from(rows), last(rows), key_bytes(random.stored_bytes(slots * size)),
        value_bytes(random.stored_bytes(slots * size)), key_scale(slots), value_scale(slots) {
    for (float& x : key_scale) x = 0.01f + 0.004f * random.real();
    for (float& x : value_scale) x = 0.01f + 0.004f * random.real();
  }

  // Query r is at `position` + r, and sees the positions from the latest multiple of `block` at least `reach` before it.
  void place(int64_t position, int64_t block, int64_t reach) {
    for (int64_t r = 0; r < rows; r++) {
      last[r] = position + r;
      from[r] = std::max<int64_t>(0, (last[r] - reach) / block * block);
    }
    // A step may not need more groups than the ring has.
    for (int64_t r = 0; r < rows; r++)
      CHECK((last[std::min(r + MAX_ROWS, rows) - 1] / LANES - from[r] / LANES + 1) * LANES <= slots);
  }

  HeadCache cache(bool bytes) const {
    if (!bytes) return {key.data(), value.data(), nullptr, nullptr};
    return {key_bytes.data(), value_bytes.data(), key_scale.data(), value_scale.data()};
  }
  double key_of(bool bytes, int64_t d, int64_t slot) const {
    if (!bytes) return key[key_place(slot, size) + d * LANES];
    return (key_bytes[(key_place(slot, size / 4) + d / 4 * LANES) * 4 + d % 4] - 128) * (double)key_scale[slot];
  }
  double value_of(bool bytes, int64_t slot, int64_t d) const {
    if (!bytes) return value[slot * size + d];
    return (value_bytes[(slot / 4 * size + d) * 4 + slot % 4] - 128) * (double)value_scale[slot];
  }

  // Queries [first, first + count), together.
  std::vector<float> attend(bool bytes, int64_t first, int64_t count) const {
    const int64_t ws = slots + 3;
    std::vector<float> weights(count * ws), out(count * size);
    attend_rows(count, query.data() + first * size, size, cache(bytes), slots, size, from.data() + first, last.data() + first,
                mask.empty() ? nullptr : mask.data(), weights.data(), ws, out.data(), size);
    return out;
  }
};

// A query by definition, in double; of bytes, from the rounded query. Also a bound on the error of each output: float32 rounds
// scores in proportion to their terms; of bytes, exponentials are coarse, and the weights times the values' scales are rounded
// to multiples of 1 / LEVELS of the largest weight times the largest scale.
void attention_of(const Problem& p, bool bytes, int64_t r, std::vector<double>& out, std::vector<double>& error) {
  std::vector<double> query(p.query.begin() + r * p.size, p.query.begin() + (r + 1) * p.size), weights;
  if (bytes) {
    float top = 0;
    for (const double x : query) top = std::max(top, std::fabs((float)x));
    for (double& x : query) x = std::nearbyint((float)x * (127.0f / top)) * (top / 127.0);
  }
  double most = -INFINITY, total = 0, largest_weight = 0, largest_scale = 0, largest_size = 0;
  for (int64_t position = p.from[r]; position <= p.last[r]; position++) {
    const int64_t slot = position % p.slots;
    double product = 0, size = 0;
    for (int64_t d = 0; d < p.size; d++) {
      product += query[d] * p.key_of(bytes, d, slot);
      size += std::fabs(query[d] * p.key_of(bytes, d, slot));
    }
    const double score = product / std::sqrt(p.size) + (p.mask.empty() || bytes ? 0 : p.mask[slot]);
    largest_size = std::max(largest_size, size);
    weights.push_back(score);
    most = std::max(most, score);
  }
  for (double& x : weights) total += x = std::exp(x - most);
  out.assign(p.size, 0);
  error.assign(p.size, 0);
  for (size_t i = 0; i < weights.size(); i++) {
    const int64_t slot = (p.from[r] + i) % p.slots;
    weights[i] /= total;
    largest_weight = std::max(largest_weight, weights[i]);
    largest_scale = std::max(largest_scale, (double)p.value_scale[slot]);
    for (int64_t d = 0; d < p.size; d++) out[d] += weights[i] * p.value_of(bytes, slot, d);
  }
  for (size_t i = 0; i < weights.size(); i++) {
    const int64_t slot = (p.from[r] + i) % p.slots;
    for (int64_t d = 0; d < p.size; d++) {
      const double value = p.value_of(bytes, slot, d);
      error[d] += std::fabs(weights[i] * value) * ((bytes ? 2e-4 : 1e-6) + largest_size * 0x1p-21);
      if (bytes) error[d] += 0.5001 / LEVELS * largest_weight * largest_scale * std::fabs(value) / p.value_scale[slot];
    }
  }
}

// Compares all queries with the definition; and each with itself in other company, which may not change a bit.
void check(const Problem& p, bool bytes, Digest& digest) {
  const std::vector<float> out = p.attend(bytes, 0, p.rows);
  digest.add(out.data(), out.size());
  bool right = true;
  std::vector<double> expected, error;
  for (int64_t r = 0; r < p.rows; r++) {
    attention_of(p, bytes, r, expected, error);
    for (int64_t d = 0; d < p.size; d++) right = right && std::fabs(out[r * p.size + d] - expected[d]) <= error[d];
    const std::vector<float> alone = p.attend(bytes, r, 1);
    CHECK(!std::memcmp(alone.data(), &out[r * p.size], p.size * sizeof(float)));
  }
  CHECK_WITH(right, "%lld queries of %lld at %lld..%lld of %lld slots, bytes %d", (long long)p.rows, (long long)p.size,
             (long long)p.from[0], (long long)p.last[p.rows - 1], (long long)p.slots, bytes);
}

void test_attend(bool bytes, Digest& digest) {
  Numbers random;
  for (int64_t rows = 1; rows <= ROWS; rows++)
    for (const int64_t size : {16, 32, 48, 64}) {
      Problem p(random, 80 + 16 * (rows % 3), size, rows);
      for (const int64_t position : {(int64_t)0, (int64_t)5, p.slots - 9, 3 * p.slots + 1}) {  // the latter two wrap around
        p.place(position, 8, 17);
        check(p, bytes, digest);
      }
    }
  Problem all(random, 112, 32, 5);  // all groups of the ring, and blocks that begin within a group
  all.place(1000, 1, 91);
  check(all, bytes, digest);
  all.place(1000, 5, 60);
  check(all, bytes, digest);
  if (bytes) {
    Problem wide(random, 64, MAX_HEAD, 3);
    wide.place(70, 8, 40);
    check(wide, true, digest);
  }
}

// Positions of cross-attention: from 0 to the last slot, of which a mask hides the last.
void test_mask(Digest& digest) {
  Numbers random;
  for (const int64_t rows : {1, 3, 7})
    for (const int64_t length : {1, 15, 16, 31, 48}) {
      Problem p(random, 48, 32, rows);
      std::fill(p.last.begin(), p.last.end(), 47);
      p.mask.assign(48, -INFINITY);
      std::fill(p.mask.begin(), p.mask.begin() + length, 0.0f);
      check(p, false, digest);
    }
}

void test_softmax(Digest& digest) {
  Numbers random;
  for (const int64_t groups : {1, 2, 5})
    for (const float unit : {0.5f, 30.0f, 1000.0f}) {
      std::vector<float> scores = random.reals(groups * LANES), weights = scores;
      scores[3] = weights[3] = -INFINITY;
      vec most = fill(-INFINITY);
      for (int64_t g = 0; g < groups; g++) most = larger(load(scores.data() + g * LANES), most);
      float share;
      const int64_t from = 0, last = groups * LANES - 1;
      softmax<1>(Queries(1, nullptr, 0, groups * LANES, 0, &from, &last, weights.data(), 0), unit, &most, &share);
      const double top = *std::max_element(scores.begin(), scores.end());
      double total = 0;
      for (const float x : weights) total += x;
      CHECK_NEAR(share * total, 1, 1e-6);
      CHECK(weights[3] == 0);
      for (int64_t i = 0; i < groups * LANES; i++) {
        const double expected = std::exp2(unit * (scores[i] - top));
        CHECK_NEAR(weights[i], expected, expected * (3e-7 + unit * 0x1p-22) + 2e-38);
      }
      digest.add(weights.data(), weights.size());
      digest.add(&share, 1);
    }
}

}  // namespace

uint64_t test_attention() {
  Digest digest;
  test_attend(false, digest);
  test_attend(true, digest);
  test_mask(digest);
  test_softmax(digest);
  return digest.value;
}
