"""Reproduce Table 3 of Stern et al. (2018) with a survey: people's preference for blockwise
decoding.

`make_study` makes the study of ten comparisons from a ladder, and `views` the table from its votes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder import read_ladder
from measurements import Document, Row, values
from superres.checkpoint import weights_digest
from superres.config import require
from superres.survey.presentation import INTERVALS_NOTE
from superres.survey.report import Report
from superres.survey.study import StudySettings
from superres.survey.wording import interval_text, p_text, percent
from superres.system.output import markdown_table

if TYPE_CHECKING:
    from superres.survey.store import Store

ROLES = ("fine-tuned", "regular")
"""Rungs of the ladder whose pictures are compared: methods a and b."""

BLOCK_SIZES = (2, 4, 6, 8, 10)
"""Block sizes k of the paper's table."""


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table: a fine-tuned network at block size k, compared with the regular
    network at k = 1.

    The criterion is "exact", or "approximate" for acceptance within epsilon 2. `preference` has the
    votes for the fine-tuned network in %, and `interval` the paper's 90% bootstrap interval.
    """

    criterion: str
    block_size: int
    preference: float
    interval: tuple[float, float]

    @property
    def name(self) -> str:
        """Name of the row, which is also the name of a method of finished pictures for this row."""
        return f"{self.criterion}-k{self.block_size}"


ROWS = tuple(PaperRow(criterion, k, *figures) for criterion, entries in {
    "exact": ((52.8, (50.8, 54.9)), (54.4, (52.5, 56.3)), (53.2, (51.3, 55.0)),
              (55.1, (53.3, 56.8)), (54.5, (53.1, 56.0))),
    "approximate": ((50.0, (48.4, 51.5)), (53.3, (51.7, 55.0)), (56.8, (55.4, 58.2)),
                    (55.2, (53.5, 56.7)), (50.3, (48.9, 51.8))),
}.items() for k, figures in zip(BLOCK_SIZES, entries, strict=True))
"""The paper's Table 3."""


def make_study(
    ladder: Path, images: Path, store: Store, name: str, count: int | None, seed: int,
    batch_size: int, device: str,
) -> str:
    """Decode the pictures of the table's ten rows, store a study of them, and return its owner's
    token.

    Method a of each row is the network `ladder / "fine-tuned"`, method b greedy decoding with
    `ladder / "regular"`. All comparisons have the same `count` of `images` (None: all) and get
    equally many votes.

    Raises:
        ConfigError: the networks were not trained from one base in the same way, have under ten
            prediction heads or too few images, or the store has a study of this name.
        SuperresError: a checkpoint, the images or the store cannot be used.
    """
    from superres.evaluation.survey_methods import Spec, make_comparisons, training_of
    from superres.survey.creation import create_study, require_free

    require_free(store, name)
    networks = read_ladder(ladder, ROLES)
    missing = [role for role in ROLES if role not in networks]
    require(not missing, f"{ladder} has no finished stage {' or '.join(missing)}; train the ladder "
            "to its end")
    tuned, regular = ({"revision": weights_digest(networks[role]),
                       "training": training_of(str(networks[role]))}
                      for role in ROLES)
    require_rivals("fine-tuned", tuned, "regular", regular)
    criteria: dict[str, dict[str, Any]] = {"exact": {"accept": "exact"},
                                           "approximate": {"accept": "distance", "epsilon": 2}}
    rows = [Spec(row.name, checkpoint=str(networks["fine-tuned"]),
                 settings={**criteria[row.criterion], "block_size": row.block_size})
            for row in ROWS]
    greedy = Spec("regular", checkpoint=str(networks["regular"]), settings={"block_size": 1})
    settings = StudySettings(seed=seed)
    compared = make_comparisons(rows, [greedy], images, count, seed, batch_size, device,
                                settings.interpolation)
    return create_study(store, name, settings, compared)


def require_rivals(name_a: str, a: dict[str, Any], name_b: str, b: dict[str, Any]) -> None:
    """Raise ConfigError if the records of two methods say that they are not a fine-tuned and a
    regular network."""
    (one, trained), (other, regular) = ((record.get("revision"), record.get("training"))
                                        for record in (a, b))
    remedy = ("make the study of Table 3 with table3-study, or read this one with superres survey "
              "report")
    require(one is None or one != other, f"{name_a!r} and {name_b!r} are pictures of one network "
                                         f"({trained or 'unknown'}, revision {one}); {remedy}")
    require(trained in (None, "fine-tuned") and regular in (None, "frozen base", "no heads"),
            f"the heads of {name_a!r} were trained as: {trained or 'unknown'}, and those of "
            f"{name_b!r} as: {regular or 'unknown'}, not fine-tuned and with a frozen base; "
            f"{remedy}")


def match_rows(report: Report) -> dict[str, dict[str, Any]]:
    """Return the comparisons of a survey's report that measure rows of the table, by the name of
    the row.

    Method b of such a comparison was decoded at block size 1, and method a at the row's block size,
    exactly or within epsilon 2. Finished pictures measure the row with the name of their method,
    such as "approximate-k6". Two comparisons of the same row, and networks of which a record says
    that they are not those of the table, are a ConfigError.
    """
    found: dict[str, dict[str, Any]] = {}
    for comparison in report["result"]["comparisons"]:
        name = _row_of(comparison, report["methods"])
        if name is not None:
            require(name not in found, f"{comparison['name']!r} and another comparison of "
                    f"{report['study']!r} measure the row {name}; a study for Table 3 has one of "
                    "each")
            a, b = comparison["method_a"], comparison["method_b"]
            require_rivals(a, report["methods"].get(a, {}), b, report["methods"].get(b, {}))
            found[name] = comparison
    return found


def _row_of(comparison: dict[str, Any], methods: dict[str, dict[str, Any]]) -> str | None:
    a, b = (methods.get(comparison[key], {}).get("config") for key in ("method_a", "method_b"))
    if comparison["fool_rate"]:
        return None
    if a is None:
        return next((row.name for row in ROWS if row.name == comparison["method_a"]), None)
    if b is None or b["block_size"] != 1 or b["temperature"]:
        return None
    plain = a["min_block"] == 1 and not a["temperature"] and a["proposer"] == "heads"
    criterion = {"exact": "exact", "distance": "approximate"}.get(a["accept"])
    if not plain or (criterion == "approximate" and a["epsilon"] != 2):
        return None
    return next((row.name for row in ROWS if (row.criterion, row.block_size)
                 == (criterion, a["block_size"])), None)


def _network(record: dict[str, Any]) -> str:
    """Return the network of a method, and how its heads were trained."""
    if "checkpoint" not in record:
        return "finished pictures of an unknown network"
    return (f"{record['checkpoint']}@{record['revision']}, "
            f"{record.get('training') or 'unknown training'}")


def rows(report: Report) -> Iterator[Row]:
    """Return the row of all votes."""
    yield Row("votes", lambda: report, {"votes": report["result"]["votes"]})


def views(document: Document) -> dict[str, str]:
    """Return the ten rows with the paper's figures below ours; ConfigError if no row is
    measured."""
    report = values(document)["votes"]
    found = match_rows(report)
    require(bool(found), f"no comparison of the study {report['study']!r} measures a row of Table "
            f"3: compare methods decoded at block size {', '.join(map(str, BLOCK_SIZES))} (exact, "
            "or distance with epsilon 2), or folders named after the rows, such as approximate-k6, "
            "with greedy pictures (block size 1)")
    table = []
    for row in ROWS:
        ours: dict[str, Any] = found.get(row.name, {})
        table.append([f"**{row.criterion}, k = {row.block_size}**", percent(ours.get("preference")),
                      interval_text(ours.get("intervals", {}).get("two_way")),
                      p_text(ours.get("p_two_way")),
                      *(str(ours.get(key, "-")) for key in ("votes", "raters", "images"))])
        low, high = row.interval
        table.append([f"{row.criterion}, k = {row.block_size}, paper", f"{row.preference:.1f}",
                      f"({low:.1f}, {high:.1f})", *["-"] * 4])
    header = ["fine-tuned over regular", "% for fine-tuned", "two-way", "p two-way", "votes",
              "raters", "images"]
    missing = [row.name for row in ROWS if row.name not in found]
    networks = [f"{name}: {_network(report['methods'].get(name, {}))}" for name in dict.fromkeys(
        comparison[key] for key in ("method_b", "method_a") for comparison in found.values())]
    return {"preference": markdown_table(header, table), "methods": (
        f"Study {report['study']}: {report['result']['votes']} votes of "
        f"{report['result']['raters']} raters. Intervals at {100 * report['level']:g}%. "
        f"Methods, with the training of their heads by their own records: {'; '.join(networks)}. "
        + (f"Not in the study: {', '.join(missing)}. " if missing else "") + INTERVALS_NOTE)}
