// What Python and C++ share: the only declaration of its constants, enums, structures and functions.
//
// superres/native/abi.py reads this file, so it keeps to a plain subset: `constexpr int N = 1;`, `enum E : int64_t
// { A, B };`, `struct S { ... };` with fields `T a, *b[2];`, and `extern "C" R f(T a, const U* b);`. A library carries the digest
// of the file that it was compiled with, and Python loads no library of another digest.
//
// Shapes: D width, T target positions, S source positions, V vocabulary, W step width, K prediction heads, N features.

#pragma once

#include <cstdint>

constexpr int LANES = 16;      // floats per vector
constexpr int PANEL = 32;      // outputs that are adjacent in a packed weight: two vectors
constexpr int MAX_HEAD = 256;  // largest size of an attention head over bytes

// The finite points of Winograd's convolution besides 0, in eighths and with either sign: see kernels/convolution.h.
constexpr int NEAR_EIGHTHS = 5;
constexpr int FAR_EIGHTHS = 9;

// The formats of weights.
enum Format : int64_t { FLOAT32, BFLOAT16, INT8 };

// y = x @ weight + bias. A group of 1, 2 or 4 inputs of an output lies side by side, as float32, bfloat16 or int8:
// [outputs / PANEL][inputs / group][PANEL][group], outputs padded with zeros. Bytes are unsigned, 128 larger than they count.
// FLOAT32 and BFLOAT16 give the same bits: bfloat16 is how float32 weights are stored whose lower halves are 0.
struct Linear {
  int64_t inputs, panels;
  Format format;
  const void* weight;
  const float* bias;   // null without one
  const float* scale;  // only INT8, per output: the weight that one unit stands for
};

// An int8 copy of the output projection, which bounds its scores: see `screened_argmax`.
struct Int8Filter {
  Linear product;     // bias -inf for padding outputs; its weight is null without a filter
  const float* norm;  // per output: sum of |weight|
};

// Softmax attention over a cache: keys [row][head][slots / LANES][size][LANES], values [row][head][slots][size], as float32.
// With scales, as bytes 128 larger than they count: keys [row][head][slots / LANES][size / 4][LANES][4], values
// [row][head][slots / 4][size][4].
struct Cache {
  void *key, *value;
  float *key_scale, *value_scale;  // [row][head][slots], what one unit stands for; null for float32
};

struct Layer {
  Linear projection, output, expand, contract, cross_query, cross_output, cross_source;  // the last: keys, then values
  const float *norm_weight[3], *norm_bias[3];  // before (if `pre`) or after attention, cross-attention, feed-forward
};

// What the rows of a session have seen, for one layer.
struct LayerCache {
  Cache self, cross;
  float* columns;  // keys, then values, of all columns of a step over a tree, [rows][W][2 * D]; null without a tree
};

// Sizes of a session. D is `d`, W is `width`.
struct Sizes {
  int64_t batch, width, length, d, attention_heads, filter, layers, vocabulary, channels, outputs;
  int64_t slots, block_length, cross_slots;  // of the caches, in keys
  int64_t key_distance;                      // positions from a key to the next one
  int64_t groups;  // of attention heads and of hidden units: see `Layers`
  int64_t stride;  // floats per row of `projected`: 3 * D or the padded outputs, whichever is larger
};

// The weights of the decoder.
struct Weights {
  const Layer* layer;
  int64_t pre;                             // whether norms are before the sub-layers, not after them
  const float *final_weight, *final_bias;  // null where there is no final norm
  Linear project;
  Int8Filter int8_filter;
  const float* token_table;                // [V * channels + 1, D]
};

// What the decoder reads besides tokens.
struct Input {
  const float* position_table;  // [rows or 1, T, D]
  int64_t conditioned;          // whether each row has a position table of its own
  const float* cross_mask;      // [batch, cross_slots], 0 or -inf
};

// Ordinal outputs: scores of intensities around an estimate.
struct Ordinal {
  int64_t parameters;     // outputs that are not scores; 0 without ordinal outputs
  const float* estimate;  // [batch, T]
  float residual_scale, initial_sharpness;
};

// The numeric neighbourhood; `features` (N) is 0 without one.
struct Neighbourhood {
  int64_t features, near, cell_size, source_length;
  const int64_t *near_table, *cell, *cell_positions;  // [T, near], [T], [T, cell_size]
  const float* residual_sum;                          // [batch, S]
  Linear first, second;                               // `first` without bias
  const float *channel_bias, *direct;                 // [channels, filter], [channels, features]
  float* deviation;                                   // [batch, T + 2]; entry T stays 0, for absent neighbours
  float* column_deviation;                            // [batch, W], of the tokens that a step over a tree reads
};

// The columns of a step: see `Tree` in superres/interfaces.py. The root is column 0.
struct Tree {
  int64_t scored, longest;            // of a chain, `longest` is 0 and the rest is not read
  const int64_t *depth, *ancestors;   // [W], [W, longest]
};

// The tokens that recurrent heads choose from, with their rows of the output projection: see superres/tasks/shortlist.py.
struct Shortlist {
  int64_t count;          // tokens of a row, a multiple of PANEL; 0 stands for the whole vocabulary
  const int64_t* tokens;  // [batch, count]; -1 past a row's last token
  const uint8_t* known;   // the projection's int8 weights, 128 larger, [V, D]
  uint8_t* weight;        // those of each row's tokens, as in `Linear`: [batch][count / PANEL][D / 4][PANEL][4]
  float *bias, *scale;    // [batch, count]
};

struct Heads {
  int64_t count, size, dense, earlier, recurrent;  // size is a head's share of the hidden layer
  Linear expand, adapt;
  const Linear* contract;                    // [count], without bias; dense heads read all hidden units; recurrent heads
                                             // share one, with bias
  const float *bias, *norm_weight, *norm_bias;  // bias [count, D]
  const float *conditioning, *direct;        // [rows or 1, T, D]; [channels, count, N]
  // Only recurrent heads: norms before `expand` and before `cross_query`.
  const float *state_weight, *state_bias, *attention_weight, *attention_bias;
  Linear cross_query, cross_output, cross_source;
  Cache cross;
  Shortlist shortlist;
};

// The kinds of sampling.
enum SamplingKind : int64_t { GUMBEL, SPECULATIVE };

// How tokens are sampled: see superres/decoding/plain/sampling.py.
struct Sampling {
  SamplingKind kind;
  int64_t seed;
  int64_t channels, top_k;     // top_k is at most V
  double nucleus;
  const int64_t* keys;         // [batch]
  const float* temperature;    // [channels]
  int32_t* q;                  // only speculative sampling: the distributions of the pending proposals, [batch, capacity, V],
  int64_t* q_total;            // and their sums, [batch, capacity]; 0 without a proposal
};

struct Session;

// A draft model, which proposes in place of the heads, and its scratch.
struct Draft {
  Session* session;                       // null if the heads propose
  int64_t *tokens, *place, *best_tokens;  // [batch, R], [batch], [batch, R], R the session's width
  float *hidden, *scores;                 // [batch, R, D], [batch, R, V]
};

// How iterations choose their block size: see `BlockCosts` in superres/decoding/confidence.py.
struct BlockCosts {
  int64_t count;        // block sizes 1..count
  const double* costs;  // [count]; null if all iterations have the same block size
  int64_t* sizes;       // [batch]
  double* rate;         // [batch, 2 + channels]
  float offset, exponent, reach;
};

// Limits on the sums of groups of tokens: see `Limits` in superres/decoding/limits.py.
struct Limits {
  int64_t count;           // E
  const int64_t *earlier;  // [T + 1, E]; null without limits
  const int64_t *bounds;   // [batch, 2, T + 1]
};

// The window and the pool of n-grams of lookahead decoding: see superres/decoding/plain/lookahead/iteration.py.
struct Lookahead {
  int64_t size, columns, candidates, cells, capacity;      // N, W, G; `size` is 0 in other decodes
  const int64_t *paths, *guesses, *stage, *column;         // [G, N], [W], [cells], [cells]
  int64_t *window, *grams;                                 // [batch, N - 1, W], [batch, capacity, N]
  int64_t *oldest, *found;                                 // [batch]: entry overwritten next, candidates of the next step
};

// The rule of acceptance: a proposal is at most `bound` away from the best token, or among the `bound` best tokens.
enum Rule : int64_t { DISTANCE, RANK };

// The rows of a decode: see `DecodeState` in superres/decoding/plain/state.py.
struct LoopState {
  int64_t block_size, capacity, stride;  // strides of `proposals` and `store`
  int64_t minimum;      // smallest number of tokens accepted per iteration
  Rule rule;
  int64_t bound;
  int64_t end_token;    // -1 without one
  int64_t *position, *limit, *store, *proposals;
  int64_t *tokens, *place, *index, *first, *next, *best_tokens;  // scratch
  float *hidden, *scores, *scratch;
  const Sampling* sampling;  // null if tokens are chosen greedily
  Draft draft;
  BlockCosts block_costs;
  Limits limits;
  Lookahead lookahead;
};

// The parts of a step that are timed.
enum Part : int64_t { INPUT, ATTENTION, FEED_FORWARD, SCORES };

// How the threads share the rows.
struct Threads {
  int64_t count;          // largest number of threads per call
  int64_t waits;          // whether a call uses all its threads even on a busy machine
  int64_t rows_at_once;   // rows that one thread decodes as one group: see `superres_iterate`
  int64_t least_columns;  // fewest columns per thread from which threads share a step's columns: see `step`
};

// Memory of a step, one slice per row of the batch; two each of `x` and `parts` [groups]. `gathered` [rows, W, N] is a result
// as well: the neighbour features.
struct Scratch {
  float *x, *parts, *wide, *attended, *weights, *gathered, *projected;
};

// What a step reports.
struct Report {
  int64_t* not_finite;  // [1], set to 1 if any score is not finite
  double* seconds;      // by `Part`, accumulates the seconds of each part of a step; or null
};

// The rows that are decoded together, and all that a step reads and writes.
struct Session {
  Sizes size;
  Threads threads;
  Weights weights;
  Input input;
  Ordinal ordinal;
  Neighbourhood neighbourhood;
  Heads heads;
  Tree tree;
  LayerCache* cache;  // [layers]
  Scratch scratch;
  Report report;
};

// The encoder. Target images have rows * height rows and columns * width columns; `maps` is 0 without aligned conditioning.
struct Encoder {
  int64_t source_length, length, size_d, attention_heads, filter, layers, vocabulary, pre;
  int64_t channels;                         // of the source
  const Layer* layer;                       // without cross-attention
  const float *final_weight, *final_bias;   // null where there is no final norm
  const float *token_table, *source_signal; // [channels * V, D], [S, D]
  int64_t rows, columns, height, width;     // of the source, and of a cell
  int64_t maps, blocks;
  const float *row_weights, *column_weights;  // of the bicubic enlargement [rows * height, rows], [columns * width, columns]
  Linear shuffle;
  const Linear* products;  // [1 + 2 * blocks, 36]: transformed weights of the convolutions, see `convolve`
  const float* biases;     // [1 + 2 * blocks, maps]
  Linear refinement;       // outputs [9 * channels]: each tap's product
  const float* refinement_bias;  // [channels]
  Linear vectors, head_vectors;  // outputs [channels * D]
  const float* signal;           // [T, D]
  float residual_scale;
};

// What the encoder writes: see `NativeMemory` in superres/native/memory.py. All but the states may be null; without an estimate, all are.
struct Encoded {
  float *states, *position_table, *head_table, *estimate, *residual_sum;
  int64_t stride, positions;  // source tokens and states of a row
  const int64_t* lengths;     // [batch]: encoded positions of each row; further states stay as they are
};

// The SHA-256 of this file when the library was compiled.
extern "C" const char* superres_abi();

// A digest of what the kernels compute from fixed inputs: the same for every variant, compiler and system.
extern "C" uint64_t superres_self_test();

// Encodes sources [batch, S] on at most `threads` threads.
extern "C" void superres_encode(const Encoder* encoder, const Encoded* encoded, int64_t batch, int64_t threads,
                                const int64_t* sources);

// Fills the caches of cross-attention from the states [batch, cross_slots, D] of the sources.
extern "C" void superres_remember(Session* session, const float* states);

// Reads tokens [B, W] at positions [B] + 0..W-1. Writes p1's scores [B, W, V] and the hidden states [B, W, D]; with a
// numeric neighbourhood also its features, into `gathered` [B, W, N].
extern "C" void superres_step(Session* session, const int64_t* tokens, const int64_t* position, float* hidden,
                              float* scores);

// Commits columns [B, count] of the last step over a tree, each a path from the root: their keys and values go to the cache
// at positions [B] + 0..count-1.
extern "C" void superres_keep(Session* session, const int64_t* columns, int64_t count, const int64_t* position);

// Floats of scratch per row that `superres_propose` needs.
extern "C" int64_t superres_propose_room(const Session* session, int64_t count);

// Proposes `count` tokens per row with heads p2.. at step column index[b], in order: argmax(scores / temperature + noise).
// temperature [B, count] and noise [B, count, V] are null for greedy choices. first [B] is p1's token.
extern "C" void superres_propose(Session* session, const int64_t* position, const int64_t* index, const int64_t* first,
                                 int64_t count, const float* hidden, const float* temperature, const float* noise,
                                 float* scratch, int64_t* tokens);

// Does up to `count` decoding iterations, the same as superres/decoding/loop.py, until all rows are complete.
// Returns the number of iterations done. The last one proposes blocks of `following` tokens. Writes the trace of each to
// `record` [count, B, 2 + capacity]: position, accepted tokens, proposals.
//
// Rows do not wait for one another: a small group of rows does all its iterations before the next group starts, so that
// its key-value cache stays in the processor's cache.
extern "C" int64_t superres_iterate(Session* session, LoopState* state, int64_t count, int64_t following,
                                    int64_t* record);
