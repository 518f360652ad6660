// Tests of whole decodes through the interface of native.cpp: small models with pseudo-random weights encode, verify and
// propose. The tokens, scores and conditioning must have the recorded bits in every variant. Whether they are those of the
// network in Python, tests/proofs/test_native.py checks.

#include <algorithm>
#include <deque>
#include <string>

#include "abi.h"
#include "test/check.h"

namespace {

typedef std::vector<int64_t> Integers;

int64_t padded(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Weights and memory, which stay where they are.
struct Memory {
  Numbers random;
  std::deque<std::vector<float>> floats;
  std::deque<Integers> integers;
  std::deque<std::vector<uint8_t>> bytes;
  std::deque<std::vector<Linear>> linears;

  float* zeros(int64_t count) { return floats.emplace_back(count).data(); }
  float* reals(int64_t count, float scale) { return floats.emplace_back(random.reals(count, scale)).data(); }
  // Weights of a norm.
  float* around_one(int64_t count) {
    float* out = reals(count, 0.2f);
    for (int64_t i = 0; i < count; i++) out[i] += 1;
    return out;
  }
  int64_t* keep(Integers values) { return integers.emplace_back(std::move(values)).data(); }

  // A product with pseudo-random weights of about scale / sqrt(inputs).
  Linear linear(int64_t inputs, int64_t outputs, Format format, float scale = 1, bool biased = true) {
    if (inputs % LANES) format = FLOAT32;
    const int64_t panels = padded(outputs, PANEL) / PANEL, all = panels * PANEL, group = format == INT8 ? 4 : 1;
    std::vector<float>& packed = floats.emplace_back(inputs * all);
    const std::vector<float> weight = random.reals(inputs * all, 1.7f * scale / std::sqrt((float)inputs));
    for (int64_t i = 0; i < inputs; i++)
      for (int64_t o = 0; o < outputs; o++)
        packed[((o / PANEL * (inputs / group) + i / group) * PANEL + o % PANEL) * group + i % group] = weight[i * all + o];
    Linear out{inputs, panels, format, packed.data(), nullptr, nullptr};
    if (biased) {
      float* bias = reals(all, 0.3f);
      std::fill(bias + outputs, bias + all, 0.0f);
      out.bias = bias;
    }
    if (format == INT8) round(out);
    return out;
  }

  // Turns a product's weights, already in groups of four inputs, into bytes.
  void round(Linear& linear) {
    const float* weight = (const float*)linear.weight;
    std::vector<uint8_t>& out = bytes.emplace_back(linear.inputs * linear.panels * PANEL);
    float* scale = zeros(linear.panels * PANEL);
    const auto output_of = [&](size_t i) { return (int64_t)i / (linear.inputs * PANEL) * PANEL + (int64_t)i / 4 % PANEL; };
    for (size_t i = 0; i < out.size(); i++) scale[output_of(i)] = std::max(scale[output_of(i)], std::fabs(weight[i]));
    for (int64_t o = 0; o < linear.panels * PANEL; o++) scale[o] = std::max(scale[o] / 127, 1e-30f);
    for (size_t i = 0; i < out.size(); i++) out[i] = (uint8_t)(std::nearbyint(weight[i] / scale[output_of(i)]) + 128);
    linear.weight = out.data();
    linear.scale = scale;
  }
};

// A model of images, with all that is proper to them; or of text.
struct Model {
  const bool image;
  const Format format;
  int64_t D = 128, heads = 8, filter = 256, layers = 2, V = 300, channels = 1, S = 24, T = 40, outputs = V, k = 5;
  Memory memory;
  Encoder encoder{};
  Session session{};

  Model(bool image, Format format) : image(image), format(format) {
    if (image) D = 64, heads = 4, filter = 128, V = 256, channels = 3, S = 12, T = 192, outputs = 3;
    make_encoder();
    if (image) make_conditioning();
    make_weights();
    make_heads();
    if (image) make_neighbourhood();
  }

  const Layer* layers_of(bool decoder) {
    static std::deque<std::vector<Layer>> all;
    std::vector<Layer>& out = all.emplace_back(layers);
    for (Layer& layer : out) {
      layer.projection = memory.linear(D, 3 * D, format);
      layer.output = memory.linear(D, D, format, 0.5f);
      layer.expand = memory.linear(D, filter, format);
      layer.contract = memory.linear(filter, D, format, 0.5f);
      if (decoder && !image) {
        layer.cross_query = memory.linear(D, D, format);
        layer.cross_output = memory.linear(D, D, format, 0.5f);
        layer.cross_source = memory.linear(D, 2 * D, format);
      }
      for (int i = 0; i < 3; i++) layer.norm_weight[i] = memory.around_one(D), layer.norm_bias[i] = memory.reals(D, 0.1f);
    }
    return out.data();
  }

  void make_encoder() {
    encoder.source_length = S, encoder.length = T, encoder.size_d = D, encoder.attention_heads = heads, encoder.filter = filter;
    encoder.layers = layers, encoder.vocabulary = V, encoder.channels = channels, encoder.pre = !image;
    encoder.layer = layers_of(false);
    if (!image) encoder.final_weight = memory.around_one(D), encoder.final_bias = memory.reals(D, 0.1f);
    encoder.token_table = memory.reals(channels * V * D, 1), encoder.source_signal = memory.reals(S * D, 0.5f);
  }

  // Images of 2 x 2 pixels, enlarged to 8 x 8.
  void make_conditioning() {
    Encoder& e = encoder;
    const int64_t cells = 4, taps = 9 * channels;
    e.rows = e.columns = 2, e.height = e.width = 4, e.maps = PANEL, e.blocks = 1, e.residual_scale = 16;
    float* weights[2] = {memory.zeros(16), memory.zeros(16)};
    for (int64_t i = 0; i < 8; i++)
      for (float* each : weights) each[2 * i] = 1.1f - 0.15f * i, each[2 * i + 1] = 1 - each[2 * i];
    e.row_weights = weights[0], e.column_weights = weights[1];
    e.shuffle = memory.linear(D, cells * 4 * e.maps, format);
    std::vector<Linear>& products = memory.linears.emplace_back();
    for (int64_t i = 0; i < 3 * 36; i++)
      products.push_back(memory.linear(i < 36 ? e.maps + LANES : e.maps, e.maps, format, 0.05f, false));
    e.products = products.data();
    e.biases = memory.reals(3 * e.maps, 0.1f);
    e.refinement = memory.linear(e.maps, taps, format, 0.3f, false);
    e.refinement_bias = memory.reals(channels, 0.1f);
    e.vectors = memory.linear(e.maps, channels * D, format, 0.5f);
    e.head_vectors = memory.linear(e.maps, channels * D, format, 0.5f);
    e.signal = memory.reals(T * D, 0.3f);
  }

  void make_weights() {
    const int64_t groups = D / 64;
    session.size.length = T, session.size.d = D, session.size.attention_heads = heads, session.size.filter = filter;
    session.size.layers = layers, session.size.vocabulary = V, session.size.channels = channels, session.size.outputs = outputs;
    session.size.groups = groups;
    session.weights.layer = layers_of(true);
    session.weights.pre = !image;
    session.weights.final_weight = memory.around_one(D), session.weights.final_bias = memory.reals(D, 0.1f);
    session.weights.project = memory.linear(D, outputs, FLOAT32, image ? 0.3f : 2.0f);
    session.weights.token_table = memory.reals((V * channels + 1) * D, 1);
    if (!image) make_filter();
    session.size.stride = std::max(3 * D, session.weights.project.panels * PANEL);
    session.input.position_table = memory.reals(T * D, 0.3f);
  }

  // The int8 copy of the output projection.
  void make_filter() {
    const Linear& exact = session.weights.project;
    Int8Filter& filter = session.weights.int8_filter;
    const int64_t all = exact.panels * PANEL;
    const float* weight = (const float*)exact.weight;
    std::vector<float>& packed = memory.floats.emplace_back(D * all);
    float *norm = memory.zeros(all), *bias = memory.zeros(all);
    for (int64_t o = 0; o < all; o++) {
      bias[o] = o < V ? exact.bias[o] : -INFINITY;
      for (int64_t i = 0; i < D; i++) {
        const float w = weight[(o / PANEL * D + i) * PANEL + o % PANEL];
        norm[o] += std::fabs(w);
        packed[((o / PANEL * (D / 4) + i / 4) * PANEL + o % PANEL) * 4 + i % 4] = w;
      }
    }
    filter.product = {D, exact.panels, INT8, packed.data(), bias, nullptr};
    memory.round(filter.product);
    filter.norm = norm;
  }

  void make_heads() {
    Heads& own = session.heads;
    const int64_t count = k - 1, size = 2 * PANEL, features = image ? 4 + 16 : 0;
    own.count = count, own.size = size;
    own.expand = memory.linear(D, count * size, INT8);
    std::vector<Linear>& contract = memory.linears.emplace_back();
    for (int64_t h = 0; h < count; h++) contract.push_back(memory.linear(size, D, INT8, 0.1f, false));
    own.contract = contract.data();
    own.bias = memory.reals(count * D, 0.05f), own.norm_weight = memory.around_one(D), own.norm_bias = memory.reals(D, 0.1f);
    if (!image) return;
    own.earlier = 2;
    own.adapt = memory.linear(D, features + own.earlier, FLOAT32, 0.1f);
    own.direct = memory.reals(channels * count * features, 0.1f);
  }

  // The neighbours of a target are the three before it of its channel, and the one 8 pixels before it.
  void make_neighbourhood() {
    Neighbourhood& near = session.neighbourhood;
    near.near = 4, near.cell_size = 16, near.features = 20, near.source_length = S;
    Integers neighbours, cell, cell_positions;
    for (int64_t t = 0; t < T; t++) {
      for (const int64_t back : {3, 6, 9, 24}) neighbours.push_back(t >= back ? t - back : T);
      const int64_t row = t / 24 / 4, column = t / 3 % 8 / 4;
      cell.push_back((row * 2 + column) * 3 + t % 3);
      for (int64_t i = 0; i < 16; i++) cell_positions.push_back(((row * 4 + i / 4) * 8 + column * 4 + i % 4) * 3 + t % 3);
    }
    near.near_table = memory.keep(neighbours), near.cell = memory.keep(cell), near.cell_positions = memory.keep(cell_positions);
    near.first = memory.linear(near.features, filter, FLOAT32, 1, false);
    near.second = memory.linear(filter, D, format, 0.5f);
    near.channel_bias = memory.reals(channels * filter, 0.3f);
    near.direct = memory.reals(channels * near.features, 0.05f);
    session.ordinal.parameters = 3, session.ordinal.residual_scale = 16, session.ordinal.initial_sharpness = -1;
  }
};

// A batch of a model's rows being decoded.
struct Batch {
  Model& model;
  Memory memory;
  Session s;
  const int64_t rows, threads;
  Integers lengths;
  std::vector<LayerCache> caches;
  int64_t not_finite = 0;

  Batch(Model& model, int64_t width, Digest& digest, int64_t rows = 3, int64_t threads = 2)
      : model(model), s(model.session), rows(rows), threads(threads), lengths(rows, model.S), caches(model.layers) {
    const int64_t D = model.D, block = model.image ? 64 : model.T;
    Sizes& size = s.size;
    size.batch = rows, size.width = width;
    size.slots = padded((model.image ? 2 * block : model.T) + width + 31, LANES);
    size.block_length = model.image ? block : size.slots;
    size.key_distance = 1;
    s.threads = {threads, 1, 2, 1};
    s.cache = caches.data();
    for (LayerCache& cache : caches) cache.self = self_cache();
    encode(digest);
    s.report.not_finite = &not_finite;
    const int64_t all = rows * width, slots = std::max(size.slots, size.cross_slots);
    s.scratch = {memory.zeros(all * 2 * D), memory.zeros(all * 2 * size.groups * D), memory.zeros(all * size.filter),
                 memory.zeros(all * D), memory.zeros(all * slots * size.attention_heads),
                 memory.zeros(all * s.neighbourhood.features), memory.zeros(all * size.stride)};
  }

  Cache self_cache() {
    const int64_t heads = rows * model.heads, slots = s.size.slots, values = rows * slots * model.D;
    if (model.format != INT8) return {memory.zeros(values), memory.zeros(values), nullptr, nullptr};
    return {memory.zeros(values / 4), memory.zeros(values / 4), memory.zeros(heads * slots), memory.zeros(heads * slots)};
  }

  // The keys and values of all layers.
  std::string cache_bytes() const {
    std::string out;
    const int64_t size = rows * s.size.slots * model.D * (model.format == INT8 ? 1 : sizeof(float));
    for (const LayerCache& cache : caches)
      for (const void* part : {cache.self.key, cache.self.value}) out.append((const char*)part, size);
    return out;
  }

  // Encodes pseudo-random sources; those of text have different lengths.
  void encode(Digest& digest) {
    const int64_t D = model.D, S = model.S, T = model.T, positions = padded(S, LANES);
    Integers sources;
    for (int64_t i = 0; i < rows * S; i++) sources.push_back(memory.random.integer(0, model.V - 1));
    for (int64_t b = 1; !model.image && b < rows; b++) lengths[b] = b == 1 ? 17 : 9;
    float* states = memory.zeros(rows * positions * D);
    Encoded encoded{states, nullptr, nullptr, nullptr, nullptr, S, positions, lengths.data()};
    if (model.image) {
      encoded.position_table = memory.zeros(rows * T * D), encoded.head_table = memory.zeros(rows * T * D);
      encoded.estimate = memory.zeros(rows * T), encoded.residual_sum = memory.zeros(rows * S);
    }
    superres_encode(&model.encoder, &encoded, rows, threads, sources.data());
    digest.add(states, rows * positions * D);
    if (model.image) {
      digest.add(encoded.position_table, rows * T * D);
      digest.add(encoded.head_table, rows * T * D);
      digest.add(encoded.estimate, rows * T);
      digest.add(encoded.residual_sum, rows * S);
      s.input.position_table = encoded.position_table, s.input.conditioned = 1;
      s.heads.conditioning = encoded.head_table;
      s.ordinal.estimate = encoded.estimate, s.neighbourhood.residual_sum = encoded.residual_sum;
      s.neighbourhood.deviation = memory.zeros(rows * (T + 2));
      return;
    }
    s.size.cross_slots = positions;
    float* mask = memory.zeros(rows * positions);
    for (int64_t b = 0; b < rows; b++) std::fill(mask + b * positions + lengths[b], mask + (b + 1) * positions, -INFINITY);
    s.input.cross_mask = mask;
    for (LayerCache& cache : caches)
      cache.cross = {memory.zeros(rows * positions * D), memory.zeros(rows * positions * D), nullptr, nullptr};
    superres_remember(&s, states);
  }

  // A step over known tokens [rows, T] at the positions from `start`. Returns the scores, then the states.
  std::vector<float> step(const Integers& tokens, int64_t start) {
    const int64_t W = s.size.width, all = rows * W, scores = all * model.V;
    std::vector<float> out(scores + all * model.D);
    Integers read(all), position(rows, start);
    for (int64_t r = 0; r < all; r++) read[r] = start + r % W ? tokens[r / W * model.T + start + r % W - 1] : 0;
    superres_step(&s, read.data(), position.data(), out.data() + scores, out.data());
    return out;
  }

  // Decodes in blocks of the session's width. Returns the tokens [rows, T] and counts the iterations.
  Integers decode(Rule rule, int64_t bound, const Sampling* sampling, int64_t& iterations) {
    const int64_t W = s.size.width, T = model.T, stride = 1 + T + W, all = rows * W;
    Integers position(rows, -1), limit(rows, T), store(rows * stride), proposals(all), tokens(all), place(rows), index(rows),
        first(rows), next(all), best(all), record(T * rows * (2 + W));
    std::vector<float> hidden(all * model.D), scores(all * model.V), scratch(rows * superres_propose_room(&s, model.k - 1));
    LoopState l{};
    l.block_size = l.capacity = W, l.stride = stride, l.minimum = 1, l.rule = rule, l.bound = bound, l.end_token = -1;
    l.position = position.data(), l.limit = limit.data(), l.store = store.data(), l.proposals = proposals.data();
    l.tokens = tokens.data(), l.place = place.data(), l.index = index.data(), l.first = first.data(), l.next = next.data();
    l.best_tokens = best.data(), l.hidden = hidden.data(), l.scores = scores.data(), l.scratch = scratch.data();
    l.sampling = sampling;
    iterations = 0;
    while (*std::min_element(position.begin(), position.end()) < T) {
      const int64_t made = superres_iterate(&s, &l, T, W, record.data());
      iterations += made;
      if (!made) break;
    }
    Integers out;
    for (int64_t b = 0; b < rows; b++) out.insert(out.end(), &store[b * stride + 1], &store[b * stride + 1] + T);
    CHECK(!not_finite);
    return out;
  }
};

void add_tokens(const Integers& tokens, Digest& digest) {
  const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
  digest.add(narrow.data(), narrow.size());
}

// Steps over known tokens, the block size at a time: p1's argmax at every column is the next token.
void check_steps(Model& model, const Integers& tokens, Digest& digest) {
  Digest unused;
  const int64_t k = model.k, T = model.T;
  Batch batch(model, k, unused);
  const int64_t all = batch.rows * k;
  int64_t wrong = 0;
  for (int64_t start = 0; start + k <= T; start += k) {
    const std::vector<float> scores = batch.step(tokens, start);
    digest.add(scores.data(), all * model.V);
    for (int64_t r = 0; r < all; r++) {
      const float* own = &scores[r * model.V];
      wrong += std::max_element(own, own + model.V) - own != tokens[r / k * T + start + r % k];
    }
  }
  CHECK_WITH(!wrong, "%lld tokens", (long long)wrong);
}

// Threads that share the columns of steps compute the bits that one thread does: scores and states, and keys and values in a
// ring that wraps.
void check_shared_steps(Model& model, const Integers& tokens) {
  Digest unused;
  for (int64_t rows = 1; rows <= 3; rows++)
    for (int64_t threads = rows + 1; threads <= 4; threads++) {
      Batch alone(model, model.k, unused, rows, 1), shared(model, model.k, unused, rows, threads);
      double seconds[SCORES + 1]{};
      shared.s.report.seconds = seconds;
      for (int64_t start = 0; start + model.k <= model.T; start += model.k)
        CHECK_WITH(alone.step(tokens, start) == shared.step(tokens, start), "%lld rows, %lld threads, position %lld",
                   (long long)rows, (long long)threads, (long long)start);
      CHECK(alone.cache_bytes() == shared.cache_bytes());
      CHECK(*std::min_element(seconds, seconds + SCORES + 1) > 0);
    }
}

void check_model(bool image, Format format, Digest& digest) {
  Model model(image, format);
  int64_t iterations, steps;
  const Integers greedy = Batch(model, 1, digest).decode(DISTANCE, 0, nullptr, steps);
  CHECK(steps == model.T + 1);
  add_tokens(greedy, digest);
  check_steps(model, greedy, digest);
  check_shared_steps(model, greedy);
  // Exact blocks give the same tokens, in fewer iterations.
  const Integers exact = Batch(model, model.k, digest).decode(DISTANCE, 0, nullptr, iterations);
  CHECK(exact == greedy);
  CHECK_WITH(iterations < steps, "%lld iterations, %lld steps", (long long)iterations, (long long)steps);
  for (const Rule rule : {DISTANCE, RANK})
    add_tokens(Batch(model, model.k, digest).decode(rule, 2, nullptr, iterations), digest);
  // So do samples that are coupled to a seed.
  const Integers keys = {5, 6, 1LL << 40};
  const std::vector<float> temperature(model.channels, 0.8f);
  const Sampling sampling{GUMBEL, 12345, model.channels, model.V, 1, keys.data(), temperature.data(), nullptr, nullptr};
  const Integers sample = Batch(model, 1, digest).decode(DISTANCE, 0, &sampling, steps);
  CHECK(sample != greedy);
  CHECK((Batch(model, model.k, digest).decode(DISTANCE, 0, &sampling, iterations) == sample));
  add_tokens(sample, digest);
}

}  // namespace

uint64_t test_decoding() {
  CHECK(superres_self_test() == SELF_TEST);
  Digest digest;
  for (const bool image : {false, true})
    for (const Format format : {FLOAT32, INT8}) check_model(image, format, digest);
  return digest.value;
}
