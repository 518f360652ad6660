"""The Triton kernel of the engine `triton`: a program decodes ROWS rows of a batch from their start
to their end.

It computes what `superres.decoding.plain.blockwise` and `superres.nn.torch_step` do, in the same
order: embed, the decoder's layers, verify, accept, commit, propose. A row has a tile of W columns,
however many of them the block fills, and reads its keys in chunks that start at fixed positions. So
the sums of a column have one order at every block size, and exact blocks are the tokens of one
token per step, bit for bit. For the order at every ROWS, see `superres.gpu.sum_order`.

Shape letters: M = ROWS * W columns, D width of the network, H attention heads of S, F filter size,
N features of the neighbours, P features of the cell, G hidden units of a prediction head. These
sizes are padded to powers of two with zeros. What belongs to a row is repeated for each of its
columns, [M].
"""

from __future__ import annotations

import triton
import triton.language as tl

from superres.config import tables
from superres.gpu.noise import gumbel, scaled
from superres.gpu.rows import leading, of_row, repeated, row_sum, shifted
from superres.gpu.speculative import propose_token, verify

RESIDUAL_SCALE = tl.constexpr(tables.RESIDUAL_SCALE)
INITIAL_SHARPNESS = tl.constexpr(tables.INITIAL_SHARPNESS)


@triton.jit
def norm(x, gain, bias, D: tl.constexpr, WIDTH: tl.constexpr):
    """Layer norm of x [M, D], whose first WIDTH columns are real."""
    cols = tl.arange(0, D)
    x = x - (tl.sum(x, 1) / WIDTH)[:, None]
    if WIDTH < D:
        x = tl.where(cols[None, :] < WIDTH, x, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / WIDTH + 1e-5)
    return x * scale[:, None] * tl.load(gain + cols)[None, :] + tl.load(bias + cols)[None, :]


@triton.jit
def tile(matrix, K: tl.constexpr, N: tl.constexpr):
    """A matrix [K, N]."""
    places = matrix + tl.arange(0, K)[:, None] * N + tl.arange(0, N)[None, :]
    if K < 64:
        # The compiler lets tiles of one shape share a layout. With two rows per program, that is
        # the shape of the neighbours' features [M, N], whose sums would then have another order
        # than with one row.
        places = tl.max_contiguous(places, (1, 4))
    return tl.load(places)


@triton.jit
def columns_of(table, at, STRIDE: tl.constexpr, K: tl.constexpr):
    """Entries [M, K] of the lines `at` [M] of a table whose lines have STRIDE entries."""
    places = table + at[:, None] * STRIDE + tl.arange(0, K)[None, :]
    # as many as a thread can load in a program of one row; with more, layouts and sums would differ
    if K < 32:
        places = tl.max_contiguous(places, (1, 2))
    return tl.load(places)


@triton.jit
def halves(x, M: tl.constexpr, K: tl.constexpr):
    """The first and the second half of the columns of x [M, K]."""
    return tl.split(tl.permute(tl.reshape(x, (M, 2, K // 2)), (0, 2, 1)))


@triton.jit
def product(y, matrix, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
            PRECISION: tl.constexpr, QUARTERS: tl.constexpr):
    """Y [M, K] times a matrix [K, N]; with QUARTERS, in four parts, for fewer registers."""
    y = y.to(matrix.dtype.element_ty)
    if QUARTERS and K >= 64:
        Q: tl.constexpr = K // 4
        first, second = halves(y, M, K)
        part, other = halves(first, M, K // 2)
        total = tl.dot(part, tile(matrix, Q, N), input_precision=PRECISION)
        total = tl.dot(other, tile(matrix + Q * N, Q, N), total, input_precision=PRECISION)
        part, other = halves(second, M, K // 2)
        total = tl.dot(part, tile(matrix + 2 * Q * N, Q, N), total, input_precision=PRECISION)
        return tl.dot(other, tile(matrix + 3 * Q * N, Q, N), total, input_precision=PRECISION)
    return tl.dot(y, tile(matrix, K, N), input_precision=PRECISION)


@triton.jit
def attend(own, values, present, place, start, first, R: tl.constexpr, C: tl.constexpr,
           HEADS: tl.constexpr, H: tl.constexpr, S: tl.constexpr, ROWS: tl.constexpr,
           W: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr):
    """Attention [M, H * S] of queries to the keys from the number `start` [M] on, up to `place`
    [M].

    `own` points to the first row's keys [HEADS, R + W, S]: a ring of R slots, then the queries of
    the W columns; the values are `values` further. The first `present` rows exist. Keys are read in
    chunks of C from number `first` [M] on, the same for all columns of a row.
    """
    size, slots, both = tl.arange(0, S), tl.arange(0, C), tl.arange(0, ROWS * H)
    exists = both % H < HEADS
    if ROWS > 1:
        exists = exists & (both // H < present)
    exists = exists[:, None, None]
    offset = (both // H * HEADS + both % H) * ((R + W) * S)  # of each row's head
    position = tl.max(tl.reshape(first, (ROWS, W)), 1)
    position = tl.reshape(tl.broadcast_to(position[:, None], (ROWS, H)), (ROWS * H,))
    last = tl.reshape(tl.broadcast_to(tl.reshape(place, (ROWS, W))[:, None, :], (ROWS, H, W)),
                      (ROWS * H, W))
    start = tl.reshape(tl.broadcast_to(tl.reshape(start, (ROWS, W))[:, None, :], (ROWS, H, W)),
                       (ROWS * H, W))
    q = own + offset[:, None, None] + (R + tl.arange(0, W))[None, :, None] * S + size[None, None, :]
    q = tl.load(q, mask=exists, other=0.0)
    high = tl.full([ROWS * H, W], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS * H, W], tl.float32)
    part = tl.zeros([ROWS * H, W, S], tl.float32)
    chunks = (tl.max(place - first, 0) + C) // C
    for chunk in tl.range(0, chunks, num_stages=STAGES):
        at = position + chunk * C
        # [ROWS * H, C]; R is a multiple of C
        places = offset[:, None] + ((at % R)[:, None] + slots[None, :]) * S
        # [ROWS * H, S, C]
        key = tl.load(own + places[:, None, :] + size[None, :, None], mask=exists, other=0.0)
        value = tl.load(own + values + places[:, :, None] + size[None, None, :], mask=exists,
                        other=0.0)
        score = tl.dot(q, key, input_precision=PRECISION) * (S ** -0.5)  # [ROWS * H, W, C]
        at = at[:, None, None] + slots[None, None, :]
        score = tl.where((at <= last[:, :, None]) & (at >= start[:, :, None]), score, float("-inf"))
        now = tl.maximum(high, tl.max(score, 2))
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp(score - safe[:, :, None])
        old = tl.exp(high - safe)
        weight = weight * old + tl.sum(p, 2)
        part = part * old[:, :, None] + tl.dot(p.to(value.dtype), value, input_precision=PRECISION)
        high = now
    part = tl.reshape(part / weight[:, :, None], (ROWS, H, W, S))
    return tl.reshape(tl.permute(part, (0, 2, 1, 3)), (ROWS * W, H * S))


@triton.jit
def near_features(deviations, places, at, N: tl.constexpr, P: tl.constexpr):
    """The deviations [M, N] of the neighbours of targets `at` [M]; those of a row start at
    `deviations` [M]."""
    index = columns_of(places, at, N + P, N)
    return tl.load(deviations[:, None] + index)


@triton.jit
def cell_features(deviations, places, left, at, N: tl.constexpr, P: tl.constexpr):
    """The mean deviation that the undecoded pixels of the cell must have, in the column [M, P] of
    their number."""
    index = columns_of(places + N, at, N + P, P)
    count = tl.load(left + at)
    mean = -tl.sum(tl.load(deviations[:, None] + index), 1) / tl.maximum(count, 1).to(tl.float32)
    return tl.where(tl.arange(0, P)[None, :] == (count - 1)[:, None], mean[:, None], 0.0)


@triton.jit
def nearest(mu, V: tl.constexpr):
    """The token nearest to mu; the lower one at equal distance, as in argmax."""
    return tl.minimum(tl.maximum(tl.ceil(mu - 0.5), 0.0), V - 1.0)


@triton.jit
def outputs(states, weights, D: tl.constexpr):
    """An output [M] of states [M, D]; the D weights are followed by a bias."""
    return tl.sum(states * tl.load(weights + tl.arange(0, D))[None, :], 1) + tl.load(weights + D)


@triton.jit
def bounded_exp(x):
    """exp(x) of a logarithm within its bounds."""
    return tl.exp(tl.minimum(tl.maximum(x, -7.0), 3.0))


@triton.jit
def scores_around(mu, slope, d, V: tl.constexpr, HYPERBOLIC: tl.constexpr):
    """Ordinal scores [N, V] around centres [N]: see `superres.nn.image_priors.scores_around`."""
    scores = tl.abs(tl.arange(0, V)[None, :].to(tl.float32) - mu[:, None]) * -slope[:, None]
    if HYPERBOLIC:
        scores = d[:, None] - tl.sqrt_rn((d * d)[:, None] + scores * scores)
    return scores


@triton.jit
def limits(earlier, bounds, tokens, target, until, T: tl.constexpr, V: tl.constexpr,
           E: tl.constexpr):
    """The least and the largest token [M] at `target` [M], without the tokens of its group from
    `until` [M] on.

    See `superres.decoding.limits`; `tokens` [M] points to the tokens of a row, `bounds` [M] to
    its bounds.
    """
    target = tl.minimum(target, T)
    known = columns_of(earlier, target, E, E)  # [M, E]
    known = tl.load(tokens[:, None] + known, mask=(known >= 0) & (known < until[:, None]), other=0)
    total = tl.sum(known, 1)
    return (tl.load(bounds + target) - total).to(tl.int32), (tl.load(bounds + T + 1 + target)
                                                             - total).to(tl.int32)


@triton.jit
def limited(token, low, high, V: tl.constexpr):
    """The nearest token within limits."""
    return tl.minimum(tl.maximum(token, tl.minimum(low, V - 1)), tl.maximum(high, 0))


@triton.jit
def propose(
    block, states, here, following, size, tokens, deviations, head_positions, estimate, group,
    earlier, bounds, places, left, final, expand, contract, head_vectors, adapt, head_near,
    head_cell, seed, key, temperature, nucleus, colours, top_k, q, q_totals, q_entries, exists,
    T: tl.constexpr, CHANNELS: tl.constexpr, V: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    N: tl.constexpr, P: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr,
    E: tl.constexpr, HYPERBOLIC: tl.constexpr, SAMPLED: tl.constexpr, FILTERED: tl.constexpr,
    SPECULATIVE: tl.constexpr, FC: tl.constexpr, PRECISION: tl.constexpr, QUARTERS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The next block [M]: p1's tokens `following` [M] for targets `here` [M], and those of the
    prediction heads.

    `states` [M, D] are the decoder's output at `here`, equal in all columns of a row. Column i
    becomes head p(i + 2).
    """
    M: tl.constexpr = ROWS * W
    cols, inner, token_of = tl.arange(0, D), tl.arange(0, FC), tl.arange(0, W)
    head = tl.arange(0, M) % W
    same, parts = states, G // FC
    for part in tl.range(0, (size - 1) * parts, num_stages=STAGES):
        number, first = part // parts, part % parts * FC
        units = product(same, expand + number * (D * G) + first * D, M, D, FC, PRECISION, QUARTERS)
        units = tl.maximum(units + tl.load(head_vectors + W * D + number * G + first
                                           + inner)[None, :], 0.0)
        added = product(units, contract + number * (D * G) + first * D, M, FC, D, PRECISION,
                        QUARTERS)
        states += tl.where(head[:, None] == number, added, 0.0)
    target = tl.minimum(here + 1 + head, T - 1)
    states += tl.load(head_vectors + head[:, None] * D + cols[None, :])
    states += tl.load(head_positions[:, None] + target[:, None] * WIDTH + cols[None, :],
                      mask=cols[None, :] < WIDTH, other=0.0)
    states = norm(states, final + 5 * D + 3, final + 6 * D + 3, D, WIDTH)
    shift = outputs(states, final + 2 * D, D)
    bias, row = final + 7 * D + 3, here % CHANNELS * W + head
    # Weights on the features of p1's target: those of the head, and those that its state adds.
    weight = product(states, adapt, M, D, N, PRECISION,
                     QUARTERS) + tl.load(bias + tl.arange(0, N))[None, :]
    weight += columns_of(head_near, row, N, N)
    deviation = tl.sum(weight * near_features(deviations, places, here, N, P), 1)
    weight = product(states, adapt + D * N, M, D, P, PRECISION,
                     QUARTERS) + tl.load(bias + N + tl.arange(0, P))[None, :]
    weight += columns_of(head_cell, row, P, P)
    deviation += tl.sum(weight * cell_features(deviations, places, left, here, N, P), 1)
    # Weights on the tokens from p1's to that before the head's own, which are chosen in order.
    weight = product(states, adapt + D * (N + P), M, D, W, PRECISION, QUARTERS)
    weight += tl.load(bias + N + P + token_of)[None, :]
    weight = tl.where(token_of[None, :] <= head[:, None], weight, 0.0)  # [M, W]
    known = tl.minimum(here[:, None] + token_of[None, :], T - 1)
    mu = tl.load(estimate + target) + (deviation + shift) * RESIDUAL_SCALE
    mu -= tl.sum(weight * tl.load(estimate[:, None] + known), 1)
    token = following
    if SAMPLED:
        every, d = tl.arange(0, V)[None, :], mu
        key = of_row(key, head, 0, ROWS, W)
        if SPECULATIVE:
            tl.debug_barrier()  # other warps have read the last proposals' distributions
            exists = of_row(exists.to(tl.int32), head, 0, ROWS, W) > 0
            q_entries = of_row(q_entries, head, 0, ROWS, W)
        slope = bounded_exp(outputs(states, final + 3 * D + 1, D) + INITIAL_SHARPNESS)
        if HYPERBOLIC:
            d = bounded_exp(outputs(states, final + 4 * D + 2, D))
    if E > 0:
        own = tl.load(group + tl.minimum(here + 1 + head, T))
        last = tl.load(group + tl.minimum(here, T))  # the group of the latest token
        low, high = limits(earlier, bounds, tokens, here + 1 + head, here, T, V, E)
    for number in tl.range(0, size - 1, num_stages=1):
        mu += tl.sum(tl.where(token_of[None, :] == number, weight, 0.0), 1) * token.to(tl.float32)
        if E > 0:
            low -= tl.where(own == last, token, 0)
            high -= tl.where(own == last, token, 0)
            last = row_sum(tl.where(head == number, own, 0), ROWS, W)
        if SAMPLED:
            scores = scores_around(
                of_row(mu, head, number, ROWS, W), of_row(slope, head, number, ROWS, W),
                of_row(d, head, number, ROWS, W), V, HYPERBOLIC)  # [ROWS, V]
            if E > 0:
                least = of_row(tl.minimum(low, V - 1), head, number, ROWS, W)[:, None]
                most = of_row(tl.maximum(high, 0), head, number, ROWS, W)[:, None]
                scores = tl.where((every >= least) & (every <= most), scores, float("-inf"))
            where = of_row(here + 1, head, 0, ROWS, W) + number
            scores = scaled(scores, where.to(tl.int64), temperature, colours, top_k, nucleus, V,
                            FILTERED)
            if SPECULATIVE:
                token = propose_token(scores, where, number, exists, q, q_totals, q_entries, seed,
                                      key, V)
            else:
                scores += gumbel(seed, key, where.to(tl.int64), V)
                token = tl.argmax(tl.where(scores == scores, scores, 0.0), 1, tie_break_left=True)
            token = repeated(token, ROWS, W)
        else:
            chosen = nearest(mu, V).to(tl.int32)
            if E > 0:
                chosen = limited(chosen, low, high, V)
            token = row_sum(tl.where(head == number, chosen, 0), ROWS, W)
        block = tl.where(head == number + 1, token, block)
    return block


@triton.jit
def decode(
    store, positions_ptr, limit_ptr, proposals, record, status, cache, deviations, positions,
    head_positions, estimate, group, earlier, bounds, seed_ptr, keys, temperature, nucleus, q,
    q_totals, table, places, left, matrices, vectors, near_first, cell_first, near_vectors,
    near_second, direct_near, direct_cell, final, expand, contract, head_vectors, adapt, head_near,
    head_cell, batch, count, size, following_size, minimum, rule, bound, store_stride, capacity,
    colours, top_k, T: tl.constexpr, SOURCE: tl.constexpr, CHANNELS: tl.constexpr, V: tl.constexpr,
    BLOCK: tl.constexpr, DISTANCE: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr,
    HEADS: tl.constexpr, H: tl.constexpr, S: tl.constexpr, F: tl.constexpr, LAYERS: tl.constexpr,
    N: tl.constexpr, P: tl.constexpr, G: tl.constexpr, W: tl.constexpr, R: tl.constexpr,
    C: tl.constexpr, E: tl.constexpr, HYPERBOLIC: tl.constexpr, SAMPLED: tl.constexpr,
    FILTERED: tl.constexpr, SPECULATIVE: tl.constexpr, ROWS: tl.constexpr, FC: tl.constexpr,
    PRECISION: tl.constexpr, QUARTERS: tl.constexpr, STAGES: tl.constexpr,
    SHORT_STAGES: tl.constexpr,
):
    """Do up to `count` iterations of each row that is not complete; see `superres.gpu.decoder` for
    the arguments."""
    M: tl.constexpr = ROWS * W
    columns, cols, inner = tl.arange(0, M), tl.arange(0, D), tl.arange(0, FC)
    column = columns % W
    kind: tl.constexpr = matrices.dtype.element_ty
    keys_of_row: tl.constexpr = HEADS * (R + W) * S
    program_row = tl.program_id(0).to(tl.int64) * ROWS
    row = columns // W if ROWS > 1 else tl.zeros([M], tl.int32)
    real = program_row + row < batch  # the last program may have fewer rows
    row = tl.where(real, row, 0)
    # Where the tensors of each column's row start.
    tokens = store + program_row * store_stride + row * store_stride + 1
    proposals = proposals + program_row * capacity + row * capacity
    record = record + program_row * (2 + capacity) + row * (2 + capacity)
    deviations = deviations + program_row * (2 + SOURCE + T + W) + row * (2 + SOURCE + T + W)
    positions = positions + program_row * (T * WIDTH) + row * (T * WIDTH)
    head_positions = head_positions + program_row * (T * WIDTH) + row * (T * WIDTH)
    estimate = estimate + program_row * T + row * T
    bounds = bounds + program_row * (2 * T + 2) + row * (2 * T + 2)
    q_entries = (program_row + row) * W  # where the distributions of a row's proposals start
    cache += program_row * keys_of_row
    values = batch.to(tl.int64) * keys_of_row  # from keys to values
    position = tl.load(positions_ptr + program_row + row).to(tl.int32)
    end = tl.where(real, tl.load(limit_ptr + program_row + row).to(tl.int32), position)
    block = tl.load(proposals + column, mask=column < size, other=0).to(tl.int32)
    seed, key = tl.load(seed_ptr), tl.load(keys + program_row + row)
    made, bad = tl.full([], 0, tl.int32), tl.zeros([M], tl.int32)
    running = tl.max(end - position, 0)
    # Constants that a compiler moves out of the loop would take the registers of its tiles.
    for _ in tl.range(0, count, num_stages=1, disable_licm=True):
        if running > 0:
            active = position < end
            # Embed: the token read at each place, its position, and what is known of the
            # neighbourhood.
            place = tl.minimum(position, T - 1) + 1 + column
            inside = tl.minimum(place, T - 1)
            expected = tl.load(estimate + place - 1, mask=(place > 0) & (place <= T), other=0.0)
            tl.debug_barrier()  # other warps have read the last iteration's
            tl.store(deviations + 1 + SOURCE + place, (block.to(tl.float32) - expected)
                     / RESIDUAL_SCALE, mask=active)
            tl.store(tokens + place - 1, block.to(tl.int64), mask=active & (column < size)
                     & (place > 0))
            embedded = block + (place + (CHANNELS - 1)) % CHANNELS * V
            x = tl.load(table + embedded[:, None] * D + cols[None, :], mask=(place > 0)[:, None],
                        other=0.0)
            x += tl.load(positions[:, None] + inside[:, None] * WIDTH + cols[None, :],
                         mask=cols[None, :] < WIDTH, other=0.0)
            tl.debug_barrier()  # other warps read the deviations and the tokens
            near = near_features(deviations, places, inside, N, P)  # [M, N]
            cell = cell_features(deviations, places, left, inside, N, P)  # [M, P]
            channel = inside % CHANNELS
            straight = tl.sum(near * columns_of(direct_near, channel, N, N), 1)
            straight += tl.sum(cell * columns_of(direct_cell, channel, P, P), 1)
            total = tl.zeros([M, D], tl.float32) + tl.load(near_vectors + CHANNELS * F + cols)[None,
                                                                                               :]
            for first in tl.range(0, F, FC, num_stages=SHORT_STAGES):
                hidden = product(near, near_first + first * N, M, N, FC, PRECISION, QUARTERS)
                hidden += product(cell, cell_first + first * P, M, P, FC, PRECISION, QUARTERS)
                hidden += tl.load(near_vectors + channel[:, None] * F + first + inner[None, :])
                total += product(tl.maximum(hidden, 0.0), near_second + first * D, M, FC, D,
                                 PRECISION, QUARTERS)
            x += total
            # The decoder's layers.
            latest = place // DISTANCE
            start = tl.maximum(inside // DISTANCE // BLOCK - 1, 0) * BLOCK
            first_key = tl.maximum((place - column) // DISTANCE // BLOCK - 1, 0) * BLOCK // C * C
            for layer in tl.range(0, LAYERS, num_stages=1):
                w, v = matrices + layer * (4 * D * D + 2 * D * F), vectors + layer * (9 * D + F)
                own = cache + values * (2 * layer)
                y = norm(x, v, v + D, D, WIDTH)
                here = own + (row * keys_of_row)[:, None] + (cols // S * ((R + W) * S) + cols
                                                             % S)[None, :]
                written = active[:, None] & (cols < WIDTH)[None, :]
                for part in tl.range(0, 3, num_stages=SHORT_STAGES):  # queries, keys and values
                    y_part = product(y, w + part * (D * D), M, D, D, PRECISION, QUARTERS)
                    y_part += tl.load(v + (4 + part) * D + cols)[None, :]
                    slot = tl.where(part == 0, R + column, latest % R) * S
                    kept = written & ((part == 0) | (place % DISTANCE == 0))[:, None]
                    tl.store(here + slot[:, None] + values * (part // 2), y_part.to(kind),
                             mask=kept)
                tl.debug_barrier()  # other warps read these slots
                y = attend(own, values, batch - program_row, latest, start, first_key, R, C, HEADS,
                           H, S, ROWS, W, PRECISION, SHORT_STAGES)
                x += product(y, w + 3 * D * D, M, D, D, PRECISION,
                             QUARTERS) + tl.load(v + 7 * D + cols)[None, :]
                y = norm(x, v + 2 * D, v + 3 * D, D, WIDTH)
                total = tl.zeros([M, D], tl.float32) + tl.load(v + 8 * D + cols)[None, :]
                for first in tl.range(0, F, FC, num_stages=STAGES):
                    hidden = product(y, w + 4 * D * D + first * D, M, D, FC, PRECISION, QUARTERS)
                    hidden = tl.maximum(hidden + tl.load(v + 9 * D + first + inner)[None, :], 0.0)
                    total += product(hidden, w + 4 * D * D + D * F + first * D, M, FC, D, PRECISION,
                                     QUARTERS)
                x += total
            # p1's choice after each column: of ordinal scores, the largest is that of the token
            # nearest to the centre.
            hidden = norm(x, final, final + D, D, WIDTH)
            mu = tl.load(estimate + inside) + straight * RESIDUAL_SCALE
            mu += outputs(hidden, final + 2 * D, D) * RESIDUAL_SCALE
            slope = bounded_exp(outputs(hidden, final + 3 * D + 1, D) + INITIAL_SHARPNESS)
            d = slope
            if HYPERBOLIC:
                d = bounded_exp(outputs(hidden, final + 4 * D + 2, D))
            scores = scores_around(mu, slope, d, V, HYPERBOLIC)
            bad += tl.where((mu - mu != 0.0) & (column < size) & active, 1, 0)
            every = tl.arange(0, V)[None, :]
            possible = block >= 0
            if E > 0:
                low, high = limits(earlier, bounds, tokens, place, place, T, V, E)
                low, high = tl.minimum(low, V - 1), tl.maximum(high, 0)
                scores = tl.where((every >= low[:, None]) & (every <= high[:, None]), scores,
                                  float("-inf"))
            if SAMPLED:
                scores = scaled(scores, place.to(tl.int64), temperature, colours, top_k, nucleus, V,
                                FILTERED)
            missing = tl.where(position < 0, tl.minimum(end + 1, 1), end - position)
            if SPECULATIVE:
                accepted, following = verify(
                    scores, block, place, position, size, missing, column, real, q, q_totals,
                    q_entries, seed, key, V, ROWS, W)
            else:
                if SAMPLED:
                    scores += gumbel(seed, key, place.to(tl.int64), V)
                # the next token's
                own = tl.sum(tl.where(every == shifted(block, 1, ROWS, W)[:, None], scores, 0.0), 1)
                if E > 0 or SAMPLED:
                    possible = shifted((own > float("-inf")).to(tl.int32), -1, ROWS, W) > 0
                choice = tl.argmax(tl.where(scores == scores, scores, 0.0), 1, tie_break_left=True)
                # Verify and accept: the longest prefix of the block that passes.
                if rule == 0:
                    passed = tl.abs(block - shifted(choice, -1, ROWS, W)) <= bound
                else:  # fewer than `bound` tokens have a larger score
                    better = tl.sum(tl.where(scores > own[:, None], 1, 0), 1)
                    passed = shifted(better, -1, ROWS, W) < bound
                accepted = leading(passed & possible, column, size, ROWS, W)
                accepted = tl.maximum(accepted, leading(possible, column, tl.minimum(minimum, size),
                                                        ROWS, W))
                accepted = tl.minimum(accepted, missing)
                following = row_sum(tl.where(column == accepted - 1, choice, 0), ROWS, W)
            accepted = tl.where(active, accepted, 0)
            entry = record + made.to(tl.int64) * batch * (2 + capacity)
            tl.store(entry + 2 + column, block.to(tl.int64), mask=real & (column < capacity))
            tl.store(entry, position.to(tl.int64), mask=real & (column == 0))
            tl.store(entry + 1, accepted.to(tl.int64), mask=real & (column == 0))
            position += accepted
            made += 1
            block = tl.where(active, following, block)
            running = tl.max(end - position, 0)
            size = following_size
            if (size > 1) & (running > 0):
                states = tl.where((column == accepted - 1)[:, None], hidden, 0.0)
                states = tl.sum(tl.reshape(states, (ROWS, W, D)), 1)
                states = tl.reshape(tl.broadcast_to(states[:, None, :], (ROWS, W, D)), (M, D))
                proposed = propose(
                    block, states, tl.maximum(tl.minimum(position, T - 1), 0), following, size,
                    tokens, deviations, head_positions, estimate, group, earlier, bounds, places,
                    left, final, expand, contract, head_vectors, adapt, head_near, head_cell, seed,
                    key, temperature, nucleus, colours, top_k, q, q_totals, q_entries, real, T,
                    CHANNELS, V, WIDTH, D, N, P, G, ROWS, W, E, HYPERBOLIC, SAMPLED, FILTERED,
                    SPECULATIVE, FC, PRECISION, QUARTERS, STAGES)
                block = tl.where(active, proposed, block)
    tl.store(positions_ptr + program_row + row, position.to(tl.int64), mask=real & (column == 0))
    tl.store(proposals + column, block.to(tl.int64), mask=real & (column < capacity))
    bad = row_sum(bad, ROWS, W)
    status = status + program_row * 2 + row * 2
    tl.store(status, made + tl.zeros([M], tl.int32), mask=real & (column == 0))
    tl.store(status + 1, bad, mask=real & (column == 0))
