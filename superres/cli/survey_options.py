"""The options and arguments of `superres survey` that are no settings of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from superres.survey.commands import STORE_VARIABLE
from superres.survey.study import FORMATS, PAGE, RATERS, TRIALS

StudyName = Annotated[str, Argument(metavar="STUDY", help="Name of the study.")]
StoreLocation = Annotated[str, Option(metavar="FILE|URL", envvar=STORE_VARIABLE,
                                      help="SQLite file, or a database URL such as "
                                      "postgresql://user@host/name.")]
MethodA = Annotated[list[str], Option(metavar="SPEC", help="Method a: a folder of finished "
                                      "pictures, camera, lanczos, bicubic, nearest, or settings "
                                      "such as name=k6,accept=distance,epsilon=2,block_size=6 "
                                      "(also checkpoint=DIR, size=N for a stage of a cascade, and "
                                      "samples=N for the likeliest of N samples). Repeat the "
                                      "option for several comparisons, or judged methods.")]
MethodB = Annotated[list[str], Option(metavar="SPEC", help="Method b: one per --method-a, or one "
                                      "for all; none with --judge.")]
Method = Annotated[list[str], Option(metavar="SPEC", help="Method whose pictures are judged, "
                                     "written as for superres survey create; repeat the option for "
                                     "several.")]
FacesPath = Annotated[Path, Option("--images", metavar="PATH", help="Images to decode: .npz, "
                                   "folder of images or CelebA root.")]
Pictures = Annotated[int, Option(min=1, metavar="N", help="Images per method, chosen at random.")]
ImagesPath = Annotated[Path | None, Option(metavar="PATH", help="Images to decode, and photographs "
                                           "for the method camera: .npz, folder of images or "
                                           "CelebA root.")]
Pairs = Annotated[int | None, Option(metavar="N", help="Images per comparison, chosen by --seed. "
                                     "[default: all]")]
Obvious = Annotated[str | None, Option(rich_help_panel=TRIALS, metavar="FOLDER|shuffled",
                                       help="Practice and gold pairs: a folder with the obvious "
                                       "answers in FOLDER/right and the other pictures, by the "
                                       "same names, in FOLDER/wrong; or pictures beside the same "
                                       "with shuffled tiles. [default: shuffled for the default "
                                       "question, else none]")]
Scale = Annotated[int | None, Option(rich_help_panel=PAGE, metavar="N", help="Enlargement: most "
                                     "CSS pixels per pixel of a picture. [default: as large as the "
                                     "window allows; smooth pictures within 512 pixels]")]
Title = Annotated[str | None, Option(rich_help_panel=PAGE, metavar="TEXT", help="Heading of the "
                                     "page. [default: the question, if given]")]
Consent = Annotated[Path | None, Option(rich_help_panel=PAGE, metavar="FILE", help="File with the "
                                        "text that raters agree to.")]
Viewport = Annotated[str, Option(rich_help_panel=PAGE, metavar="W,H", help="Smallest browser "
                                 "window, in CSS pixels. The page stacks or reduces pictures that "
                                 "do not fit; 640,480 keeps phones out.")]
IdParams = Annotated[list[str], Option("--id-param", rich_help_panel=RATERS, metavar="NAME",
                                       help="URL parameter that holds the rater's id; repeat the "
                                       "option for several names.")]
PanelParams = Annotated[list[str], Option("--panel-param", rich_help_panel=RATERS, metavar="NAME",
                                          help="URL parameter that is stored with the rater as it "
                                          "is, such as a panel's id of the submission; '' stores "
                                          "none.")]
Host = Annotated[str, Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 accepts other "
                             "machines.")]
Port = Annotated[int, Option(min=0, max=65535, metavar="N", help="Port to listen on; 0 chooses a "
                             "free port.")]
RootPath = Annotated[str, Option(metavar="PATH", help="Path under which a proxy serves the pages.")]
Proxy = Annotated[list[str], Option(metavar="ADDRESS", help="Address of a proxy, whose "
                                    "X-Forwarded-For is believed; repeatable. [default: none, not "
                                    "even this machine]")]
PerAddress = Annotated[int, Option(min=0, rich_help_panel=RATERS, metavar="N", help="Raters per "
                                   "client address who may enrol in 10 minutes; 0 means no limit. "
                                   "Raise it for a large group behind one address. For a proxy on "
                                   "another machine, set FORWARDED_ALLOW_IPS to its address.")]
InAll = Annotated[int, Option(min=0, rich_help_panel=RATERS, metavar="N", help="Same limit for all "
                              "addresses together.")]
LinkIds = Annotated[list[str], Argument(metavar="ID", help="Participant ids.")]
PageAddress = Annotated[str, Option(metavar="URL", help="Address of the voting page as raters "
                                    "reach it.")]
ReportFolder = Annotated[Path | None, Option(metavar="DIR", help="Folder for report.json, .md and "
                                             ".png.")]
Level = Annotated[float, Option(metavar="L", help="Confidence level of the intervals, between 0 "
                                "and 1.")]
ReportLevel = Annotated[float | None, Option("--level", metavar="L", help="Confidence level of the "
                                             "intervals, between 0 and 1. [default: 0.9; of judged "
                                             "pictures 0.95]")]
Layout = Annotated[str, Option(metavar="[votes|arena]", help="Columns: all that is known of each "
                               "vote; or model_a, model_b and winner, as Arena-Rank reads them.")]
ExportFile = Annotated[Path, Option(metavar="FILE", help="File for the votes, in the format that "
                                    f"its ending names: .{', .'.join(FORMATS)}.")]
AsTables = Annotated[bool, Option("--tables", help="Print all tables, in Markdown.")]
BackupFile = Annotated[Path, Argument(metavar="FILE", help="File for the copy, which must not "
                                      "exist.")]
Pseudonym = Annotated[str | None, Argument(metavar="PSEUDONYM", help="Pseudonym of the rater, as "
                                           "in exports.")]
WithdrawnId = Annotated[str | None, Option("--rater-id", metavar="ID", help="Participant id of the "
                                           "rater.")]
Rule = Annotated[str | None, Argument(metavar="RULE", help="gold<0.8, repeats<0.6, median-ms<500, "
                                      "same-side>0.9, votes<10, or rater=PSEUDONYM.")]
Reason = Annotated[str, Option(metavar="TEXT", help="Reason, stored with the rule.")]
Revoke = Annotated[int | None, Option(metavar="N", help="Revoke rule N.")]
RaterId = Annotated[str | None, Option(metavar="ID", help="Exclude the rater with this participant "
                                       "id.")]
Prolific = Annotated[Path | None, Option(metavar="FILE", help="Prolific's CSV of submissions: "
                                         "exclude raters who returned their submission or timed "
                                         "out, and print the ids of those to approve.")]
Precision = Annotated[float, Option(metavar="POINTS", help="Half the interval's width, percentage "
                                    "points.")]
PlanImages = Annotated[int, Option(min=1, metavar="N", help="Images in the comparison.")]
PerRater = Annotated[int, Option(min=1, metavar="N", help="Votes per rater.")]
Expected = Annotated[float, Option(metavar="PERCENT", help="Expected preference; 50 needs the most "
                                   "votes.")]
Pilot = Annotated[str | None, Option(metavar="STUDY", help="Study from which to estimate the "
                                     "correlations.")]
RaterCorrelation = Annotated[float | None, Option(metavar="R", help="Correlation between the votes "
                                                  "of a rater.")]
ImageCorrelation = Annotated[float | None, Option(metavar="R", help="Correlation between the votes "
                                                  "on an image.")]
