// Tests of kernels/products.h and kernels/int8.h.

#include <algorithm>

#include "kernels/products.h"
#include "test/check.h"

namespace {

constexpr int64_t ROWS = 25, PANELS = 7, OUTPUTS = PANELS * PANEL;
static_assert(ROWS > 2 * MAX_ROWS, "the last rows are two tiles of similar size, after a whole one");

// A product's operands, and its sums [ROWS, OUTPUTS] by definition, without and with the bias.
template <typename K>
struct Operands {
  int64_t steps, stride, xs;
  std::vector<typename K::weight> weight;
  std::vector<typename K::value> x;
  std::vector<float> bias, scale;
  std::vector<ByteRow> rows;
  std::vector<float> sums[2];

  // The place of inputs of an output in the packed weight, `step` counting groups of inputs.
  int64_t place(int64_t step, int64_t output) const { return output / PANEL * stride + step * PANEL + output % PANEL; }
};

// Multiplies `rows` rows by `panels` panels, compares the result with the definition, and returns it.
template <typename K>
std::vector<float> check_product(const Operands<K>& o, int64_t rows, int64_t panels, Mode mode, bool biased) {
  const int64_t ys = panels * PANEL + LANES;  // vectors between the rows, which must not change
  std::vector<float> before(rows * ys), y;
  for (int64_t i = 0; i < rows * ys; i++) before[i] = (float)(i % 17) - 8.25f;
  y = before;
  const float* bias = biased ? o.bias.data() : nullptr;
  product<K>(o.weight.data(), o.steps, o.stride, panels, bias, {o.scale.data(), o.rows.data()}, o.x.data(), o.xs, rows,
             y.data(), ys, mode);
  int64_t wrong = -1;
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < ys; i++) {
      float expected = before[r * ys + i];
      if (i < panels * PANEL) {
        const float sum = o.sums[biased][r * OUTPUTS + i];
        expected = mode == ADD ? sum + expected : mode == RELU && !(sum > 0) ? 0 : sum;
      }
      const float found = y[r * ys + i];
      if (!same(found, expected)) wrong = r * ys + i;
    }
  CHECK_WITH(wrong < 0, "%lld x %lld x %lld, mode %d, bias %d: row %lld, output %lld", (long long)rows, (long long)o.steps,
             (long long)panels, mode, biased, (long long)(wrong / ys), (long long)(wrong % ys));
  return y;
}

// All numbers of rows, and numbers of panels that divide into whole tiles and not.
template <typename K>
void check_tiles(const Operands<K>& o, Digest& digest) {
  for (const int64_t panels : {1, 2, 3, 4, 5, 7})
    for (int64_t rows = 1; rows <= ROWS; rows++)
      for (const Mode mode : {STORE, RELU, ADD})
        for (const bool biased : {false, true}) {
          const std::vector<float> y = check_product(o, rows, panels, mode, biased);
          digest.add(y.data(), y.size());
        }
}

void test_single(Digest& digest) {
  Numbers random;
  for (const int64_t steps : {1, 2, 31}) {
    Operands<Single> o{steps, (steps + 3) * PANEL, steps + 5, {}, {}, {}, {}, {}, {}};
    o.weight = random.reals(PANELS * o.stride), o.x = random.reals(ROWS * o.xs), o.bias = random.reals(OUTPUTS);
    for (const bool biased : {false, true})
      for (int64_t r = 0; r < ROWS; r++)
        for (int64_t output = 0; output < OUTPUTS; output++) {
          float sum = biased ? o.bias[output] : 0;
          double exact = sum, size = std::fabs(sum);
          for (int64_t i = 0; i < steps; i++) {
            const float x = o.x[r * o.xs + i], w = o.weight[o.place(i, output)];
            sum = std::fma(x, w, sum);
            exact += (double)x * w, size += std::fabs((double)x * w);
          }
          CHECK_NEAR(sum, exact, size * (steps + 1) * 0x1p-24);
          o.sums[biased].push_back(sum);
        }
    check_tiles(o, digest);
  }
}

// Weights that are stored as bfloat16 give the bits of the same weights stored as float32.
void test_paired() {
  Numbers random;
  for (const int64_t steps : {2, 32}) {
    Operands<Single> single{steps, (steps + 2) * PANEL, steps + 4, {}, {}, {}, {}, {}, {}};
    single.weight = random.reals(PANELS * single.stride), single.x = random.reals(ROWS * single.xs);
    single.bias = random.reals(OUTPUTS);
    Operands<Paired> paired{steps / 2, single.stride / 2, single.xs, {}, single.x, single.bias, {}, {}, {}};
    paired.weight.resize(PANELS * paired.stride);
    for (int64_t output = 0; output < OUTPUTS; output++)
      for (int64_t i = 0; i < steps; i++) {
        float& w = single.weight[single.place(i, output)];
        const uint32_t half = (uint32_t)bits_of(w) >> 16;
        w = float_of(half << 16);
        paired.weight[paired.place(i / 2, output)] |= half << (i % 2 * 16);
      }
    for (const bool biased : {false, true}) {
      std::vector<float> all(ROWS * OUTPUTS);
      product<Single>(single.weight.data(), steps, single.stride, PANELS, biased ? single.bias.data() : nullptr, {},
                      single.x.data(), single.xs, ROWS, all.data(), OUTPUTS, STORE);
      paired.sums[biased] = all;
    }
    Digest unused;
    check_tiles(paired, unused);
  }
}

// Quantises a row and compares it with the definition.
ByteRow check_quantise(const float* x, int64_t size, int8_t* bytes) {
  const ByteRow row = quantise(x, size, bytes);
  float top = 0;
  for (int64_t i = 0; i < size; i++) top = std::max(top, std::fabs(x[i]));
  int64_t total = 0;
  double absolute = 0, rounded = 0;
  bool right = true;
  for (int64_t i = 0; i < size; i++) {
    const double unit = top / 127.0, exact = unit ? x[i] / unit : 0;
    right = right && std::abs(bytes[i]) <= 127 && std::fabs(bytes[i] - exact) <= 0.5 + 127 * 0x1p-22;
    total += bytes[i], absolute += std::fabs(x[i]), rounded += std::abs(bytes[i]) * (double)row.scale;
  }
  CHECK_WITH(right, "the bytes of a row of %lld, up to %g", (long long)size, top);
  CHECK_SAME(row.scale, top / 127.0f);
  CHECK(row.offset == EXCESS * total);
  const double bound = norm_bound(x, size, row.scale);
  CHECK(bound >= rounded && bound <= (absolute + 0.511 * row.scale * size) * (1 + 1e-6));
  std::vector<Quad> quads(size / 4), direct(size / 4);
  to_quads(bytes, size, quads.data());
  quantise(x, size, direct.data());
  CHECK(!std::memcmp(quads.data(), direct.data(), size / 4 * sizeof(Quad)));
  return row;
}

void test_quantise(Digest& digest) {
  Numbers random;
  int8_t bytes[512];
  for (const int64_t size : {16, 32, 48, 144, 512})
    for (const float scale : {1.0f, 1e-20f, 1e20f}) {
      std::vector<float> x = random.reals(size, scale);
      const ByteRow row = check_quantise(x.data(), size, bytes);
      int32_t whole[512];
      std::copy(bytes, bytes + size, whole);
      digest.add(whole, size);
      digest.add(&row.scale, 1);
      std::fill(x.begin(), x.end(), 0.0f);
      check_quantise(x.data(), size, bytes);
      x[size - 1] = -scale;
      check_quantise(x.data(), size, bytes);
    }
  // Halves are rounded to even bytes.
  std::vector<float> halves(256, 127.0f);
  for (int i = 0; i < 254; i++) halves[i] = (float)i - 126.5f;
  check_quantise(halves.data(), 256, bytes);
  for (int i = 0; i < 254; i++) CHECK(bytes[i] % 2 == 0 && std::fabs(bytes[i] - halves[i]) == 0.5f);
  for (const float tiny : {1e-37f, 1e-40f, 1e-45f}) {  // 127 / tiny is infinite: such rows are 0
    std::vector<float> x(64, tiny);
    x[5] = 0;
    const ByteRow row = quantise(x.data(), 64, bytes);
    CHECK(row.offset == 0 && row.scale == tiny / 127.0f && std::count(bytes, bytes + 64, 0) == 64);
  }
}

void test_byte_vectors() {
  int8_t bytes[LANES], stored[LANES];
  for (int first = -128; first <= 112; first += LANES) {
    for (int i = 0; i < LANES; i++) bytes[i] = (int8_t)(first + i);
    const ivec v = load_bytes(bytes);
    for (int i = 0; i < LANES; i++) CHECK(v[i] == first + i);
    store_bytes(stored, v);
    CHECK(!std::memcmp(bytes, stored, LANES));
  }
  for (int i = -600; i <= 600; i++) CHECK(nearest(fill(i * 0.5f), 0.5f)[5] == std::nearbyint(i * 0.25));
}

// Sums of four products of stored bytes and quads, or levels, at all extremes.
void test_dot4() {
  Numbers random;
  for (int n = 0; n < 400; n++) {
    int8_t row[LANES];
    std::vector<uint8_t> stored = random.stored_bytes(4 * LANES);
    for (int8_t& x : row) x = (int8_t)(n < 200 ? random.integer(-127, 127) : random.next() % 2 ? 127 : -127);
    if (n >= 300)
      for (uint8_t& x : stored) x = random.next() % 2 ? 255 : 1;
    Quad quads[LANES / 4];
    Levels levels[LANES / 4];
    to_quads(row, LANES, quads);
    int32_t sizes[LANES];
    for (int i = 0; i < LANES; i++) sizes[i] = std::abs(row[i]) + 256;  // the lowest byte counts
    store_levels(levels, load(sizes));
    uint32_t words[LANES];
    std::memcpy(words, stored.data(), sizeof words);
    for (int q = 0; q < LANES / 4; q++) {
      const ivec total = dot4(numbers() * 1000, Stored(load(words)), quads[q]);
      const ivec weighted = dot4(numbers() * 1000, Signed(load(words)), levels[q]);
      for (int lane = 0; lane < LANES; lane++) {
        int32_t expected = lane * 1000, of_levels = lane * 1000;
        for (int i = 0; i < 4; i++) {
          expected += (stored[4 * lane + i] - 128 + EXCESS) * row[4 * q + i];
          of_levels += (stored[4 * lane + i] - 128) * std::abs(row[4 * q + i]);
        }
        CHECK_WITH(total[lane] == expected, "%d and %d", total[lane], expected);
        CHECK_WITH(weighted[lane] == of_levels, "%d and %d", weighted[lane], of_levels);
      }
    }
  }
}

void test_bytes(Digest& digest) {
  Numbers random;
  for (const int64_t steps : {4, 12, 256}) {
    const bool extreme = steps == 256;
    const int64_t inputs = 4 * steps;
    Operands<Bytes> o{steps, (steps + 2) * PANEL, steps + 1, {}, {}, {}, {}, {}, {}};
    std::vector<uint8_t> w = random.stored_bytes(4 * PANELS * o.stride);
    if (extreme) std::fill(w.begin(), w.end(), 255);
    o.weight.resize(PANELS * o.stride), o.x.resize(ROWS * o.xs);
    std::memcpy(o.weight.data(), w.data(), w.size());
    o.bias = random.reals(OUTPUTS), o.scale = random.reals(OUTPUTS);
    std::vector<int8_t> bytes(ROWS * inputs);
    for (int64_t r = 0; r < ROWS; r++) {
      const std::vector<float> x = extreme ? std::vector<float>(inputs, r % 2 ? -1.0f : 1.0f) : random.reals(inputs);
      o.rows.push_back(check_quantise(x.data(), inputs, &bytes[r * inputs]));
      to_quads(&bytes[r * inputs], inputs, &o.x[r * o.xs]);
    }
    for (const bool biased : {false, true})
      for (int64_t r = 0; r < ROWS; r++)
        for (int64_t output = 0; output < OUTPUTS; output++) {
          int64_t sum = 0;
          for (int64_t i = 0; i < inputs; i++) sum += (w[4 * o.place(i / 4, output) + i % 4] - 128) * bytes[r * inputs + i];
          const float value = (float)sum * (o.scale[output] * o.rows[r].scale);
          o.sums[biased].push_back(biased ? value + o.bias[output] : value);
        }
    check_tiles(o, digest);
  }
}

void test_normalise(Digest& digest) {
  Numbers random;
  for (const int64_t size : {16, 48, 128, 512}) {
    std::vector<float> x = random.reals(size, 10), y(size);
    for (float& value : x) value += 3;
    const std::vector<float> weight = random.reals(size), bias = random.reals(size);
    double mean = 0, squares = 0;
    for (const float value : x) mean += value / (double)size;
    for (const float value : x) squares += (value - mean) * (value - mean) / (double)size;
    normalise(x.data(), size, weight.data(), bias.data(), y.data());
    digest.add(y.data(), size);
    for (int64_t i = 0; i < size; i++)
      CHECK_NEAR(y[i], (x[i] - mean) / std::sqrt(squares + 1e-5) * weight[i] + bias[i], 3e-6);
    normalise(x.data(), size, weight.data(), bias.data(), x.data());
    CHECK(x == y);  // in place
  }
}

}  // namespace

uint64_t test_products() {
  Digest digest;
  test_single(digest);
  test_paired();
  test_quantise(digest);
  test_byte_vectors();
  test_dot4();
  test_bytes(digest);
  test_normalise(digest);
  return digest.value;
}
