"""Recorded costs of decoding, by which adaptive block sizes and numbers of threads are chosen."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from superres.config.setting import REQUIRED, Config, require, require_whole, setting
from superres.errors import ConfigError, shown

LEAST, MOST = 1e-3, 1e9  # microseconds
MOST_BLOCK, MOST_ROWS, MOST_THREADS = 1024, 2**20, 4096


@dataclass(frozen=True)
class StepCosts(Config):
    """Costs of decoding a batch of one size, in microseconds.

    Attributes:
        blocks: time of an iteration at block sizes 1, 2 and so on, with the heads' proposals.
        alone: time of an iteration of one token in a session of its own, which never proposes.
        start: what blocks cost once per batch besides their iterations, such as the heads' memory
            of a sentence.
        threads: largest number of threads that gains in iterations of blocks.
        alone_threads: the same in iterations of one token, in which the threads cannot share
            columns.
        together: number of rows that a thread decodes together.
        least_columns: fewest columns per thread from which the columns of a step are shared; None
            for the engine's own number.
    """

    blocks: tuple[float, ...] = setting(REQUIRED, least=LEAST, most=MOST)
    alone: float = setting(REQUIRED, least=LEAST, most=MOST)
    start: float = setting(0.0, least=0, most=MOST)
    threads: int = setting(2, least=1, most=MOST_THREADS)
    alone_threads: int = setting(2, least=1, most=MOST_THREADS)
    together: int = setting(2, least=1, most=MOST_ROWS)
    least_columns: int | None = setting(None, least=1, most=MOST_ROWS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.blocks) <= MOST_BLOCK:
            raise ConfigError(f"blocks must have 1 to {MOST_BLOCK} numbers, not {len(self.blocks)}")

    def up_to(self, largest: int) -> list[float]:
        """Return the time of an iteration at block sizes 1 to `largest`; beyond those recorded, it
        rises evenly."""
        known = self.blocks[:largest]
        slope = (self.blocks[-1] - self.blocks[0]) / max(len(self.blocks) - 1, 1)
        return [*known,
                *(self.blocks[-1] + slope * more for more in range(1, largest - len(known) + 1))]

    def rounded(self) -> StepCosts:
        """Return the costs with three digits, as they are stored."""
        return dataclasses.replace(self, blocks=tuple(float(f"{time:.3g}") for time in self.blocks),
                                   alone=float(f"{self.alone:.3g}"),
                                   start=float(f"{self.start:.3g}"))


@dataclass(frozen=True)
class CostRecord(Config):
    """Costs of an engine in one variant, by the number of rows of a batch, and what they were
    measured on.

    Attributes:
        batches: costs by the number of rows, such as "64".
        processor: name of the processor or browser.
        cores: number of its cores that the measurement could use; 0 if nothing was measured.
        date: day of the measurement.
        revision: that of the weights.
    """

    batches: dict[str, StepCosts]
    processor: str = ""
    cores: int = setting(0, least=0, most=MOST_THREADS)
    date: str = ""
    revision: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.batches), "batches must have the costs of a number of rows")
        for rows in self.batches:
            if not (rows.isascii() and rows.isdecimal() and len(rows) < 8):
                raise ConfigError(f"batches must have whole numbers of rows, not {shown(rows)}")
            require_whole("the number of rows in batches", int(rows), most=MOST_ROWS)

    @property
    def is_measured(self) -> bool:
        """Whether the costs are microseconds of a machine; otherwise they are multiples of a step
        of one token."""
        return self.cores > 0

    def of(self, rows: int) -> StepCosts:
        """Return the costs of the recorded number of rows whose ratio to `rows` is the smallest."""
        nearest = min(self.batches, key=lambda known: (max(int(known) / rows, rows / int(known)),
                                                       int(known)))
        return self.batches[nearest]

    def threads_of(self, rows: int, width: int) -> int:
        """Return the largest number of threads that gains in a batch of `rows` whose steps have
        `width` tokens.

        Where all cores of the measured machine gained, each row of a batch may have a thread of its
        own: such threads do not wait for one another.
        """
        costs = self.of(rows)
        known = costs.threads if width > 1 else costs.alone_threads
        return known if known < self.cores else max(known, rows)


def general_costs(further: float) -> CostRecord:
    """Return costs for networks without a record: each further column of a step takes a share of
    the first one's time.

    `further` is that share.
    """
    return CostRecord({"1": StepCosts((1.0, 1.0 + further), 1.0)})


CostTable = dict[str, dict[str, CostRecord]]
"""The records of a checkpoint by engine and variant, such as "native" and "x86-64-v3"."""
