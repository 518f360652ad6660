"""The settings of a study: its question, trials and presentation, which are stored at its creation
and never change."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from superres.config import Config, documented, require, setting
from superres.errors import shown
from superres.system.output import short_digest

CAMERA = "camera"
"""Method name of the real photographs; the preference for another method over them is its fool
rate."""

MAIN, GOLD, REPEAT, PRACTICE = KINDS = ("main", "gold", "repeat", "practice")
"""Kinds of trials: counted votes, obvious pairs, main pairs with swapped sides, and obvious pairs
with feedback.

In a study of single pictures, obvious and repeated pairs are pictures.
"""

SIDES, UNSURE = ("left", "right"), "unsure"
"""Answers to a pair."""

TORN, UNEQUAL, GOOD = JUDGEMENTS = ("torn", "unequal", "good")
"""Answers to a single picture of a face: torn or faceless, with eyes or halves that do not match,
or neither."""

FORMATS = ("csv", "jsonl", "parquet")
"""Formats of exported votes, which are also the suffixes of their files."""

TRIALS, PAGE, RATERS = "Trials", "Page", "Raters"
"""Sections of the help for the settings of a study."""

MAX_NAME, MAX_IMAGE_NAME, MAX_LINE, MAX_TEXT = 200, 500, 2_000, 50_000
"""Largest number of characters of a name, of an image's name, of a text on the page, and of the
consent text."""

MAX_PARAMS = 8
"""Largest number of URL parameters for a rater's id, and of parameters that are stored with the
rater."""

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no text of a study has: control characters, and surrogates, which are not
UTF-8."""

QUESTION = "Which of the two pictures was more likely taken by a camera?"
"""Question of Stern et al. (2018, section 7.3)."""

CONSENT = (
    "You will see pairs of pictures, and choose one picture of each pair. There is no time limit, "
    "and you may stop at any time by closing the page.\n\n"
    "We store your choices, how long each took, the size of your window and the resolution of your "
    "screen. Your participant id is stored as a salted hash only. If a panel such as Prolific sent "
    "you, its ids of the study and of your submission are stored, too. No name, e-mail or network "
    "address is stored. The votes may be published."
)


JUDGING: dict[str, Any] = {
    "judge": True, "question": "Is this a good face?", "title": "Is this a good face?",
    "trials": 10_000, "interpolation": "lanczos",
    "consent": CONSENT.replace("pairs of pictures, and choose one picture of each pair",
                               "pictures of faces, one by one, and say of each whether it is torn, "
                               "unequal or good"),
}
"""Settings of a study of single pictures that differ from the defaults.

Raters judge all pictures. These are enlarged smoothly, since a face is hard to see behind the edges
of large pixels.
"""


def check_text(what: str, value: object, most: int = MAX_LINE) -> str:
    """Return `value`; raise ConfigError unless it is text without control characters, of at most
    `most` characters."""
    require(isinstance(value, str), f"{what} must be text, not {shown(value)}")
    text = str(value)
    require(len(text) <= most, f"{what} has {len(text):,} characters; shorten it to {most:,}")
    require(not CONTROL.search(text), f"{what} must not have control characters or bytes that are "
            f"not UTF-8, as in {shown(text)}; remove them")
    return text


def check_name(what: str, value: object, most: int = MAX_NAME) -> str:
    """Return `value`; raise ConfigError unless it can name a study, a method or an image.

    A name is text of one line, and no path, since people name files after it.
    """
    name = check_text(what, value, most)
    require(bool(name.strip()) and not re.search(r"[\t\r\n/\\]|^\.\.?$", name),
            f"{what} must be 1 to {most} characters on one line without / and \\, not "
            f"{shown(name)}; rename it")
    return name


@documented
@dataclass(frozen=True)
class StudySettings(Config):
    """Wording, trials and display of a study. Those with a help text are options of `superres
    survey create`.

    The options of the others have other forms. `title` is the heading of the page, and `consent`
    the text that a rater agrees to. `scale` is the factor, 1 to 64, by which the server enlarges
    pictures; with `fill`, the page enlarges them further, in whole pixels, as far as the window
    allows, and otherwise no more. `minimum_viewport` is the smallest window (width, height) in
    which votes are accepted, in CSS pixels. `id_params` are parameters of the page's URL that may
    hold the rater's id; the first one present is used. `panel_params` are parameters whose values
    are kept as they are, such as Prolific's, by which its owner finds a rater's submission.
    """

    question: str = setting(
        QUESTION, "Question above every pair; the default is as in Stern et al. (2018, section "
        "7.3).", "TEXT", panel=PAGE)
    trials: int = setting(50, "Pairs per rater, 1 to 10,000, at most the pairs of the study.", "N",
                          least=1, most=10_000, panel=TRIALS)
    gold: int = setting(4, "Pairs with an obvious answer among these, 0 to 1000; see --obvious.",
                        "N", least=0, most=1000, panel=TRIALS)
    repeats: int = setting(4, "Number of these pairs shown twice, sides swapped.", "N", least=0,
                           most=1000, panel=TRIALS)
    practice: int = setting(4, "Obvious pairs with feedback, shown first and not counted, 0 to "
                            "100.", "N", least=0, most=100, panel=TRIALS)
    allow_unsure: bool = setting(False, 'Offer the answer "can\'t tell".', panel=PAGE)
    interpolation: str = setting("nearest", "How the server enlarges pictures.",
                                 choices=("nearest", "bicubic", "lanczos"), panel=PAGE)
    thanks: str = setting("Thank you! Your votes are saved. You can close this page.",
                          "Text of the last page.", "TEXT", panel=PAGE)
    judge: bool = setting(False, "Show single pictures instead of pairs; raters judge each as torn "
                          "or faceless, unequal, or good.", panel=TRIALS)
    completion_code: str = setting("", "Code shown on the last page, for panels that pay by code.",
                                   "CODE", panel=RATERS)
    completion_url: str = setting("", "Link on the last page.", "URL", panel=RATERS)
    seed: int = setting(0, "Seed for pictures, sides, order and resampling.", "S", least=0,
                        most=2**63 - 1, panel=TRIALS)
    title: str = "Which picture was taken by a camera?"
    consent: str = CONSENT
    scale: int = setting(8, least=1, most=64)
    fill: bool = False
    minimum_viewport: tuple[int, int] = (240, 240)
    id_params: tuple[str, ...] = ("PROLIFIC_PID", "workerId", "participant")
    panel_params: tuple[str, ...] = ("STUDY_ID", "SESSION_ID")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("question", "title", "consent", "thanks", "completion_code", "completion_url"):
            text = check_text(name, getattr(self, name),
                              MAX_TEXT if name == "consent" else MAX_LINE)
            require(bool(text.strip()) or name.startswith("completion"),
                    f"{name} must not be empty; leave it out for the default text")
        require(not (self.judge and self.allow_unsure), "judged pictures have three answers, and "
                "allow_unsure is a fourth one; leave one of the two out")
        require(self.repeats <= self.trials, f"repeats {self.repeats} are more than the trials, "
                f"{self.trials}")
        require(all(0 <= side <= 10_000 for side in self.minimum_viewport),
                "the minimum viewport must be width,height in CSS pixels, not "
                f"{shown(self.minimum_viewport)}")
        for name in ("id_params", "panel_params"):
            names = getattr(self, name)
            valid = all(re.fullmatch(r"[!-~]{1,100}", one) for one in names)
            require(len(names) <= MAX_PARAMS and valid,
                    f"{name} must be up to {MAX_PARAMS} names of URL parameters, each of 1 to 100 "
                    f"ASCII characters without blanks, not {shown(names)}")
        url = self.completion_url
        require(not url or url.startswith(("https://", "http://")), "the completion URL must be "
                f"http(s), not {url!r}")

    @property
    def consent_version(self) -> str:
        """First 12 hexadecimal digits of the SHA-256 of the consent text, stored with each
        agreement."""
        return short_digest(self.consent.encode())

    @property
    def choices(self) -> tuple[str, ...]:
        """The answers that the page offers: sides of a pair, or judgements of a picture."""
        return JUDGEMENTS if self.judge else (*SIDES, *([UNSURE] if self.allow_unsure else []))


@dataclass(frozen=True)
class Comparison:
    """Two methods whose pictures are shown side by side; the report gives the preference for
    `method_a`.

    A study of single pictures has one for each method, with its name, and an empty `method_b`.
    """

    name: str
    method_a: str
    method_b: str = ""


@dataclass(frozen=True)
class Study:
    """A study in a store.

    `created` is its time of creation (UTC, ISO 8601). `methods` has the origin of each method's
    pictures by name: a folder, or a checkpoint and decoding settings. `salt` is the key of the
    raters' pseudonyms.
    """

    id: int
    name: str
    created: str
    settings: StudySettings
    methods: dict[str, dict[str, Any]]
    comparisons: tuple[Comparison, ...]
    salt: str

    def record(self) -> dict[str, Any]:
        """Return the study without its salt, serialisable as JSON."""
        return {"study": self.name, "created": self.created, "settings": self.settings.to_dict(),
                "methods": self.methods,
                "comparisons": [dataclasses.asdict(c) for c in self.comparisons]}
