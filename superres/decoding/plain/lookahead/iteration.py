"""Lookahead decoding (Fu et al. 2024): n-grams from Jacobi iterations, verified several at a time,
without training.

Every step reads two branches in one model call (section 3 of that paper). The lookahead branch
holds a window of W future tokens at N - 1 stages of a Jacobi iteration. Each token that the last
stage predicts completes an n-gram, which is added to a pool. The verification branch reads up to G
n-grams of the pool that begin with the row's last token. The longest continuation that passes is
accepted.

The method suits text, where a word tends to have the same continuation at every place. It also
needs a device on which a step of (W + G)(N - 1) columns costs little more than a step of one
column. It does not suit images: the continuation of an intensity depends on its place, so only
smooth areas repeat, in short n-grams. Trained heads accept more tokens with fewer columns. Images
are still decoded exactly, since the attention windows apply to every column.

Several processes may divide the columns of a step among them (section 3.4; `Peers`). Each process
holds the whole model and its own cache. It reads its part of the window's columns and of the
candidates, which needs no communication. After a step, the processes exchange the accepted and the
predicted tokens only. Each process computes the keys and values of tokens that another process
accepted, by reading the last N tokens again. The rewritten cache entries are the same in every
process, so results do not depend on which process accepted a token.

Every process has the same pool, so it knows the tokens of all candidates. Speculative sampling
tries candidates one after another, and what it tries at a place depends on the accepted tokens and
on these tokens alone. So each process follows the accepted tokens as far as its own candidates do,
and one of them reaches the end (`verify_candidates`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config import require
from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.lookahead.peers import Peers
from superres.decoding.plain.lookahead.pool import NgramPool
from superres.decoding.plain.lookahead.verification import verify_candidates
from superres.decoding.plain.sampling import COMMITTED, VERDICT, distribution, scaled
from superres.decoding.plain.state import DecodeState
from superres.decoding.proposers.lookahead.layout import Layout, partition
from superres.sessions import ScoringModel, Session, Sources, StepOutput, TreeSession


class LookaheadDecoder(PlainDecoder):
    """Blockwise decoding whose step reads a tree; each row also has a window and a pool of n-grams.

    If several processes decode the batch together (`ScoringModel.peers`), all of them hold equal
    states.
    """

    session: TreeSession

    def __init__(
        self, model: ScoringModel, algorithm: Algorithm, session: Session, keys: Tensor,
        block_size: int, confident: ConfidentBlockSize | None = None,
    ) -> None:
        super().__init__(model, algorithm, session, keys, block_size, confident)
        options, batch, device = algorithm.options, len(keys), keys.device
        self.size, self.peers = block_size, model.peers
        layout, self.candidates = Layout.of(options, self.size, self.peers), options.candidates
        self.paths, self.guesses, self.cells = (
            torch.from_numpy(part).to(device)
            for part in (layout.paths, layout.guesses, layout.cells))
        self.stages, self.columns = self.cells
        self.root = slice(layout.tree.root, layout.tree.root + 1)
        self.offsets = torch.arange(self.size + 1, device=device)
        rank, processes = (0, 1) if self.peers is None else (self.peers.rank, self.peers.count)
        own = partition(self.candidates, rank, processes)
        self.own = slice(own.start, own.stop)
        self.window = torch.zeros(batch, self.size - 1, options.window, dtype=torch.int64,
                                  device=device)
        # The pending candidates of all processes [B, G, N - 1], and whether there are such [B, G]
        self.found = self.window.new_zeros(batch, self.candidates, self.size - 1)
        self.known = torch.zeros(batch, self.candidates, dtype=torch.bool, device=device)
        pool = getattr(algorithm.proposer, "pool", None) or NgramPool
        self.pool = pool(batch, self.size, device)

    @classmethod
    def open_session(cls, model: ScoringModel, algorithm: Algorithm, source: Sources,
                     block_size: int) -> Session:
        """See `PlainDecoder.open_session`; also raises ConfigError as `Layout.of` does."""
        width = algorithm.width
        require(width is None, "lookahead determines its own step width; leave out the width "
                f"{width}")
        tree = Layout.of(algorithm.options, block_size, model.peers).tree
        return model.tree_session(source, tree, block_size)

    def verify(self, state: DecodeState, output: StepOutput,
               place: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best block [B, N] of all candidates, and the number of its tokens that are
        accepted [B].

        Sets `following` [B], the token after the accepted ones, and `predicted` [B, W], by the
        window's last stage.
        """
        best, accepted, self.following = self._best_candidate(state, output.scores)
        self.predicted = output.scores[:, self.guesses].argmax(-1)  # [B, W]
        # [B, N - 1]
        continuation = self.found.gather(
            1, best.view(-1, 1, 1).expand(-1, 1, self.size - 1)).squeeze(1)
        block = torch.cat([state.proposals[:, self.root], continuation], dim=1)  # [B, N]
        if self.peers is None:
            self.session.commit(self.paths[best])
        else:
            # the tokens that were read again
            self.session.commit(self.offsets[:-1].expand_as(block))
            block, accepted = self._best_of_all(block, accepted, self.peers)
        return block, torch.minimum(accepted, state.missing())

    def propose(self, state: DecodeState, output: StepOutput, accepted: Tensor) -> None:
        """See `PlainDecoder.propose`: add n-grams to the pool, advance the window, and fill the
        next columns."""
        stages = torch.cat([self.window, self.predicted.unsqueeze(1)], dim=1)  # [B, N, W]
        self.pool.add(stages.transpose(1, 2))
        # Each guess keeps its place in the sequence; the last guess is repeated beyond the window's
        # end.
        width = stages.shape[2]
        column = torch.arange(width, device=accepted.device) + accepted.unsqueeze(1) - 1  # [B, W]
        column = column.clamp(0, width - 1).unsqueeze(1)  # [B, 1, W]
        self.window.copy_(stages[:, 1:].gather(2, column.expand_as(self.window)))  # [B, N - 1, W]
        self.window[:, 0, 0] = self.following
        found, known = self.pool.find(self.following, self.candidates)  # [B, G, N - 1], [B, G]
        self.found.copy_(found)
        self.known.copy_(known)
        parts = [self.following.unsqueeze(1), found[:, self.own].flatten(1),
                 self.window[:, self.stages, self.columns]]
        if self.peers is not None:
            reread = (state.place - self.size + self.offsets[1:-1]).clamp(min=0)  # [B, N - 1]
            parts.insert(0, state.tokens.gather(1, reread))
        torch.cat(parts, dim=1, out=state.pending)

    def replace(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        super().replace(rows, fresh, chosen, keys)
        self.window.index_fill_(0, rows, 0)
        self.found.index_fill_(0, rows, 0)
        self.known.index_fill_(0, rows, False)
        self.pool.clear(rows)

    def shrink(self, rows: Tensor, session: Session) -> None:
        super().shrink(rows, session)
        self.window, self.found, self.known = self.window[rows], self.found[rows], self.known[rows]
        self.pool.shrink(rows)

    def _best_candidate(self, state: DecodeState, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each row's best candidate, the number of accepted tokens, and the token after
        them, all [B].

        The best one of a process is one of its own candidates; by speculative sampling, it is that
        of all processes, and the number is 0 if only other processes know it.
        """
        batch, (count, size) = len(scores), self.paths.shape
        target = state.place + self.offsets[1:]  # [B, N]
        if self.samplers.speculative:
            return self._sampled_candidate(scores, target)
        # [B, G', N - 1], [B, G']
        proposed, known = self.found[:, self.own], self.known[:, self.own]
        sampler = self.samplers.at(target)
        offsets = self.offsets[: size - 1].repeat(count)  # [G' (N - 1)]
        # [B, G' (N - 1), V]
        adjusted = sampler.adjust(scores[:, self.paths[:, :-1].flatten()], offsets)
        adjusted = adjusted.view(batch * count, size - 1, -1)  # [B G', N - 1, V]
        verdicts = self.criterion.accept(proposed.flatten(0, 1), adjusted,
                                         target[:, :-1].repeat_interleave(count, 0))
        passed = verdicts.view(batch, count, -1) & known.unsqueeze(-1)  # [B, G', N - 1]
        accepted, best = (1 + passed.long().cumprod(2).sum(2)).max(1)
        path = self.paths[best].unsqueeze(-1).expand(-1, -1, scores.shape[-1])  # [B, N, V]
        chosen = sampler(scores.gather(1, path))  # [B, N]
        following = chosen.gather(1, accepted.unsqueeze(1) - 1).squeeze(1)
        return best + self.own.start, accepted, following

    def _sampled_candidate(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the results of `_best_candidate` by speculative sampling.

        `scores` are those of the step's columns, [B, M, V], and `target` the positions of the
        tokens of candidates, and the next one, [B, N].
        """
        rows = torch.arange(len(scores), device=scores.device)
        temperature = self.samplers.temperature(target)  # [B, N, 1]

        def at_place(candidate: Tensor, place: int) -> Tensor:
            own = scores[rows, self.paths[candidate, place]].unsqueeze(1)  # [B, 1, V]
            return distribution(scaled(own, temperature[:, place : place + 1],
                                       self.samplers.options)).squeeze(1)

        # A place is verified once, and the block ends at the first rejected token: all blocks use
        # the same numbers.
        uniform = self.samplers.uniform(target, torch.zeros_like(target[0]))  # [B, N, 3]
        verdict, committed = uniform[:, :-1, VERDICT], uniform[..., COMMITTED]  # [B, N - 1], [B, N]
        best, passed, following, follows = verify_candidates(
            at_place, self.found, self.known, verdict, committed, self.own)
        return best, (1 + passed) * follows, following

    def _best_of_all(self, block: Tensor, accepted: Tensor, peers: Peers) -> tuple[Tensor, Tensor]:
        """Return the results of `verify` of the process with the longest accepted block.

        Sets `following` to that process's, and `predicted` to the predictions of all processes.
        """
        width, size = self.window.shape[2], self.size
        predicted = F.pad(self.predicted, (0, width - self.predicted.shape[1]))  # [B, W]
        own = torch.cat([accepted.unsqueeze(1), self.following.unsqueeze(1), block, predicted],
                        dim=1)
        parts = peers.gather(own)  # [processes, B, 2 + N + W]
        # Of equally long blocks the first counts, as in a single process: candidates are divided in
        # order.
        best = parts[:, :, 0].max(0).indices
        chosen = parts[best, torch.arange(len(best), device=best.device)]  # [B, 2 + N + W]
        counts = [len(partition(width, rank, peers.count)) for rank in range(peers.count)]
        self.predicted = torch.cat([part[:, 2 + size :][:, :count] for part, count
                                    in zip(parts, counts, strict=True)], dim=1)  # [B, W]
        self.following = chosen[:, 1]
        return chosen[:, 2 : 2 + size], chosen[:, 0]
