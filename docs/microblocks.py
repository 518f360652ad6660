"""Blockwise parallel decoding in one file: train a small network, decode digits, save model calls.

    python microblocks.py    # 20 seconds on one core; it needs Python 3.10 or newer, nothing else

An autoregressive network p1 draws a digit of 8x8 pixels, one pixel after another: each pixel is
chosen by what was drawn before. So 64 pixels take 64 model calls. Prediction heads p2..pk guess the
pixels after the next one. p1 verifies these guesses, all in one call, and keeps the longest prefix
that is right. The digit is the same, and takes less than half of the calls. Sections are those of
the paper: Stern, Shazeer and Uszkoreit, "Blockwise Parallel Decoding for Deep Autoregressive
Models", NeurIPS 2018.
"""

import math
import random
from itertools import accumulate, chain, pairwise
from operator import mul

# Change the settings, and run the file again.
K = 6          # the block size: p1 and K - 1 prediction heads
EPSILON = 1    # how far a guess may be from p1's choice where acceptance is not exact
IMAGES = 2400  # digits that are drawn for training, 64 pixels each
RATE = 0.05    # how far a step of the training goes, at the beginning
HIDDEN = 32    # units of a layer
WINDOW = 20    # how many of the last pixels the network sees: two rows and a half
SIDE, LEVELS = 8, 8  # pixels per row, and the intensities that a pixel may have: 0 to 7
LENGTH = SIDE * SIDE
INK = " .:-=+*#"  # how the intensities are printed
# Every sum below has a fixed order or is rounded once (math.fsum), and there is no library of
# matrices. So the weights, the digits and the counts are the same on every machine.

# The data: digits of a pen, with another size, place, slant and thickness each time. A stroke goes
# through points of a grid of 5x7; "11 20" is a line from column 1, row 1 to column 2, row 0.
STROKES = (
    "10 30 41 45 36 16 05 01 10", "11 20 26 16 36", "01 10 30 41 42 06 46",
    "01 10 30 41 42 33 13 33 44 45 36 16 05", "36 30 04 44", "40 00 03 32 43 45 36 06",
    "30 10 01 05 16 36 45 44 33 03", "00 40 41 16",
    "13 02 01 10 30 41 42 33 13 04 05 16 36 45 44 33", "42 33 13 02 01 10 30 41 45 36 06")


def draw(label, rng):
    """Return the 64 intensities of a digit, row by row."""
    width, height, slant = 0.8 + 0.35 * rng.random(), 0.9 + 0.15 * rng.random(), rng.random() - 0.5
    left, top, pen = 1.2 + rng.random(), 0.2 + 0.6 * rng.random(), 1.25 + 0.3 * rng.random()
    points = [(left + width * int(x) + slant * (3 - int(y)) / 2, top + height * int(y))
              for x, y in STROKES[label].split()]
    tokens = []
    for place in range(LENGTH):
        row, column, distances = place // SIDE, place % SIDE, []
        for (x, y), (end, low) in pairwise(points):  # the nearest point of each line
            right, down = end - x, low - y
            along = (column - x) * right + (row - y) * down
            along = min(1.0, max(0.0, along / (right * right + down * down)))
            distances.append((column - x - along * right) ** 2 + (row - y - along * down) ** 2)
        ink = min(1.0, max(0.0, pen - 1.1 * math.sqrt(min(distances))))
        tokens.append(int((LEVELS - 1) * ink + 0.25 + 0.5 * rng.random()))
    return tokens


# The network. The state after `position` tokens is computed from the label, the position and the
# last tokens, in two layers. All heads read the same state (section 4): head 0 is p1, the
# distribution of the next token, and head i that of the token i places later.


def table(rows, scale, rng):
    """Return a matrix [rows, HIDDEN] of random weights between -scale and scale."""
    return [[scale * (2 * rng.random() - 1) for _ in range(HIDDEN)] for _ in range(rows)]


def add(to, factor, row):
    """Return to + factor * row."""
    return [one + factor * other for one, other in zip(to, row, strict=True)]


def dot(one, other):
    """Return the sum of the products."""
    return math.fsum(map(mul, one, other))


def exp(value):
    """Return about e ** value, by ten squarings: the last bit of math.exp depends on the system."""
    power = 1.0 + max(value, -700.0) / 1024
    for _ in range(10):
        power *= power
    return power


class Network:
    """p1 and the prediction heads, with the number of model calls."""

    def __init__(self, rng):
        self.place = table(10 * LENGTH, 0.1, rng)  # an embedding of each label at each position
        self.recent = table(WINDOW, 0.3, rng)  # weights of the last tokens
        self.middle = table(HIDDEN, math.sqrt(3 / HIDDEN), rng)  # the second layer
        self.bias = [0.0] * HIDDEN
        self.heads = [table(LEVELS, 0.1, rng) for _ in range(K)]
        self.calls = self.columns = 0

    def layers(self, label, tokens, position):
        """Return the pixels that are seen, as (places back, intensity), and both layers."""
        seen = [(back, tokens[position - 1 - back] / (LEVELS - 1))
                for back in range(min(WINDOW, position)) if tokens[position - 1 - back]]
        total = self.place[label * LENGTH + position]
        for back, value in seen:
            total = add(total, value, self.recent[back])
        first = [max(0.0, one) for one in total]
        total = self.bias
        for value, row in zip(first, self.middle, strict=True):
            if value:
                total = add(total, value, row)
        return seen, first, [max(0.0, one) for one in total]

    def call(self, label, tokens, positions):
        """Return the states at some positions: one model call, and a column per position."""
        self.calls += 1
        self.columns += len(positions)
        return [self.layers(label, tokens, min(position, LENGTH - 1))[2] for position in positions]

    def distribution(self, head, state):
        """Return the probability of each intensity."""
        scores = [dot(row, state) for row in self.heads[head]]
        powers = [exp(score - max(scores)) for score in scores]
        return [power / math.fsum(powers) for power in powers]

    def learn(self, label, tokens, position, rate, rng):
        """Take a step down the gradient of p1's loss and of one head's, which is drawn (section 6).

        Return p1's loss in bits. The gradient of the cross entropy by a score is the probability,
        minus 1 for the right token. The rest is the chain rule.
        """
        seen, first, second = self.layers(label, tokens, position)
        loss, by_second = 0.0, [0.0] * HIDDEN
        for head in (0, rng.randrange(1, K)):
            if position + head < LENGTH:
                found, right = self.distribution(head, second), tokens[position + head]
                loss += 0.0 if head else -math.log2(found[right])
                for token, weights in enumerate(self.heads[head]):
                    by_score = found[token] - (token == right)
                    by_second = add(by_second, by_score, weights)
                    self.heads[head][token] = add(weights, -rate * by_score, second)
        by_second = [one if unit else 0.0 for one, unit in zip(by_second, second, strict=True)]
        self.bias = add(self.bias, -rate, by_second)
        by_first = [0.0] * HIDDEN
        for unit, value in enumerate(first):
            if value:
                by_first[unit] = dot(self.middle[unit], by_second)
                self.middle[unit] = add(self.middle[unit], -rate * value, by_second)
        place = label * LENGTH + position
        self.place[place] = add(self.place[place], -rate, by_first)
        for back, value in seen:
            self.recent[back] = add(self.recent[back], -rate * value, by_first)
        return loss


def train(rng):
    """Return a network after IMAGES digits, and print p1's loss on each digit before its steps."""
    network, losses = Network(rng), []
    for image in range(IMAGES):
        tokens, rate = draw(image % 10, rng), RATE * (1 - image / IMAGES)
        losses += [network.learn(image % 10, tokens, position, rate, rng)
                   for position in range(LENGTH)]
        if (image + 1) % (IMAGES // 8) == 0:
            print(f"{image + 1:5} digits: {math.fsum(losses) / len(losses):.2f} bits per pixel")
            losses = []
    return network


# Decoding. Greedy decoding takes the likeliest token. Sampling compares the cumulated probabilities
# with a random number of the position: who asks again at that position gets the same answer.


def choose(found, noise):
    """Return a token by its distribution: the likeliest one, or with noise a sample."""
    if noise is None:
        return found.index(max(found))
    return min(sum(total <= noise for total in accumulate(found)), LEVELS - 1)


def one_by_one(network, label, noise):
    """Return the tokens of one model call each: autoregressive decoding (section 2)."""
    tokens = []
    for position in range(LENGTH):
        [state] = network.call(label, tokens, [position])
        tokens.append(choose(network.distribution(0, state), noise[position]))
    return tokens


def from_heads(network, state, tokens, noise):
    """Propose a block: p1's own choice, and the guesses of the heads from the same state."""
    return [choose(network.distribution(head, state), one) for head, one in enumerate(noise)]


def from_left(network, state, tokens, noise):
    """Propose p1's own choice, and then the same colour again and again."""
    return [choose(network.distribution(0, state), noise[0])] * len(noise)


def blockwise(network, label, noise, propose=from_heads, epsilon=0):
    """Return tokens, and how many each step accepted: blockwise parallel decoding (section 3)."""
    tokens, accepted, [state] = [], [], network.call(label, [], [0])
    while (done := len(tokens)) < LENGTH:
        # Propose. The first token is p1's own choice, so every step accepts at least one.
        block = propose(network, state, tokens, noise[done : done + K])
        # Verify, in one call: p1's choice after each proposal, if all before it are accepted.
        states = network.call(label, tokens + block,
                              [done + 1 + place for place in range(len(block))])
        verified = [choose(network.distribution(0, one), noise[done + 1 + place])
                    for place, one in enumerate(states[:-1])]
        # Accept the longest prefix: equal (section 3), or within epsilon (section 5.2).
        count = 1
        while count < len(block) and abs(block[count] - verified[count - 1]) <= epsilon:
            count += 1
        tokens += block[:count]
        accepted.append(count)
        # The same call has the state from which the heads propose the next block (section 4).
        state = states[count - 1]
    return tokens, accepted


def show(digits):
    """Print digits side by side."""
    for row in range(0, LENGTH, SIDE):
        print("   ".join("".join(2 * INK[token] for token in digit[row : row + SIDE])
                         for digit in digits).rstrip())


def compare(network, title, noises):
    """Decode ten digits in all ways, assert that exact blocks change nothing, and print counts."""
    network.calls = 0
    wanted = [one_by_one(network, label, noises[label]) for label in range(10)]
    print(f"\n{title}, one token per step: {network.calls} model calls")
    show(wanted[:5])
    show(wanted[5:])
    for name, propose, epsilon in (("prediction heads", from_heads, 0),
                                   ("the pixel on the left", from_left, 0),
                                   (f"heads, within {EPSILON}", from_heads, EPSILON)):
        network.calls = network.columns = 0
        found = [blockwise(network, label, noises[label], propose, epsilon) for label in range(10)]
        drawn, steps = [tokens for tokens, _ in found], sum(len(counts) for _, counts in found)
        assert epsilon or drawn == wanted, "exact blocks must give the tokens of single steps"
        others = sum(map(int.__ne__, chain(*drawn), chain(*wanted)))
        print(f"{name:22} {10 * LENGTH / steps:5.2f} accepted per step, {network.calls:4} calls, "
              f"{network.columns:5} columns, {others:3} of {10 * LENGTH} pixels differ")
        if propose is from_heads and not epsilon:
            print("  accepted in the 2:", *found[2][1])


if __name__ == "__main__":
    trained, rng = train(random.Random(1)), random.Random(2)
    compare(trained, "Greedy", [[None] * LENGTH] * 10)
    compare(trained, "Sampled", [[rng.random() for _ in range(LENGTH)] for _ in range(10)])
