"""The commands of `superres survey`: create, serve and analyse a preference survey."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import typer

from superres.cli import options as opt
from superres.cli import survey_options as own
from superres.config import DEFAULT_CASCADE, require, settings_of
from superres.errors import InvalidInputError
from superres.survey.commands import DEFAULT_STORE, command_line
from superres.survey.rate_limit import PER_ADDRESS, TOTAL, EnrolmentLimit
from superres.survey.study import JUDGING, StudySettings
from superres.system.output import counted
from superres.system.progress import say
from superres.system.signals import will_keep
from superres.system.terminal import echo, echo_json

if TYPE_CHECKING:
    from superres.survey.store import Store
    from superres.survey.study import Study

SETTINGS = StudySettings()

JUDGED = [f"name=exact,checkpoint={DEFAULT_CASCADE}",
          f"name=temperature 0.7,checkpoint={DEFAULT_CASCADE},temperature=0.7"]

survey_app = typer.Typer(help="Ask people which of two pictures they prefer, or whether a picture "
                         "is good, and report the answer.",
                         rich_markup_mode=None)


def _with_settings(function: opt.Command) -> opt.Command:
    """Return a command with options for the settings of a study; its context has their values."""
    return opt.with_options(function, [opt.option_of(name, about, getattr(StudySettings, name))
                                       for name, about in settings_of(StudySettings).items()])


@survey_app.command(cls=opt.HelpfulCommand)
@_with_settings
def create(
    context: typer.Context, study: own.StudyName, method_a: own.MethodA,
    method_b: own.MethodB = [],  # noqa: B006 -- typer wants a list
    images: own.ImagesPath = None, pairs: own.Pairs = None, obvious: own.Obvious = None,
    store: own.StoreLocation = DEFAULT_STORE, title: own.Title = None, consent: own.Consent = None,
    scale: own.Scale = None, minimum_viewport: own.Viewport = "240,240",
    id_params: own.IdParams = list(SETTINGS.id_params),  # noqa: B006 -- typer's
    panel_params: own.PanelParams = list(SETTINGS.panel_params),  # noqa: B006
    batch_size: opt.BatchSize = 25, device: opt.Device = "auto",
) -> None:
    """Make a study of finished pictures or of pictures that this command decodes, and store it.

    The first --method-a is compared with the first --method-b, and so on. With camera as a method,
    the preference is the fool rate: how often raters take a decoded picture for the photograph.
    With --judge, raters see the pictures of each --method-a one by one, and judge them. Pictures of
    one image have the same file name in each folder. Files that cannot be read are named and
    skipped. The command prints the token of the study's owner.
    """
    settings = _settings(context)
    require(settings.judge != bool(method_b), "--judge shows single pictures, and --method-b makes "
            "pairs; leave one of the two out" if method_b else "there is no --method-b to compare "
            "with; give one, or --judge")
    for name in ("gold", "practice"):
        asked = opt.is_given(context, name) and getattr(settings, name)
        require(obvious is not None or settings.question == SETTINGS.question or not asked,
                f"--{name} needs pairs with an obvious answer to this question; give --obvious "
                "FOLDER, or --obvious shuffled if intact pictures answer it")
    _create(study, settings, store, method_a, method_b, images, pairs, obvious, scale, batch_size,
            device)


def _create(
    study: str, settings: StudySettings, store: str, method_a: list[str], method_b: list[str],
    images: Path | None, count: int | None, obvious: str | None, scale: int | None, batch_size: int,
    device: str,
) -> None:
    """Make a study, store it, and print its owner's token."""
    opt.check_device(device)
    require(batch_size >= 1, f"--batch-size must be at least 1, not {batch_size}")
    from superres.evaluation.survey_methods import make_comparisons, parse_spec, read_obvious
    from superres.survey.creation import create_study, require_free
    from superres.survey.store import Store

    specs_a, specs_b = ([parse_spec(text) for text in texts] for texts in (method_a, method_b))
    known = read_obvious(obvious)
    with Store.for_new_study(store) as opened:
        require_free(opened, study)
        compared = make_comparisons(specs_a, specs_b, images, count, settings.seed, batch_size,
                                    device, settings.interpolation)
        echo(create_study(opened, study, settings, compared, scale, known))


def _settings(context: typer.Context) -> StudySettings:
    """Return the settings that the options of `create` give; the others have their defaults."""
    values = {name: context.params[name] for name in SETTINGS.to_dict()
              if opt.is_given(context, name)}
    if values.get("question", SETTINGS.question) != SETTINGS.question:
        values.setdefault("title", values["question"])
    if "consent" in values:
        try:
            values["consent"] = values["consent"].read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(f"--consent {values['consent']} cannot be read ({error}); give "
                                    "a text file") from error
    if "minimum_viewport" in values:
        sides = values["minimum_viewport"].split(",")
        require(len(sides) == 2 and all(side.strip().isdecimal() for side in sides),
                "--minimum-viewport must be W,H such as 640,480, not "
                f"{values['minimum_viewport']!r}")
        values["minimum_viewport"] = tuple(map(int, sides))
    if "panel_params" in values:
        values["panel_params"] = tuple(filter(None, values["panel_params"]))
    return StudySettings.from_dict({**JUDGING, **values} if values.get("judge") else values)


@survey_app.command(cls=opt.HelpfulCommand)
def serve(
    study: own.StudyName, store: own.StoreLocation = DEFAULT_STORE, host: own.Host = "127.0.0.1",
    port: own.Port = 8000, root_path: own.RootPath = "",
    enrolments_per_address: own.PerAddress = PER_ADDRESS, enrolments: own.InAll = TOTAL,
    proxy: own.Proxy = [],  # noqa: B006 -- typer wants a list
) -> None:
    """Serve the voting page, and the owner's results under results/."""
    from superres.survey.server import study_app
    from superres.system import serving
    from superres.system.asgi import how_to_leave, local_address

    opened, found = _open_study(store, study)
    app = study_app(opened, found, root_path, EnrolmentLimit(enrolments_per_address, enrolments))
    listening = serving.listen(host, port)
    address = local_address(host, listening.getsockname()[1], root_path)
    say(f"open {address} to vote in {study} ({how_to_leave(host)})")
    say(results_line(address, study, opened.location))
    # No access log: its lines would join network addresses with participant ids.
    will_keep("all votes are kept, and the same command serves the study again")
    serving.serve(serving.server_config(app, proxy, log_level="warning"), listening)


@survey_app.command(cls=opt.HelpfulCommand)
def judge(
    study: own.StudyName, images: own.FacesPath, method: own.Method = JUDGED,
    pictures: own.Pictures = 100, store: own.StoreLocation = DEFAULT_STORE,
    host: own.Host = "127.0.0.1", port: own.Port = 8000, batch_size: opt.BatchSize = 25,
    device: opt.Device = "auto",
) -> None:
    """Make a study of single pictures, and serve it: how many of each method are torn, unequal and
    good?

    Raters see the pictures one by one in random order, without a method's name, and judge each by
    the keys 1, 2 and 3. Ask two or more. The command survey create makes such a study, too, and has
    more options; survey serve serves it again.
    """
    _create(study, StudySettings(**JUDGING), store, method, [], images, pictures, None, None,
            batch_size, device)
    serve(study, store, host, port)


@survey_app.command(cls=opt.HelpfulCommand)
def link(
    study: own.StudyName, rater_ids: own.LinkIds, address: own.PageAddress = "http://127.0.0.1:8000/",
    store: own.StoreLocation = DEFAULT_STORE,
) -> None:
    """Print personal links, one per participant id.

    With a personal link, a rater enrols, and continues from any browser. A participant id without a
    link enrols once; after that, only the browser that enrolled continues. Anyone who has a link
    can vote as its rater, so send each link to its rater only.
    """
    from superres.survey.credentials import link_key

    _, found = _open_study(store, study)
    require(bool(found.settings.id_params),
            f"the study {study} has no --id-param, so a link cannot name a rater; create it with "
            "one")
    require(address.startswith(("https://", "http://")), "--address must be http(s), not "
            f"{address!r}")
    queries = [urlencode({found.settings.id_params[-1]: rater,
                          "link_key": link_key(found.salt, rater)})
               for rater in rater_ids]
    for query in queries:  # all ids are valid here
        echo(f"{address}{'&' if '?' in address else '?'}{query}")


@survey_app.command(cls=opt.HelpfulCommand)
def report(
    study: own.StudyName, store: own.StoreLocation = DEFAULT_STORE, output: own.ReportFolder = None,
    level: own.ReportLevel = None, tables: own.AsTables = False, as_json: opt.AsJson = False,
) -> None:
    """Report the answers in a few plain lines; intervals, tests and the raters' attention on
    request."""
    require(level is None or 0 < level < 1, f"--level must be between 0 and 1, not {level}")
    from superres.survey.presentation import report_markdown, report_plot, report_text
    from superres.survey.report import study_report
    from superres.system.output import write_results

    found = study_report(*_open_study(store, study), level)
    if output is not None:
        write_results(output, {"report.json": found, "report.md": report_markdown(found),
                               "report.png": report_plot(found)})
    echo(json.dumps(found, indent=1) if as_json else report_markdown(found) if tables
         else report_text(found))


@survey_app.command(cls=opt.HelpfulCommand)
def plan(
    precision: own.Precision = 2.0, images: own.PlanImages = 500,
    votes_per_rater: own.PerRater = 50, level: own.Level = 0.9, expected: own.Expected = 50.0,
    pilot: own.Pilot = None,
    store: own.StoreLocation = DEFAULT_STORE, rater_correlation: own.RaterCorrelation = None,
    image_correlation: own.ImageCorrelation = None, as_json: opt.AsJson = False,
) -> None:
    """Compute the votes and raters that a precision needs."""
    from superres.survey.report import pilot_correlations
    from superres.survey.statistics import IMAGE_CORRELATION, RATER_CORRELATION, plan_votes

    rater, image = RATER_CORRELATION, IMAGE_CORRELATION
    if pilot is not None:
        rater, image = pilot_correlations(*_open_study(store, pilot))
    rater = rater if rater_correlation is None else rater_correlation
    image = image if image_correlation is None else image_correlation
    found = plan_votes(precision / 100, images, votes_per_rater, expected / 100, level, rater,
                       image)
    if as_json:
        echo_json({**found, "rater_correlation": rater, "image_correlation": image})
    else:
        votes, raters = counted(found["votes"], "vote"), counted(found["raters"], "rater")
        echo(f"{votes} of {raters}, {found['votes_per_image']:.1f} per image, give an interval of "
             f"+-{precision:g} points at {100 * level:g}% with correlations {rater:.3f} (rater) "
             f"and {image:.3f} (image); {found['independent_votes']} independent votes would "
             f"suffice (design effect {found['design_effect']:.1f})")


@survey_app.command(cls=opt.HelpfulCommand)
def export(
    study: own.StudyName, output: own.ExportFile, layout: own.Layout = "votes",
    store: own.StoreLocation = DEFAULT_STORE,
) -> None:
    """Write the votes to a file, one row per vote.

    With the votes layout, files beside it have the study's settings and a description of the
    columns.
    """
    from superres.survey.export import export_study
    from superres.system.output import prepare_folder

    opened, found = _open_study(store, study)
    prepare_folder(output.parent)
    say(f"wrote {', '.join(map(str, export_study(opened, found, output, layout)))}")


@survey_app.command(cls=opt.HelpfulCommand)
def withdraw(
    study: own.StudyName, rater: own.Pseudonym = None, rater_id: own.WithdrawnId = None,
    store: own.StoreLocation = DEFAULT_STORE,
) -> None:
    """Erase a rater's votes and identity for ever, at the rater's wish.

    The study keeps that a rater withdrew, when, and from how many votes. To leave a rater out of
    reports, use exclude.
    """
    require((rater is None) != (rater_id is None), "give a rater's PSEUDONYM or --rater-id ID")
    from superres.survey.credentials import pseudonym
    from superres.survey.withdrawal import withdraw

    opened, found = _open_study(store, study)
    name = pseudonym(found.salt, rater_id) if rater_id is not None else str(rater)
    done = withdraw(opened, found, name, rater_id)
    erased = f"{counted(done.votes, 'vote')} {'is' if done.votes == 1 else 'are'} erased"
    say(f"{study}: a rater withdrew, and {erased}; erase them from exported files and backups, too")


@survey_app.command(cls=opt.HelpfulCommand)
def exclude(
    study: own.StudyName, rule: own.Rule = None, rater_id: own.RaterId = None,
    prolific: own.Prolific = None, reason: own.Reason = "", revoke: own.Revoke = None,
    store: own.StoreLocation = DEFAULT_STORE,
) -> None:
    """Exclude raters from every report by a rule, or revoke a rule.

    No vote is deleted; superres survey withdraw does that.
    """
    require(sum(given is not None for given in (rule, rater_id, revoke, prolific)) == 1,
            "give one of a rule such as gold<0.8, --rater-id, --prolific and --revoke")
    reason = reason or ("returned or timed out at Prolific" if prolific is not None else "")
    require(bool(reason.strip()), "give a --reason; it is stored with the rule")
    from superres.survey import exclusions
    from superres.survey.credentials import pseudonym
    from superres.survey.records import read_votes

    opened, found = _open_study(store, study)
    if revoke is not None:
        exclusions.revoke(opened, found, revoke, reason)
    elif prolific is not None:
        _review(opened, found, prolific, reason)
    else:
        text = rule if rule is not None else f"rater={pseudonym(found.salt, rater_id or '')}"
        exclusions.exclude(opened, found, text, reason, called=rater_id)
    rules = exclusions.read_exclusions(opened, found)
    out = exclusions.excluded_raters(read_votes(opened, found), rules)
    standing = [f"{entry.number}: {entry.rule}" for entry in rules if not entry.revoked]
    count = f"{counted(len(out), 'rater')} {'is' if len(out) == 1 else 'are'}"
    say(f"{study}: {count} excluded now, by {'; '.join(standing) or 'no rule'}")


def _review(opened: Store, found: Study, file: Path, reason: str) -> None:
    """Exclude those who gave up at Prolific, and print the participant ids of those to approve, one
    per line."""
    from superres.survey.panel import review

    done = review(opened, found, file, reason)
    for participant in done.approve:
        echo(participant)
    say(f"{file}: {len(done.left_out)} returned or timed out, and are left out; "
        f"{len(done.approve)} to approve, printed for Prolific's bulk approval")
    for names, text in ((done.unfinished, "not finished here"),
                        (done.excluded, "excluded by a rule")):
        if names:
            say(f"{counted(len(names), 'submission')} awaiting review, but {text}: "
                f"{', '.join(names)}")
    if done.unknown:
        say(f"{counted(done.unknown, 'participant')} of {file} did not enrol in {found.name}")


@survey_app.command(cls=opt.HelpfulCommand)
def backup(file: own.BackupFile, store: own.StoreLocation = DEFAULT_STORE) -> None:
    """Copy the store to a file, also while the survey is served.

    The file is a store with all studies, pictures and votes: any command reads it with --store
    FILE. A rater who withdraws has to be erased from every copy, too.
    """
    from superres.survey.store import Store

    opened = Store(store)
    opened.backup(file)
    say(f"wrote {file}, a copy of {opened.location}; when a rater withdraws, run superres survey "
        f"withdraw with --store {shlex.quote(str(file))}, too")


@survey_app.command(cls=opt.HelpfulCommand)
def migrate(store: own.StoreLocation = DEFAULT_STORE) -> None:
    """Create a store, or rewrite the files of a store without what was deleted."""
    from superres.survey.store import Store

    opened = Store(store, create=True)
    opened.clean()
    say(f"{opened.location} is a store without what was deleted")


@survey_app.command(cls=opt.HelpfulCommand)
def token(study: own.StudyName, store: own.StoreLocation = DEFAULT_STORE) -> None:
    """Print a new token for the study's owner; the old token expires."""
    opened, found = _open_study(store, study)
    echo(opened.new_owner_token(found))


def results_line(address: str, study: str, store: str) -> str:
    """Return the line that says where a study's results are, below its page's `address`, and how to
    get a token."""
    return (f"results are at {address}results/ and need the owner's token, which superres survey "
            "create printed; this command prints a new one, and the old one expires: "
            f"{command_line('token', study, store=store)}")


def _open_study(store: str, name: str) -> tuple[Store, Study]:
    from superres.survey.store import Store

    opened = Store(store)
    return opened, opened.study(name)
