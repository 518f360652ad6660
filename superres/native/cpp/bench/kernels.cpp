// Speed of the kernels on one core, in billions of multiplications with addition per second (GMAC/s), and as a share of the
// peak: what a loop over registers alone reaches with the instructions of this variant. The arguments are sizes in bytes: the
// speed of reading so much memory again and again is printed first.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kernels/attention.h"
#include "kernels/convolution.h"

namespace {

// Keeps the compiler from computing with a vector ahead of the loop that uses it.
template <typename T>
ALWAYS_INLINE void hide(Vector<T>& v) {
  UNROLL for (int i = 0; i < REGISTERS; i++) {
    typename Vector<T>::Part part = v.part[i];  // GCC would leave an array that has operands of asm in memory
    asm volatile("" : IN_REGISTER(part));
    v.part[i] = part;
  }
}

ALWAYS_INLINE void hide(Stored& stored) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
  hide(stored.bytes);
#else
  hide(stored.even), hide(stored.odd);
#endif
}

volatile float sink;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// GMAC/s of calls of `body`, which does `macs` each: the best of some runs.
template <typename Body>
double speed(double macs, const Body& body, int runs = 20) {
  double best = 0;
  int64_t calls = 1;
  for (int run = 0; run < runs;) {
    const double start = seconds();
    for (int64_t i = 0; i < calls; i++) body();
    const double took = seconds() - start;
    if (took < 1e-3) {
      calls *= 2;
      continue;
    }
    best = std::max(best, macs * calls / took * 1e-9);
    run++;
  }
  return best;
}

// Memory that begins at a multiple of 64 bytes, with numbers that are no denormals.
template <typename T>
struct Aligned {
  std::unique_ptr<void, void (*)(void*)> memory;
  explicit Aligned(int64_t count) : memory(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64), std::free) {
    for (int64_t i = 0; i < count; i++) {
      const float value = 0.25f + 0.001f * (i * 7 % 501);
      const uint32_t bytes = 0x84817E7Bu + (uint32_t)i % 7;
      if constexpr (std::is_same<T, float>::value) data()[i] = value;
      else std::memcpy(data() + i, &bytes, std::min(sizeof(T), sizeof bytes));
    }
  }
  T* data() { return (T*)memory.get(); }
};

#if defined(__AVX512F__)
constexpr int ACCUMULATORS = 16;  // as many as UNROLL unrolls: others would not stay in registers
#elif defined(__aarch64__)
constexpr int ACCUMULATORS = 24 / REGISTERS;
#else
constexpr int ACCUMULATORS = 12 / REGISTERS;
#endif
constexpr int LOOPS = 1000;

// `add` on independent accumulators, always of one operand.
template <typename Total, typename Operand, typename Add>
double peak(double macs, const Operand& given, const Add& add) {
  return speed(macs * LOOPS * ACCUMULATORS, [&] {
    Operand operand = given;
    Total total[ACCUMULATORS];
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) {
      total[i] = Total{};
      hide(total[i]);
    }
    for (int n = 0; n < LOOPS; n++) {
      UNROLL for (int i = 0; i < ACCUMULATORS; i++) {
        hide(operand);
        total[i] = add(total[i], operand);
      }
    }
    Total all{};
    UNROLL for (int i = 0; i < ACCUMULATORS; i++) all += total[i];
    sink = (float)sum(all);
  }, 200);  // all shares depend on it
}

double float_peak() {
  return peak<vec>(LANES, fill(0.5f), [](vec total, vec x) { return fused(x, x, total); });
}

// bfloat16 weights, each of which is widened and used once.
double widened_peak() {
  return peak<vec>(2 * LANES, uvec(0x3F003F00u), [half = fill(0.5f)](vec total, uvec w) {
    return fused(half, as<vec>(w & uvec(0xffff0000u)), fused(half, as<vec>(w << 16), total));
  });
}

double byte_peak() {
  int8_t bytes[LANES] = {1, 2, 3, 4};
  Quad quads[LANES / 4];
  to_quads(bytes, LANES, quads);
  return peak<ivec>(4 * LANES, Stored(uvec(0x84828180u)),
                    [quad = quads[0]](ivec total, const Stored& stored) { return dot4(total, stored, quad); });
}

// GB/s of reading `bytes` bytes of memory.
double read_speed(int64_t bytes) {
  constexpr int64_t STEP = 8 * LANES;
  const int64_t count = (bytes / 4 + STEP - 1) / STEP * STEP;
  Aligned<uint32_t> memory(count);
  return speed(4.0 * count, [&] {
    uvec total[STEP / LANES] = {};
    for (int64_t i = 0; i < count; i += STEP) {
      UNROLL for (int64_t v = 0; v < STEP / LANES; v++) total[v] |= load(memory.data() + i + v * LANES);
    }
    for (int64_t v = 1; v < STEP / LANES; v++) total[0] |= total[v];
    sink = (float)sum(total[0]);
  });
}

// A product of rows by a square weight; each weight has `inputs` inputs.
template <typename K>
double product_speed(int64_t size, int64_t rows, int64_t inputs) {
  const int64_t steps = size / inputs, xs = steps * K::values;
  Aligned<typename K::weight> weight(size * steps);
  Aligned<typename K::value> x(rows * xs);
  Aligned<float> bias(size), scale(size), y(rows * size);
  const std::vector<ByteRow> units(rows, ByteRow{0.01f, 5});
  return speed((double)rows * size * size, [&] {
    product<K>(weight.data(), steps, steps * PANEL, size / PANEL, bias.data(), {scale.data(), units.data()}, x.data(), xs, rows,
               y.data(), size, STORE);
    sink = y.data()[0];
  });
}

// Attention of an attention head over 128 positions.
double attention_speed(bool bytes, int64_t size, int64_t rows) {
  constexpr int64_t POSITIONS = 128;
  Aligned<float> query(rows * size), key(POSITIONS * size), value(POSITIONS * size), weights(rows * POSITIONS), out(rows * size),
      scale(POSITIONS);
  Aligned<uint32_t> key_bytes(POSITIONS * size / 4), value_bytes(POSITIONS * size / 4);
  const std::vector<int64_t> from(rows, 0), last(rows, POSITIONS - 1);
  const HeadCache cache = bytes ? HeadCache{key_bytes.data(), value_bytes.data(), scale.data(), scale.data()}
                                : HeadCache{key.data(), value.data(), nullptr, nullptr};
  return speed(2.0 * rows * size * POSITIONS, [&] {
    attend_rows(rows, query.data(), size, cache, POSITIONS, size, from.data(), last.data(), nullptr, weights.data(), POSITIONS,
                out.data(), size);
    sink = out.data()[0];
  });
}

// A convolution of an image of 16 x 16 pixels: 36 multiplications per tile and pair of channels.
double convolution_speed(int64_t channels) {
  Maps from{16, 16, channels, nullptr}, to = from;
  Aligned<float> input(from.size()), output(from.size()), weight(36 * channels * channels), bias(channels);
  from.values = input.data(), to.values = output.data();
  const int64_t tiles = from.tiles();
  return speed(36.0 * tiles * channels * channels, [&] {
    const auto multiply = [&](int k, const float* v, float* m) {
      product<Single>(weight.data() + k * channels * channels, channels, channels * PANEL, channels / PANEL, nullptr, {}, v,
                      channels, tiles, m, channels, STORE);
    };
    convolve_tiles(multiply, bias.data(), from, to, STORE, 0, tiles);
    sink = to.at(0, 0)[0];
  });
}

}  // namespace

int main(int count, char** sizes) {
  for (int i = 1; i < count; i++) std::printf("read: %s bytes %.1f GB/s\n", sizes[i], read_speed(std::atoll(sizes[i])));
  const double most = float_peak(), most_bytes = byte_peak();
  const auto show = [](double gmacs, double peak) { std::printf("   %6.1f %4.2f", gmacs, gmacs / peak); };
  std::printf("peak: float32 %.1f GMAC/s, bfloat16 %.1f, int8 %.1f; each column: GMAC/s, share of the peak\n", most,
              widened_peak(), most_bytes);
  std::printf("%-9s%14s%14s%14s%14s%14s%14s\n", "product", "float32 64", "128", "bfloat16 64", "128", "int8 64", "128");
  for (int64_t rows = 1; rows <= 12; rows++) {
    std::printf("%2d rows  ", (int)rows);
    for (const int64_t size : {64, 128}) show(product_speed<Single>(size, rows, 1), most);
    for (const int64_t size : {64, 128}) show(product_speed<Paired>(size, rows, 2), most);
    for (const int64_t size : {64, 128}) show(product_speed<Bytes>(size, rows, 4), most_bytes);
    std::printf("\n");
  }
  std::printf("%-9s%14s%14s%14s%14s\n", "attention", "float32 16", "32", "int8 16", "32");
  for (const int64_t rows : {1, 4, 10}) {
    std::printf("%2d rows  ", (int)rows);
    for (const int64_t size : {16, 32}) show(attention_speed(false, size, rows), most);
    for (const int64_t size : {16, 32}) show(attention_speed(true, size, rows), most_bytes);
    std::printf("\n");
  }
  std::printf("%-9s%14s%14s\n%9s", "convolve", "float32 64", "128", "");
  for (const int64_t channels : {64, 128}) show(convolution_speed(channels), most);
  std::printf("\n");
}
