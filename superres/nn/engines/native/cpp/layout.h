// The constants, and the compiler's sizes and offsets of the structures in abi.h. superres/nn/engines/native/build.py
// checks its own against them.

#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>

#include "abi.h"

namespace {

#define AT(STRUCTURE, FIELD) {#FIELD, offsetof(STRUCTURE, FIELD)}

void describe(std::string& text, const char* name, size_t size, std::initializer_list<std::pair<const char*, size_t>> fields) {
  text += std::string(name) + ":" + std::to_string(size);
  for (const auto& field : fields) text += std::string(" ") + field.first + "=" + std::to_string(field.second);
  text += "\n";
}

std::string layout() {
  std::string text = "LANES=" + std::to_string(LANES) + " PANEL=" + std::to_string(PANEL) + " NEAR=" + std::to_string(NEAR_EIGHTHS)
      + " FAR=" + std::to_string(FAR_EIGHTHS) + " SIZE=" + std::to_string(MAX_SIZE) + "\n";
  describe(text, "Linear", sizeof(Linear), {AT(Linear, inputs), AT(Linear, panels), AT(Linear, format),
      AT(Linear, weight), AT(Linear, bias), AT(Linear, scale)});
  describe(text, "Int8Filter", sizeof(Int8Filter), {AT(Int8Filter, product), AT(Int8Filter, norm),
      AT(Int8Filter, rounding)});
  describe(text, "Cache", sizeof(Cache), {AT(Cache, key), AT(Cache, value), AT(Cache, key_scale),
      AT(Cache, value_scale)});
  describe(text, "Layer", sizeof(Layer), {AT(Layer, projection), AT(Layer, output), AT(Layer, expand),
      AT(Layer, contract), AT(Layer, cross_query), AT(Layer, cross_output), AT(Layer, cross_source),
      AT(Layer, norm_weight),
      AT(Layer, norm_bias), AT(Layer, self), AT(Layer, cross), AT(Layer, columns)});
  describe(text, "Tree", sizeof(Tree), {AT(Tree, scored), AT(Tree, longest), AT(Tree, depth), AT(Tree, ancestors)});
  describe(text, "Shortlist", sizeof(Shortlist), {AT(Shortlist, count), AT(Shortlist, tokens), AT(Shortlist, known),
      AT(Shortlist, weight), AT(Shortlist, bias), AT(Shortlist, scale)});
  describe(text, "Heads", sizeof(Heads), {AT(Heads, count), AT(Heads, size), AT(Heads, dense), AT(Heads, earlier),
      AT(Heads, recurrent), AT(Heads, expand), AT(Heads, adapt), AT(Heads, contract), AT(Heads, bias),
      AT(Heads, norm_weight), AT(Heads, norm_bias), AT(Heads, conditioning), AT(Heads, direct),
      AT(Heads, cross_query), AT(Heads, cross_output), AT(Heads, cross_source), AT(Heads, cross), AT(Heads, shortlist)});
  describe(text, "Sampling", sizeof(Sampling), {AT(Sampling, kind), AT(Sampling, seed), AT(Sampling, channels),
      AT(Sampling, top_k), AT(Sampling, nucleus), AT(Sampling, keys), AT(Sampling, temperature), AT(Sampling, q),
      AT(Sampling, q_total)});
  describe(text, "Proposer", sizeof(Proposer), {AT(Proposer, kind), AT(Proposer, draft), AT(Proposer, tokens),
      AT(Proposer, place), AT(Proposer, best_tokens), AT(Proposer, hidden), AT(Proposer, scores), AT(Proposer, keys),
      AT(Proposer, known), AT(Proposer, entries), AT(Proposer, order), AT(Proposer, channels), AT(Proposer, source),
      AT(Proposer, source_length)});
  describe(text, "Widths", sizeof(Widths), {AT(Widths, count), AT(Widths, costs), AT(Widths, sizes),
      AT(Widths, pace), AT(Widths, offset), AT(Widths, exponent), AT(Widths, reach)});
  describe(text, "Limits", sizeof(Limits), {AT(Limits, count), AT(Limits, earlier), AT(Limits, bounds)});
  describe(text, "Lookahead", sizeof(Lookahead), {AT(Lookahead, size), AT(Lookahead, columns), AT(Lookahead, candidates),
      AT(Lookahead, cells), AT(Lookahead, capacity), AT(Lookahead, paths), AT(Lookahead, guesses), AT(Lookahead, stage),
      AT(Lookahead, column), AT(Lookahead, window), AT(Lookahead, grams), AT(Lookahead, oldest), AT(Lookahead, found)});
  describe(text, "Loop", sizeof(Loop), {AT(Loop, block_size), AT(Loop, room), AT(Loop, stride), AT(Loop, minimum),
      AT(Loop, best), AT(Loop, bound), AT(Loop, end_token), AT(Loop, position), AT(Loop, limit), AT(Loop, store),
      AT(Loop, proposals), AT(Loop, tokens), AT(Loop, place), AT(Loop, index), AT(Loop, first), AT(Loop, next),
      AT(Loop, best_tokens), AT(Loop, hidden), AT(Loop, scores), AT(Loop, scratch),
      AT(Loop, sampling), AT(Loop, proposer), AT(Loop, widths), AT(Loop, limits), AT(Loop, lookahead)});
  describe(text, "Session", sizeof(Session), {AT(Session, batch), AT(Session, width), AT(Session, length),
      AT(Session, size_d), AT(Session, attention_heads), AT(Session, filter), AT(Session, layers),
      AT(Session, vocabulary), AT(Session, channels), AT(Session, outputs), AT(Session, slots),
      AT(Session, block_length), AT(Session, cross_slots), AT(Session, pre), AT(Session, threads),
      AT(Session, patient), AT(Session, stride), AT(Session, together), AT(Session, layer),
      AT(Session, final_weight), AT(Session, final_bias), AT(Session, project), AT(Session, int8_filter),
      AT(Session, token_table), AT(Session, position_table), AT(Session, conditioned), AT(Session, cross_mask),
      AT(Session, features), AT(Session, near), AT(Session, cell_size), AT(Session, ordinal), AT(Session, near_table),
      AT(Session, cell), AT(Session, cell_positions), AT(Session, estimate), AT(Session, residual_sum),
      AT(Session, source_length), AT(Session, deviation), AT(Session, first), AT(Session, second),
      AT(Session, channel_bias), AT(Session, direct), AT(Session, residual_scale), AT(Session, initial_sharpness),
      AT(Session, heads), AT(Session, tree), AT(Session, not_finite), AT(Session, seconds), AT(Session, groups), AT(Session, x),
      AT(Session, parts), AT(Session, wide),
      AT(Session, attended), AT(Session, weights), AT(Session, gathered), AT(Session, projected)});
  describe(text, "Encoder", sizeof(Encoder), {AT(Encoder, source_length), AT(Encoder, length), AT(Encoder, size_d),
      AT(Encoder, attention_heads), AT(Encoder, filter), AT(Encoder, layers), AT(Encoder, vocabulary),
      AT(Encoder, channels), AT(Encoder, pre), AT(Encoder, layer), AT(Encoder, final_weight),
      AT(Encoder, final_bias), AT(Encoder, token_table), AT(Encoder, source_signal), AT(Encoder, rows),
      AT(Encoder, columns), AT(Encoder, height), AT(Encoder, width), AT(Encoder, maps), AT(Encoder, blocks),
      AT(Encoder, row_weights), AT(Encoder, column_weights), AT(Encoder, shuffle), AT(Encoder, products),
      AT(Encoder, biases), AT(Encoder, refinement), AT(Encoder, refinement_bias), AT(Encoder, vectors),
      AT(Encoder, head_vectors), AT(Encoder, signal), AT(Encoder, residual_scale)});
  describe(text, "Encoded", sizeof(Encoded), {AT(Encoded, states), AT(Encoded, position_table),
      AT(Encoded, head_table), AT(Encoded, estimate), AT(Encoded, residual_sum), AT(Encoded, stride),
      AT(Encoded, positions), AT(Encoded, lengths)});
  return text;
}

#undef AT

}  // namespace
