// Tests of kernels/vectors.h.

#include <algorithm>
#include <cfloat>

#include "kernels/vectors.h"
#include "test/check.h"

namespace {

// Numbers whose products and sums are difficult to round.
std::vector<float> difficult() {
  std::vector<float> out;
  for (const uint32_t bits : {0x00000000u, 0x00000001u, 0x00000003u, 0x007FFFFFu, 0x00800000u, 0x00800001u, 0x01000000u, 0x0C000001u,
                              0x1F800000u, 0x20000001u, 0x33000000u, 0x33800000u, 0x33800001u, 0x34000000u, 0x39800000u, 0x3F000000u,
                              0x3F7FFFFFu, 0x3F800000u, 0x3F800001u, 0x3F801000u, 0x3FFFFFFFu, 0x4B000001u, 0x4B7FFFFFu, 0x5F800000u,
                              0x7E800001u, 0x7F000000u, 0x7F7FFFFFu, 0x7F800000u}) {
    out.push_back(float_of(bits));
    out.push_back(-float_of(bits));
  }
  out.push_back(NAN);
  return out;
}

// The largest result that the C library's fmaf may round twice: musl's, which WebAssembly has, does so with subnormal numbers.
// The digest tells whether these results of `fused` are right.
#if defined(__wasm__)
constexpr float MAY_BE_WRONG = FLT_MIN;
#else
constexpr float MAY_BE_WRONG = -1;
#endif

// Compares the fused products of many triples with the C library's.
struct Triples {
  float x[LANES], y[LANES], total[LANES];
  int count = 0;
  Digest* digest;

  void add(float a, float b, float c) {
    x[count] = a, y[count] = b, total[count] = c;
    if (++count < LANES) return;
    count = 0;
    float out[LANES];
    store(out, fused(load(x), load(y), load(total)));
    for (int i = 0; i < LANES; i++) {
      const float expected = std::fma(x[i], y[i], total[i]);
      if (!(std::fabs(expected) <= MAY_BE_WRONG))
        CHECK_WITH(same(out[i], expected), "fused(%a, %a, %a) is %a, not %a", x[i], y[i], total[i], out[i], expected);
      if (out[i] == out[i]) digest->add(out + i, 1);
    }
  }
};

void test_fused(Digest& digest) {
  Triples triples{{}, {}, {}, 0, &digest};
  const std::vector<float> numbers = difficult();
  for (const float x : numbers)
    for (const float y : numbers)
      for (const float total : numbers) triples.add(x, y, total);
  // Sums beside the midpoint of two floats, from which they differ by less than a double can hold.
  Numbers random;
  for (int i = 0; i < 20000; i++) {
    const int shift = (int)random.integer(25, 90);
    const float odd = 1 + (random.next() >> 9) * 0x1p-23f, half = (float)std::ldexp(1.0, -24 - (int)random.integer(0, 1));
    const float tiny = std::ldexp(random.real(), -shift), sign = random.next() >> 31 ? -1.0f : 1.0f;
    triples.add(half * sign, 1 + tiny, odd);
    triples.add(odd, sign * 0x1p24f, 1 + tiny);
    const float near = 1 + 0x1p-12f * random.integer(1, 15);
    triples.add(near, 1 + 0x1p-12f * random.integer(1, 15), sign * std::ldexp(1 + tiny, -50));
    triples.add(std::ldexp(odd, -75), std::ldexp(1.5f, -74), sign * std::ldexp(tiny, -100));  // denormal results
  }
  for (int i = 0; i < 100000; i++) {
    const uint32_t x = random.next(), y = random.next();
    triples.add(float_of(x), float_of(y), float_of(random.next()));
    // A sum of the size of the product, of which much or all is cancelled.
    const float a = float_of((x & 0x8FFFFFFF) | 0x38000000), b = float_of((y & 0x8FFFFFFF) | 0x38000000);
    triples.add(a, b, -(a * b));
    triples.add(a, b, std::ldexp(a * b, (int)random.integer(-30, 30)));
  }
}

void test_lanes() {
  Numbers random;
  const std::vector<float> values = random.reals(LANES), others = random.reals(LANES);
  const vec a = load(values.data()), b = load(others.data());
  const ivec less = a < b, number = numbers();
  const vec chosen = pick(less, a, b);
  for (int i = 0; i < LANES; i++) {
    CHECK(a[i] == values[i] && number[i] == i && fill(3.5f)[i] == 3.5f);
    CHECK(less[i] == (values[i] < others[i] ? -1 : 0) && (a > b)[i] == (values[i] > others[i] ? -1 : 0));
    CHECK((a >= a)[i] == -1 && (a <= b)[i] == less[i]);
    CHECK(chosen[i] == std::min(values[i], others[i]) && larger(a, b)[i] == std::max(values[i], others[i]));
    CHECK_SAME((a + b)[i], values[i] + others[i]);
    CHECK_SAME((a * b)[i], values[i] * others[i]);
    CHECK_SAME((a / b)[i], values[i] / others[i]);
    CHECK_SAME((-a)[i], -values[i]);
    CHECK(as<ivec>(a)[i] == (int32_t)bits_of(values[i]));
    CHECK(converted<vec>(number - 7)[i] == i - 7 && converted<ivec>(a * 1000.0f)[i] == (int32_t)(values[i] * 1000.0f));
    ivec one{};
    CHECK(!any(one));
    int32_t mask[LANES] = {};
    mask[i] = -1;
    CHECK(any(load(mask)));
    CHECK(quarter<0>(number)[i % 4] == i % 4 && quarter<3>(number)[i % 4] == 12 + i % 4);
  }
}

// Sums over lanes have one order.
void test_folding(Digest& digest) {
  Numbers random;
  for (int n = 0; n < 100; n++) {
    std::vector<float> x = random.reals(LANES, 100);
    const vec v = load(x.data());
    CHECK(largest(v) == *std::max_element(x.begin(), x.end()));
    const float total = sum(v);
    for (int half = LANES / 2; half; half /= 2)
      for (int i = 0; i < half; i++) x[i] += x[i + half];
    CHECK_SAME(total, x[0]);
    digest.add(&total, 1);
    int32_t whole[LANES], expected = 0;
    for (int32_t& value : whole) expected += value = (int32_t)random.integer(-1000, 1000);
    CHECK(sum(load(whole)) == expected);
  }
}

// The largest error of a function in steps of 1 / `per` on [low, high], relative to the exact result.
template <typename Approximate, typename Exact>
double error_of(double low, double high, int per, const Approximate& approximate, const Exact& exact, Digest& digest) {
  double most = 0;
  for (int64_t i = (int64_t)(low * per); i < (int64_t)(high * per); i += LANES) {
    const vec x = (converted<vec>(numbers()) + (float)i) / (float)per, y = approximate(x);
    float out[LANES];
    store(out, y);
    digest.add(out, LANES);
    for (int n = 0; n < LANES; n++) {
      const double expected = exact((double)x[n]);
      most = std::max(most, std::fabs((double)out[n] - expected) / expected);
    }
  }
  return most;
}

void test_exponentials(Digest& digest) {
  const auto natural = [](vec x) { return exponential(x); };
  const double error = error_of(-87, 79.9, 997, natural, [](double x) { return std::exp(x); }, digest);
  CHECK_WITH(error <= 2e-7, "%g", error);
  CHECK(exponential(0.0f) == 1);
  CHECK(exponential(-INFINITY) == exponential(-87.0f) && exponential(-1000.0f) == exponential(-87.0f));
  const auto two = [](double x) { return std::exp2(x); };
  const double fine = error_of(-125, 8, 997, [](vec x) { return power_of_two(x); }, two, digest);
  const double coarse = error_of(-125, 8, 997, [](vec x) { return power_of_two<true>(x); }, two, digest);
  CHECK_WITH(fine <= 2e-7 && coarse <= 8e-5, "%g %g", fine, coarse);
  for (int n = 0; n <= 126; n++) CHECK(power_of_two(fill(-n))[n % LANES] == (float)std::ldexp(1.0, -n));
  for (const float x : {-126.6f, -1e30f, -INFINITY, NAN}) CHECK(power_of_two(fill(x))[0] == 0 && power_of_two<true>(fill(x))[0] == 0);
}

// The definition of `largest_of`.
int64_t first_largest(const float* scores, int64_t count) {
  int64_t argmax = 0;
  float top = -INFINITY;
  for (int64_t v = 0; v < count; v++)
    if (scores[v] > top) top = scores[v], argmax = v;
  return argmax;
}

void test_argmax() {
  Numbers random;
  for (int64_t count = 1; count <= 5 * LANES + 3; count++)
    for (int kind = 0; kind < 12; kind++) {
      std::vector<float> scores = random.reals(count);
      for (float& x : scores) {
        if (kind % 3 == 1) x = (float)random.integer(0, 2);  // ties
        if (kind % 4 == 3 && random.next() % 3 == 0) x = NAN;
        if (kind % 4 == 2 && random.next() % 2 == 0) x = -INFINITY;
      }
      if (kind == 11) std::fill(scores.begin(), scores.end(), count % 2 ? NAN : -INFINITY);
      const int64_t expected = first_largest(scores.data(), count), found = largest_of(scores.data(), count);
      CHECK_WITH(found == expected, "%lld of %lld is %lld", (long long)found, (long long)count, (long long)expected);
    }
  for (int64_t place = 0; place < 100; place++) {  // the largest score, and a later equal one, at every place
    std::vector<float> scores(100, -5.0f);
    scores[place] = scores[place + (99 - place) / 2] = 1;
    CHECK(largest_of(scores.data(), 100) == place);
  }
}

}  // namespace

uint64_t test_vectors() {
  Digest digest;
  test_fused(digest);
  test_lanes();
  test_folding(digest);
  test_exponentials(digest);
  test_argmax();
  return digest.value;
}
