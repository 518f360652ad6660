// The structures that Python passes to the native code. superres/nn/engines/native/build.py declares them again.
//
// Shapes: D width, T target positions, S source positions, V vocabulary, W step width, K prediction heads, N features.

#pragma once

#include "vectors.h"

extern "C" {

// y = x @ weight + bias. The weight is packed as [outputs / PANEL][inputs][PANEL], outputs padded with zeros; as bfloat16
// (half), two inputs of an output lie side by side: [outputs / PANEL][inputs / 2][PANEL][2].
struct Linear {
  int64_t inputs, panels, half;
  const void* weight;
  const float* bias;
};

// An int8 copy of the output projection, which bounds its scores: see `screened_argmax`.
struct Int8Filter {
  const uint32_t* weight;  // [outputs / PANEL][inputs / 4][PANEL][4], signed; null without a filter
  const float *bias;       // per output; -inf for padding outputs
  const float *scale;      // per output: the weight that one int8 unit stands for
  const float *norm;       // per output: sum of |weight|
  const int32_t* sum;      // per output: 128 * sum of its int8 weights, which cancels the offset of the states
  float rounding;          // largest rounding error of a state, in units of the state's scale
};

// Softmax attention over a cache: keys [row][head][size][slots], values [row][head][slots][size].
struct Cache {
  float *key, *value;
};

struct Layer {
  Linear projection, output, expand, contract, cross_query, cross_output;
  const float *norm_weight[3], *norm_bias[3];  // after attention, cross-attention, feed-forward; only used if norm is "post"
  Cache self, cross;
};

struct Heads {
  int64_t count, size, adaptive, earlier, recurrent;
  Linear expand, adapt;
  const Linear* contract;                    // [count], without bias; recurrent heads share one, with bias
  const float *bias, *norm_weight, *norm_bias;  // bias [count, D]
  const float *conditioning, *direct;        // [rows or 1, T, D]; [channels, count, N]
  Linear cross_query, cross_output;          // only recurrent heads
  Cache cross;
};

// How iterations choose their block size: see `Widths` in superres/interfaces.py.
struct Widths {
  int64_t count;        // block sizes 1..count
  const double* costs;  // [count]; null if all iterations have the same block size
  int64_t* sizes;       // [batch]
  double* pace;         // [batch, 2 + channels]
  float offset, exponent, reach;
};

// The state of the decoding loop: see `LoopState` in superres/interfaces.py.
struct Loop {
  int64_t block_size, room, stride;  // strides of `proposals` and `store`
  int64_t minimum;      // smallest number of tokens accepted per iteration
  int64_t best, bound;  // a proposal is accepted if it is among the `bound` best tokens (best = 1), or if it is at most
                        // `bound` away from the best token (best = 0)
  int64_t end_token;    // -1 without one
  Widths widths;
  int64_t *position, *limit, *store, *proposals;
  int64_t *tokens, *place, *index, *first, *next, *best_tokens;  // scratch
  float *hidden, *scores, *scratch;
};

struct Session {
  int64_t batch, width, length, size_d, attention_heads, filter, layers, vocabulary, channels, outputs;
  int64_t slots, block_length, cross_slots, pre;
  int64_t threads;   // largest number of threads per call
  int64_t patient;   // whether a call uses all its threads even on a busy machine
  int64_t stride;    // floats per row of `projected`: 3 * D or the padded outputs, whichever is larger
  int64_t together;  // rows that one thread decodes together: see `superres_iterate`
  const Layer* layer;
  const float *final_weight, *final_bias;    // null where there is no final norm
  Linear project;
  Int8Filter int8_filter;
  // Input
  const float *token_table, *position_table;  // [V * channels + 1, D], [rows or 1, T, D]
  int64_t conditioned;                        // whether each row has a position table of its own
  const float* cross_mask;                    // [batch, cross_slots], 0 or -inf
  // Numeric neighbourhood; `features` (N) is 0 without one
  int64_t features, near, cell_size, ordinal;
  const int64_t *near_table, *cell, *cell_positions;  // [T, near], [T], [T, cell_size]
  const float *estimate, *residual_sum;               // [batch, T], [batch, S]
  int64_t source_length;
  float* deviation;                                   // [batch, T + 2]; entry T stays 0, for absent neighbours
  Linear first, second;                               // `first` without bias
  const float *channel_bias, *direct;                 // [channels, filter], [channels, features]
  float residual_scale, initial_sharpness;
  Heads heads;
  int64_t* not_finite;  // [1], set to 1 if any score is not finite
  double* seconds;  // [PARTS], accumulates the seconds of each part of a step; or null
  // Scratch, one slice per row of the batch
  float *x, *wide, *attended, *weights, *gathered, *projected;
};

}  // extern "C"
