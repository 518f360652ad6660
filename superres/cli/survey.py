"""The commands of `superres survey`: a preference survey from its pictures to its report."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from superres.cli.options import DEVICES, BatchSize, Device, choices
from superres.config import require, require_choice
from superres.errors import ConfigError, InvalidInputError
from superres.survey.limits import PER_ADDRESS, TOTAL, EnrolmentLimit
from superres.survey.study import INTERPOLATIONS, StudySettings
from superres.system.terminal import echo

if TYPE_CHECKING:
    from superres.survey.store import Store
    from superres.survey.study import Study

SETTINGS = StudySettings()
PLAIN_STORE = "survey.db"
FORMAT_NAMES = ("csv", "jsonl", "parquet")

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study.")]
StorePlace = Annotated[str, typer.Option("--store", metavar="FILE|URL", envvar="SUPERRES_SURVEY_STORE",
                                         help="SQLite file, or a database URL such as postgresql://user@host/name.")]
MethodA = Annotated[list[str], typer.Option(metavar="SPEC", help="Method a: a folder of finished pictures, camera, "
                                            "bicubic, nearest, or settings such as name=k6,accept=distance,epsilon=2,"
                                            "block_size=6[,checkpoint=DIR]. May be given several times.")]
MethodB = Annotated[list[str], typer.Option(metavar="SPEC", help="Method b, as many as --method-a, or one for all.")]
ImagesPath = Annotated[Path | None, typer.Option("--images", metavar="PATH", help="What to decode, and the photographs "
                                                 "of camera: .npz, folder of images or CelebA root.",
                                                 show_default=False)]
Pairs = Annotated[int | None, typer.Option(metavar="N", help="Images of each comparison, chosen by --seed. "
                                           "[default: all]", show_default=False)]
Scale = Annotated[int, typer.Option(metavar="N", help="CSS pixels that a picture's pixel is wide.")]
Interpolation = Annotated[str, typer.Option(metavar=choices(INTERPOLATIONS), help="How pictures are enlarged by it.")]
Trials = Annotated[int, typer.Option(metavar="N", help="Pairs a rater, at most all of the study's.")]
Gold = Annotated[int, typer.Option(metavar="N", help="Obvious pairs among them.")]
Repeats = Annotated[int, typer.Option(metavar="N", help="Pairs seen twice, sides swapped.")]
Practice = Annotated[int, typer.Option(metavar="N", help="Obvious pairs with feedback at the start.")]
Unsure = Annotated[bool, typer.Option("--allow-unsure", help="Offer \"can't tell\".")]
Question = Annotated[str, typer.Option(metavar="TEXT", help="Asked above every pair.")]
Title = Annotated[str, typer.Option(metavar="TEXT", help="Heading of the page.")]
Thanks = Annotated[str, typer.Option(metavar="TEXT", help="Text of the last page.", show_default=False)]
Consent = Annotated[Path | None, typer.Option(metavar="FILE", help="Text that raters agree to.", show_default=False)]
Viewport = Annotated[str, typer.Option(metavar="W,H", help="Smallest window, in CSS pixels.")]
IdParams = Annotated[list[str], typer.Option("--id-param", metavar="NAME", help="URL parameter that holds the rater's "
                                             "id; may be given several times.")]
Code = Annotated[str, typer.Option("--completion-code", metavar="CODE", help="Shown at the end.", show_default=False)]
Link = Annotated[str, typer.Option("--completion-url", metavar="URL", help="Linked at the end.", show_default=False)]
StudySeed = Annotated[int, typer.Option("--seed", metavar="S", help="Of pictures, sides, order and resampling.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="0.0.0.0 is all of this machine's.")]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="0 picks a free one.")]
RootPath = Annotated[str, typer.Option(metavar="PATH", help="Path under which a proxy passes requests on.",
                                       show_default=False)]
PerAddress = Annotated[int, typer.Option(min=0, metavar="N", help="Raters per client address that may enrol in 10 "
                                         "minutes; 0 is no limit. Raise it for a large group behind one address. For "
                                         "a proxy on another machine, set FORWARDED_ALLOW_IPS to its address.")]
InAll = Annotated[int, typer.Option("--enrolments", min=0, metavar="N", help="Raters in all that may enrol in 10 "
                                    "minutes; 0 is no limit.")]
LinkIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Participant ids.")]
PageAddress = Annotated[str, typer.Option(metavar="URL", help="Address of the voting page, as raters reach it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]
ReportFolder = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Write report.json, report.md and "
                                                   "report.png there.", show_default=False)]
Level = Annotated[float, typer.Option(metavar="L", help="Confidence level of the intervals.")]
FileFormat = Annotated[str, typer.Option("--format", metavar=choices(FORMAT_NAMES), help="Of the file.")]
ExportFile = Annotated[Path, typer.Option("--output", metavar="FILE", help="The votes; FILE's study and columns are "
                                          "described beside it.")]
Exported = Annotated[Path, typer.Argument(metavar="FILE", help="Votes that superres survey export wrote.")]
NewName = Annotated[str | None, typer.Option("--name", metavar="STUDY", help="[default: that of the export]",
                                             show_default=False)]
Rule = Annotated[str | None, typer.Argument(metavar="[RULE]", help="gold<0.8, repeats<0.6, median-ms<500, "
                                            "same-side>0.9, votes<10, or rater=PSEUDONYM.", show_default=False)]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the rule.", show_default=False)]
Revoke = Annotated[int | None, typer.Option(metavar="N", help="Take back rule N.", show_default=False)]
RaterId = Annotated[str | None, typer.Option(metavar="ID", help="Exclude the rater with this participant id.",
                                             show_default=False)]
Precision = Annotated[float, typer.Option(metavar="POINTS", help="Half of the interval's width, percentage points.")]
PlanImages = Annotated[int, typer.Option("--images", min=1, metavar="N", help="Images of the comparison.")]
PerRater = Annotated[int, typer.Option("--votes-per-rater", min=1, metavar="N",
                                            help="Votes a rater on the comparison.")]
Expected = Annotated[float, typer.Option(metavar="PERCENT", help="Expected preference; 50 takes the most votes.")]
Pilot = Annotated[str | None, typer.Option(metavar="STUDY", help="Study whose correlations are taken.",
                                           show_default=False)]
RaterCorrelation = Annotated[float | None, typer.Option(metavar="R", help="Correlation of a rater's votes.",
                                                        show_default=False)]
ImageCorrelation = Annotated[float | None, typer.Option(metavar="R", help="Correlation of the votes on an image.",
                                                        show_default=False)]

survey_app = typer.Typer(help="Ask people which picture was more likely taken by a camera.", rich_markup_mode=None)


@survey_app.callback()
def survey() -> None:
    """Ask people which picture was more likely taken by a camera."""
    try:
        import sqlalchemy  # noqa: F401
    except ImportError:
        raise ConfigError('superres survey needs more packages: pip install "superres[survey]"') from None


@survey_app.command()
def create(
    context: typer.Context, study: StudyName, method_a: MethodA, method_b: MethodB, images: ImagesPath = None,
    pairs: Pairs = None, store: StorePlace = PLAIN_STORE, seed: StudySeed = SETTINGS.seed,
    scale: Scale = SETTINGS.scale, interpolation: Interpolation = SETTINGS.interpolation,
    trials: Trials = SETTINGS.trials, gold: Gold = SETTINGS.gold, repeats: Repeats = SETTINGS.repeats,
    practice: Practice = SETTINGS.practice, allow_unsure: Unsure = False, question: Question = SETTINGS.question,
    title: Title = SETTINGS.title, thanks: Thanks = SETTINGS.thanks, consent: Consent = None,
    minimum_viewport: Viewport = "640,480", id_params: IdParams = list(SETTINGS.id_params),  # noqa: B006 -- typer's
    completion_code: Code = "", completion_url: Link = "", batch_size: BatchSize = 25, device: Device = "auto",
) -> None:
    """Make the pictures of two methods or more, and store them as a study; prints the token of its owner.

    Each --method-a is compared with the --method-b in the same place. With camera as a method the preference is the
    fool rate: how often a decoded picture is taken for the photograph.
    """
    settings = _settings(context)
    require_choice("--device", device, DEVICES)
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    from superres.evaluation.survey_methods import MethodRenderer, make_comparisons, parse_spec, read_images
    from superres.survey.pairs import make_pairs

    specs_a, specs_b = ([parse_spec(text) for text in texts] for texts in (method_a, method_b))
    opened = _open(store, create=True)
    require(study not in opened.studies(), f"there is a study {study!r} in {store} already; choose another name")
    renderer = MethodRenderer(read_images(images) if images is not None else None, batch_size, device)
    compared = make_comparisons(specs_a, specs_b, renderer, pairs, seed)
    made = make_pairs(compared, settings)
    methods = {method.name: method.record for _, a, b in compared for method in (a, b)}
    height, width = made[0].a.pixels.shape[:2]
    comparisons = [comparison for comparison, _, _ in compared]
    _, token = opened.create_study(study, settings.fitted(width, height), comparisons, methods, made)
    _say(f"study {study} with {len(comparisons)} comparisons and {len(made)} pairs is in {opened.location}; its "
         "owner's token follows, and is shown this once")
    typer.echo(token)


def _settings(context: typer.Context) -> StudySettings:
    """Return the settings of the command `create`, which has an option for each."""
    values = {name: context.params[name] for name in SETTINGS.to_dict()}
    try:
        text = values.pop("consent")
        values["consent"] = text.read_text(encoding="utf-8") if text is not None else SETTINGS.consent
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"--consent {text} cannot be read ({error}); give a text file") from error
    viewport = str(values["minimum_viewport"]).split(",")
    require(len(viewport) == 2 and all(side.strip().isdecimal() for side in viewport),
            f"--minimum-viewport must be W,H such as 640,480, not {values['minimum_viewport']!r}")
    values["minimum_viewport"] = tuple(int(side) for side in viewport)
    return StudySettings.from_dict(values)


@survey_app.command()
def serve(
    study: StudyName, store: StorePlace = PLAIN_STORE, host: Host = "127.0.0.1", port: Port = 8000,
    root_path: RootPath = "", enrolments_per_address: PerAddress = PER_ADDRESS, enrolments: InAll = TOTAL,
) -> None:
    """Let raters vote in a browser; the owner's live results are under results/."""
    import socket

    import uvicorn

    from superres.survey.results import study_app

    opened, found = _study(store, study)
    app = study_app(opened, found, root_path, EnrolmentLimit(enrolments_per_address, enrolments))
    try:
        listening = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        raise ConfigError(message) from error
    prefix = f"/{root_path.strip('/')}/" if root_path.strip("/") else "/"
    address = f"http://{host}:{listening.getsockname()[1]}{prefix}"
    _say(f"{study}: raters vote at {address}, results are at {address}results/")
    # No access log: its lines would join network addresses with participant ids.
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, server_header=False))
    server.run(sockets=[listening])


@survey_app.command()
def link(
    study: StudyName, rater_ids: LinkIds, address: PageAddress = "http://127.0.0.1:8000/",
    store: StorePlace = PLAIN_STORE,
) -> None:
    """Print personal links, one per participant id: by one, a rater enrols, and resumes from any browser.

    A participant id alone enrols once; after that, only the browser that enrolled or the personal link continues.
    Whoever has a link votes as its rater: send each to that rater alone.
    """
    from urllib.parse import urlencode

    from superres.survey.credentials import link_key

    _, found = _study(store, study)
    names = found.settings.id_params
    require(bool(names), f"the study {study} has no --id-param, so that no link can name a rater")
    require(address.startswith(("https://", "http://")), f"--address must be http(s), not {address!r}")
    queries = [urlencode({names[-1]: rater, "link_key": link_key(found.salt, rater)}) for rater in rater_ids]
    for query in queries:
        typer.echo(f"{address}{'&' if '?' in address else '?'}{query}")


@survey_app.command()
def report(
    study: StudyName, store: StorePlace = PLAIN_STORE, output: ReportFolder = None, level: Level = 0.9,
    as_json: AsJson = False,
) -> None:
    """Report what raters preferred, with intervals, tests and the raters' care."""
    require(0 < level < 1, f"--level must be between 0 and 1, not {level}")
    from superres.survey.presentation import report_markdown, report_plot
    from superres.survey.report import study_report
    from superres.system.output import prepare_folder, write_result

    found = study_report(*_study(store, study), level)
    document = json.dumps(found, indent=1)
    if output is not None:
        prepare_folder(output)
        for name, data in (("report.json", f"{document}\n".encode()), ("report.md", report_markdown(found).encode()),
                           ("report.png", report_plot(found))):
            write_result(output / name, data)
    if as_json:
        typer.echo(document)
    else:
        echo(report_markdown(found))


@survey_app.command()
def plan(
    precision: Precision = 2.0, images: PlanImages = 500, votes_per_rater: PerRater = 50, level: Level = 0.9,
    expected: Expected = 50.0, pilot: Pilot = None, store: StorePlace = PLAIN_STORE,
    rater_correlation: RaterCorrelation = None, image_correlation: ImageCorrelation = None, as_json: AsJson = False,
) -> None:
    """Compute how many votes and raters a comparison needs for a wanted precision."""
    from superres.survey import planning

    rater, image = planning.RATER_CORRELATION, planning.IMAGE_CORRELATION
    if pilot is not None:
        rater, image = planning.pilot_correlations(*_study(store, pilot))
    rater = rater if rater_correlation is None else rater_correlation
    image = image if image_correlation is None else image_correlation
    found = planning.plan_votes(precision / 100, images, votes_per_rater, expected / 100, level, rater, image)
    if as_json:
        typer.echo(json.dumps({**dataclasses.asdict(found), "rater_correlation": rater, "image_correlation": image}))
    else:
        typer.echo(f"{found.votes} votes of {found.raters} raters, {found.votes_per_image:.1f} an image, give an "
                   f"interval of +-{precision:g} points at {100 * level:g}% with correlations {rater:.3f} (rater) and "
                   f"{image:.3f} (image); independent votes would need {found.independent_votes} "
                   f"(design effect {found.design_effect:.1f})")


@survey_app.command()
def export(
    study: StudyName, output: ExportFile, file_format: FileFormat = "csv", store: StorePlace = PLAIN_STORE,
) -> None:
    """Write the votes, one row a vote, with the study's settings and a dictionary of the columns beside them."""
    require_choice("--format", file_format, FORMAT_NAMES)
    require(output.suffix == f".{file_format}",
            f"--output {output} must end in .{file_format}; correct it, or give another --format")
    from superres.survey.export import export_study
    from superres.system.output import prepare_folder

    opened, found = _study(store, study)
    prepare_folder(output.parent)
    _say(f"written: {', '.join(map(str, export_study(opened, found, output, file_format)))}")


@survey_app.command("import")
def import_(file: Exported, name: NewName = None, store: StorePlace = PLAIN_STORE) -> None:
    """Store exported votes as a study, which can be reported and exported, not served."""
    from superres.survey.export import import_study

    opened = _open(store, create=True)
    _say(f"study {import_study(opened, file, name).name} is in {opened.location}")


@survey_app.command()
def exclude(
    study: StudyName, rule: Rule = None, rater_id: RaterId = None, reason: Reason = "", revoke: Revoke = None,
    store: StorePlace = PLAIN_STORE,
) -> None:
    """Record a rule that sets raters' votes aside in every report, or take one back; no vote is deleted."""
    require(sum(given is not None for given in (rule, rater_id, revoke)) == 1,
            "give one of a rule (such as gold<0.8), --rater-id or --revoke")
    require(bool(reason.strip()), "give the --reason; it is kept with the rule")
    from superres.survey import exclusions
    from superres.survey.credentials import pseudonym
    from superres.survey.records import read_votes

    opened, found = _study(store, study)
    if revoke is not None:
        exclusions.revoke(opened, found, revoke, reason)
    else:
        text = rule if rule is not None else f"rater={pseudonym(found.salt, rater_id or '')}"
        exclusions.exclude(opened, found, text, reason)
    rules = exclusions.read_exclusions(opened, found)
    out = exclusions.excluded_raters(read_votes(opened, found), rules)
    standing = [f"{entry.number}: {entry.rule}" for entry in rules if not entry.revoked]
    _say(f"{study}: {len(out)} raters are excluded now, by {'; '.join(standing) or 'no rule'}")


@survey_app.command()
def migrate(store: StorePlace = PLAIN_STORE) -> None:
    """Make a store, or bring one of an older version up to date."""
    from superres.survey.store import Store

    opened = Store(store, create=True)
    before, after = opened.migrated
    _say(f"{opened.location} has schema {after}" + (f", before {before}" if before != after else " already"))


@survey_app.command()
def token(study: StudyName, store: StorePlace = PLAIN_STORE) -> None:
    """Print a new token for the study's owner; the one before is void."""
    opened, found = _study(store, study)
    typer.echo(opened.new_owner_token(found))


def _open(store: str, create: bool = False) -> Store:
    from superres.survey.store import Store

    return Store(store, create)


def _study(store: str, name: str) -> tuple[Store, Study]:
    opened = _open(store)
    return opened, opened.study(name)


def _say(message: str) -> None:
    echo(f"superres: {message}", err=True)
