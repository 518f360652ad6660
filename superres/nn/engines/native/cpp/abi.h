// What superres/nn/engines/native/build.py hands over.

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

// The output projection once more, in bytes: see `screened_argmax`.
struct Int8Filter {
  const uint32_t* weight;  // [outputs / PANEL][inputs / 4][PANEL][4], signed; null where there is none
  const float *bias, *scale, *norm;  // of each output: bias, or -inf behind the last; what 1 stands for; sum of |weight|
  const int32_t* sum;                // of its bytes, 128 times
  float rounding;                    // of a row, in what 1 stands for there, at most
};

// Softmax attention over a cache: keys [row][head][size][slots], values [row][head][slots][size].
struct Cache {
  float *key, *value;
};

struct Layer {
  Linear projection, output, expand, contract, cross_query, cross_output;
  const float *norm_weight[3], *norm_bias[3];  // after attention, cross-attention, feed-forward; only where norm is "post"
  Cache self, cross;
};

struct Heads {
  int64_t count, size, adaptive, earlier, recurrent;
  Linear expand, adapt;
  const Linear* contract;                    // of each head, without bias; one with bias where they are recurrent
  const float *bias, *norm_weight, *norm_bias;  // bias [count, D]
  const float *conditioning, *direct;        // [rows or 1, T, D]; [channels, count, N]
  Linear cross_query, cross_output;          // of recurrent heads, as is
  Cache cross;
};

// The decoder's loop: see `LoopState` in superres/interfaces.py.
struct Loop {
  int64_t block_size, room, stride;  // strides of `proposals` and `store`
  int64_t minimum, best, bound;      // best: a proposal passes among the `bound` best; else within `bound` of the best
  int64_t end_token;                 // -1 where there is none
  int64_t *position, *limit, *store, *proposals;
  int64_t *tokens, *place, *index, *first, *next, *best_tokens;  // scratch
  float *hidden, *scores, *scratch;
};

struct Session {
  int64_t batch, width, length, size_d, attention_heads, filter, layers, vocabulary, channels, outputs;
  int64_t slots, block_length, cross_slots, pre;
  int64_t threads, patient;  // of a call at most; patient: it uses them even if the machine is busy
  int64_t stride;    // of a row of `projected`: 3 * D, or the outputs if they are more
  int64_t together;  // rows that do some iterations before others have their turn
  const Layer* layer;
  const float *final_weight, *final_bias;    // null where there is no final norm
  Linear project;
  Int8Filter int8_filter;
  // Input
  const float *token_table, *position_table;  // [V * channels + 1, D], [rows or 1, T, D]
  int64_t conditioned;                        // whether each row has a position table of its own
  const float* cross_mask;                    // [batch, cross_slots], 0 or -inf
  // Numeric neighbourhood; features is 0 without it
  int64_t features, near, cell_size, ordinal;
  const int64_t *near_table, *cell, *cell_positions;  // [T, near], [T], [T, cell_size]
  const float *estimate, *residual_sum;                     // [batch, T], [batch, S]
  int64_t source_length;
  float* deviation;                                   // [batch, T + 2]
  Linear first, second;                               // `first` without bias
  const float *channel_bias, *direct;                 // [channels, filter], [channels, features]
  float residual_scale, initial_sharpness;
  Heads heads;
  int64_t* flawed;  // [1], set where scores are not finite
  double* seconds;  // [PARTS] to which the parts' times are added, or null
  // Scratch, a slice a row of the batch
  float *x, *wide, *attended, *weights, *gathered, *projected;
};

}  // extern "C"
