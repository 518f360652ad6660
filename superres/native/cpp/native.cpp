// The decoding step for CPUs: the computation of superres/nn/torch_step.py in one call.
// superres/native/build.py compiles it; abi.h declares its functions, which session.py calls.
//
// The order of every sum depends on the position alone, never on the step width, the batch or the number of threads. A
// block of k tokens therefore gets bit for bit the scores that the same tokens get one at a time.
//
// With at least one row per thread, groups of rows are distributed over the threads of a team. With fewer rows, the
// threads share the columns of a wide step, and the attention heads and hidden units of a narrow one.

#include "model/encoder.h"
#include "decode/loop.h"
#include "self_test.h"

namespace {

// Calls body(team, begin, end) for all rows; in groups of at most `rows` rows if the threads divide the rows.
template <typename Body>
void in_groups(int64_t batch, int64_t threads, bool waits, int64_t rows, const Body& body) {
  with_team((int)threads, waits, [&](Team& team) {
    if (team.size > 1 && batch < team.size) {
      body(team, (int64_t)0, batch);
      return;
    }
    const int64_t share = (batch + team.size - 1) / team.size, group = rows < share ? rows : share;
    team.deal(batch, (batch + group - 1) / group, [=, body = &body](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; b += group) {
        Team alone;
        (*body)(alone, b, b + group < end ? b + group : end);
      }
    });
  });
}

template <typename Body>
void in_groups(const Session& s, int64_t rows, const Body& body) {
  in_groups(s.size.batch, s.threads.count, s.threads.waits, rows, body);
}

}  // namespace

extern "C" {

const char* superres_abi() { return SUPERRES_ABI; }

uint64_t superres_self_test() { return self_test(); }

void superres_encode(const Encoder* encoder, const Encoded* encoded, int64_t batch, int64_t threads, const int64_t* sources) {
  in_groups(batch, threads, false, 1, [&](Team& team, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b++) encode(*encoder, *encoded, team, sources, b);
  });
}

void superres_remember(Session* session, const float* states) {
  in_groups(*session, session->size.batch, [&](Team&, int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; b++) remember(*session, states, b);
  });
}

void superres_step(Session* session, const int64_t* tokens, const int64_t* position, float* hidden, float* scores) {
  in_groups(*session, session->size.batch, [&](Team& team, int64_t begin, int64_t end) {
    step(*session, team, begin, end, tokens, position, {hidden, scores});
  });
}

void superres_keep(Session* session, const int64_t* columns, int64_t count, const int64_t* position) {
  for (int64_t b = 0; b < session->size.batch; b++) keep_columns(*session, b, position[b], columns + b * count, count);
}

int64_t superres_propose_room(const Session* session, int64_t count) { return propose_room(*session, count); }

void superres_propose(Session* session, const int64_t* position, const int64_t* index, const int64_t* first, int64_t count,
                      const float* hidden, const float* temperature, const float* noise, float* scratch, int64_t* tokens) {
  in_groups(*session, session->size.batch, [&](Team& team, int64_t begin, int64_t end) {
    const NoisyChoice choose{session->size.vocabulary, count, temperature, noise};
    propose(*session, team, begin, end, {position, index, first, count, hidden, scratch, tokens}, choose);
  });
}

int64_t superres_iterate(Session* session, LoopState* state, int64_t count, int64_t following, int64_t* record) {
  in_groups(*session, session->threads.rows_at_once, [&](Team& team, int64_t begin, int64_t end) {
    run(*session, *state, team, begin, end, count, following, record);
  });
  const int64_t size = 2 + state->capacity, batch = session->size.batch;
  for (int64_t n = count; n > 0; n--)
    for (int64_t b = 0; b < batch; b++)
      if (record[((n - 1) * batch + b) * size + 1]) return n;  // something was accepted
  return 0;
}

}  // extern "C"
