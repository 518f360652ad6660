"""A cascade: its stages draw what they draw alone, take turns over a stream, and reduce to exactly
the input."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from PIL import Image
from skimage import data

from superres import load
from superres.checkpoint import WEIGHTS, save_checkpoint
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.decoding.batching import feed_of
from superres.decoding.limits import Limits
from superres.decoding.trace import mean_accepted_block_size
from superres.errors import CheckpointError, ConfigError, InvalidInputError, ScoresError
from superres.pipeline.cascade import stage_traces
from superres.pipeline.upscaler import Face, Upscaler
from superres.survey.records import read_votes
from superres.survey.store import Store
from superres.tasks.consistency import cell_limits
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask, area_reduce, encode, enlarge
from superres.tasks.photos import choose_crops, crop_note
from superres.web.crops import Subject
from superres.web.drawing import unfinished
from superres.web.upscale_endpoint import report_of
from superres.web.upscale_tab import frames_html, results_html
from tests.pipeline.helpers import by_item, images_of, left_of
from tests.survey.helpers import vote_through

WAYS = {
    "exact": DecodeConfig(3), "greedy": DecodeConfig(1),
    "distance": DecodeConfig(3, accept="distance", epsilon=9),
    "sampled": DecodeConfig(3, temperature=0.9, seed=4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A cascade of networks with random weights, from 2 to 4 to 8 pixels."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, source, target in (("small", 2, 4), ("large", 4, 8)):
        network = replace(TINY, source_shape=(source, source, 3), target_shape=(target, target, 3))
        save_checkpoint(random_model(network, dtype=torch.float32), folder / name)
    write(folder, ["small", "large"])
    return folder / "cascade"


def write(folder, stages, name="cascade"):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "config.json").write_text(json.dumps({"format_version": 1, "stages": stages}))


@pytest.fixture(scope="module")
def cascade(folder):
    return Upscaler.load(folder, "cpu")


@pytest.fixture
def sources(rng):
    return rng.integers(0, 256, (5, 2, 2, 3), np.uint8)


def reduced(images, side):
    return area_reduce(images, side, side, is_reduced=True)


@pytest.mark.parametrize("kind", ["any", "two", "lowest", "highest"])
def test_every_picture_within_the_limits_reduces_to_both_sources(kind, rng):
    def draw(source, side, first):
        limits = cell_limits(source.shape[1:], (side, side, 3), 256, first)
        low, high = Limits.of(limits).bounds(encode(source))[0].tolist()
        tokens = np.zeros(side * side * 3, np.int64)
        for place in range(len(tokens)):
            known = sum(tokens[other] for other in limits.earlier[place] if other >= 0)
            least, most = max(low[place] - known, 0), min(high[place] - known, 255)
            assert least <= most
            tokens[place] = {"lowest": least, "highest": most}.get(
                kind, rng.integers(least, most, endpoint=True)
            )
        return FaceTask(source.shape[1], side).decode(tokens[None])

    source = rng.integers(0, 2, (1, 3, 3, 3)) * 255 if kind == "two" else rng.integers(0, 256,
                                                                                       (1, 3, 3, 3))
    source = source.astype(np.uint8)
    middle = draw(source, 9, None)
    large = draw(middle, 18, source.shape[1:])
    largest = draw(large, 36, source.shape[1:])
    assert (reduced(large, 9) == middle).all()
    assert (reduced(largest, 18) == large).all()
    assert all((reduced(picture, 3) == source).all() for picture in (middle, large, largest))


@pytest.mark.parametrize("way", WAYS)
def test_a_picture_reduces_to_its_input_and_to_the_stage_before(way, cascade, sources):
    result = cascade(sources, replace(WAYS[way], consistent=True))
    assert result.images.shape == (5, 8, 8, 3)
    assert (reduced(result.images, 4) == result.earlier.images).all()
    assert (reduced(result.images, 2) == sources).all()
    assert [len(stage.traces) for stage in result.stages] == [5, 5]


@pytest.mark.parametrize("way", WAYS)
def test_the_first_stage_draws_what_it_draws_alone(way, cascade, folder, sources):
    alone = Upscaler.load(folder.parent / "small", "cpu")(sources, WAYS[way])
    assert (cascade(sources, WAYS[way]).earlier.images == alone.images).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_of_any_batch_size_gives_the_pictures_of_a_call(way, cascade, sources):
    expected = cascade.decode(sources, WAYS[way], keys=range(10, 15))
    *frames, last = cascade.decode_stream(sources, WAYS[way], keys=range(10, 15), interval=0)
    assert (last.images == expected.images).all()
    assert not any(frame.is_complete for frame in frames)
    assert frames[0].earlier is not None
    faces = list(map(Face, sources, range(10, 15)))
    for rows in (1, 2, 5):
        made = by_item(cascade.refilled(feed_of(faces), WAYS[way], rows))
        results = [made[id(face)] for face in faces]
        assert (images_of(cascade, results) == expected.images).all()
        assert {len(stage_traces(one)) for one in results} == {2}


def test_pictures_of_the_size_between_the_stages_are_enlarged_by_the_last_one_alone(cascade,
                                                                                    sources, rng):
    large = rng.integers(0, 256, (2, 4, 4, 3), np.uint8)
    expected = cascade(large, DecodeConfig(3))
    assert expected.earlier is None
    faces = [Face(sources[0], 0), *map(Face, large, (0, 1)), Face(sources[1], 1)]
    made = by_item(cascade.refilled(feed_of(faces), DecodeConfig(3), 1))
    results = [made[id(face)] for face in faces]
    assert [len(stage_traces(one)) for one in results] == [2, 1, 1, 2]
    assert (images_of(cascade, results[1:3]) == expected.images).all()
    only = cascade.refilled(feed_of(map(Face, large, (0, 1))), DecodeConfig(3), 2)
    assert sum(map(len, only.run())) == 2


def test_the_stages_from_a_size_on_are_the_cascade_of_them_alone(cascade, folder, rng):
    network = replace(TINY, source_shape=(8, 8, 3), target_shape=(16, 16, 3))
    save_checkpoint(random_model(network, dtype=torch.float32), folder.parent / "huge")
    write(folder.parent, ["small", "large", "huge"], "three")
    write(folder.parent, ["large", "huge"], "two")
    three, two = (Upscaler.load(folder.parent / name, "cpu") for name in ("three", "two"))
    first, inputs, later = (rng.integers(0, 256, (2, side, side, 3), np.uint8) for side in (2, 4,
                                                                                            8))
    for options in (DecodeConfig(3, consistent=True), DecodeConfig(3, temperature=0.9)):
        assert (three.from_size(4)(inputs, options).images == two(inputs, options).images).all()
        alone = Upscaler.load(folder.parent / "huge", "cpu")(later, options).images
        assert (three.from_size(8)(later, options).images == alone).all()
        assert (two.from_size(8)(later, options).images == alone).all()
        given = (first, inputs, later)
        faces = [Face(pictures[row], row) for row in range(2) for pictures in given]
        made = by_item(three.refilled(feed_of(faces), options, 2))
        for number, pictures in enumerate(given):
            expected = three(pictures, options)  # keys 0 and 1
            own = [made[id(faces[3 * row + number])] for row in range(2)]
            assert (images_of(three, own) == expected.images).all()
            assert ({len(stage_traces(one)) for one in own} == {len(expected.stages)}
                    == {3 - number})
    assert three.from_size(2) is three
    assert three.from_size(4).face_task == two.face_task == FaceTask(4, 16, (8,))
    assert three.from_size(4).revision == two.revision
    with pytest.raises(ConfigError, match="drawn from inputs of 2 or 4 or 8 pixels, not 16; choose "
                       "another --start"):
        three.from_size(16)


@pytest.mark.parametrize(("chosen", "damaged"), [({"size": 4}, "large"), ({"start": 4}, "small")])
def test_only_the_stages_of_a_size_and_a_start_are_read(cascade, folder, tmp_path, chosen, damaged):
    shutil.copytree(folder.parent, tmp_path / "all")
    (tmp_path / "all" / damaged / WEIGHTS).unlink()
    found = Upscaler.load(tmp_path / "all" / folder.name, "cpu", **chosen)
    expected = cascade.at_size(4) if "size" in chosen else cascade.from_size(4)
    assert (found.name, found.revision, found.face_task) == (expected.name, expected.revision,
                                                             expected.face_task)
    with pytest.raises(CheckpointError, match=WEIGHTS):
        Upscaler.load(tmp_path / "all" / folder.name, "cpu")
    for sizes, error in (({"size": 5}, "draws pictures of 4 or 8 pixels, not 5"),
                         ({"size": 4, "start": 4}, "from inputs of 2 pixels, not 4")):
        with pytest.raises(ConfigError, match=error):
            Upscaler.load(folder, "cpu", **sizes)


@pytest.mark.slow
def test_a_run_from_a_later_stage_records_it_and_refuses_inputs_that_are_too_small(folder, tmp_path,
                                                                                   rng, capsys):
    pictures = {"photo": data.astronaut(), "small": rng.integers(0, 256, (2, 2, 3), np.uint8),
                "middle": rng.integers(0, 256, (4, 4, 3), np.uint8)}
    (tmp_path / "in").mkdir()
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(tmp_path / "in" / f"{name}.png")
    words = ["upscale", str(tmp_path / "in"), "--checkpoint", str(folder), "--device", "cpu",
             "--output"]
    assert run([*words, str(tmp_path / "out"), "--start", "4"]) == 1
    assert ("small.png is too small: 2x2; provide an image of at least "
            "4x4\n" in capsys.readouterr().err)
    rows = [json.loads(line)
            for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert {Path(row["input"]).stem: (row["status"], row["tokens"], row["options"]["start"])
            for row in rows} == {
                "photo": ("ok", 192, 4), "middle": ("ok", 192, 4), "small": ("failed", None, 4)}
    upscaler = Upscaler.load(folder, "cpu").from_size(4)
    (crop,) = choose_crops(data.astronaut(), upscaler.face_task)
    expected = upscaler(area_reduce(crop.take(data.astronaut()), 4, 4)).images[0]
    assert (np.asarray(Image.open(tmp_path / "out" / "photo.png")) == expected).all()
    assert run([*words, str(tmp_path / "out")]) == 2
    assert "start 4 there, 2 now" in capsys.readouterr().err
    assert run([*words, str(tmp_path / "other"), "--start", "8"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "inputs of 2 or 4 pixels, not 8; choose another --start" in line
    assert not (tmp_path / "other").exists()


def test_the_line_about_a_photo_names_the_latest_start_that_its_crops_allow():
    task, photo = FaceTask(2, 16, (4, 8)), data.astronaut()
    for sides, end in (((30, 7), "of each face; --start 4 keeps more of what the photo really "
                        "shows"),
                       ((8,), "only 2x2; --start 8 keeps more of what the photo really shows"),
                       ((3,), "only 2x2")):
        crops = [Crop(0, 0, side, "face", faces=len(sides)) for side in sides]
        assert crop_note("a.png", photo, crops, task).endswith(end)


def test_a_face_with_fewer_pixels_than_the_start_is_refused(monkeypatch):
    faces = np.array([[50.0, 40, 20, 9, 0], [90, 90, 40, 4, 0]])
    monkeypatch.setattr("superres.tasks.photos.find_faces", lambda _: faces)
    assert len(choose_crops(data.astronaut(), FaceTask(8, 64, (32,)))) == 2
    with pytest.raises(InvalidInputError, match=r"found at \(40, 30\) has 20x20 pixels, fewer than "
                       r".* 32x32; give"):
        choose_crops(data.astronaut(), FaceTask(32, 64))


@pytest.mark.parametrize(("broken", "more"), [
    ("first", {}), ("last", {}), ("superres.pipeline.finish.sharpened", {"finish": "mean"}),
    ("superres.pipeline.judging.judge", {"samples": 3}),
])
def test_an_error_loses_no_picture(broken, more, cascade, sources, rng, monkeypatch):
    large = rng.integers(0, 256, (2, 4, 4, 3), np.uint8)
    faces = list(map(Face, [*sources, *large], range(7)))
    options = DecodeConfig(3, temperature=0.9 if "samples" in more else 0.0)
    stream, done = cascade.refilled(feed_of(faces), options, 2, **more), []

    def fail(*_):
        raise ScoresError

    if "." in broken:
        monkeypatch.setattr(broken, fail)
    else:
        monkeypatch.setattr(getattr(stream, broken), "run", lambda: map(fail, [0]))
    with pytest.raises(ScoresError):
        done.extend(one for some in stream.run() for one in some)
    left = [*left_of(stream), *(one.item for one in done)]
    assert sorted(map(id, left)) == sorted(map(id, faces))


@pytest.mark.parametrize("side", [2, 4])
def test_a_stream_takes_few_pictures_ahead_of_those_that_are_complete(side, cascade, rng):
    faces = iter([Face(one, 0) for one in rng.integers(0, 256, (40, side, side, 3), np.uint8)])
    decoder = cascade.refilled(feed_of(faces), DecodeConfig(1), 2)
    results = decoder.run()
    while not next(results):
        assert len(decoder.under_way) <= 8
    results.close()
    assert len(list(faces)) >= 30


@pytest.mark.parametrize(("stages", "message"), [
    (["small"], "has 1 stages; name 2 to 8 checkpoints"), (["small"] * 2000, "has 2000 stages"),
    ("small", "stages must be a list, not 'small'"), (["small", 7], "stages must be text, not 7"),
    (["small", "../small"], "the name of a stage '../small' is not fit for a file"),
    (["large", "small"], "do not fit: large draws 8x8, small enlarges 2x2"),
    (["small", "missing"], "no checkpoint 'missing'"),
    (["small", "cascade"], "names another cascade as a stage"),
])
def test_stages_that_are_no_cascade_are_refused_in_one_line(stages, message, folder):
    write(folder.parent, stages)
    try:
        with pytest.raises(CheckpointError) as caught:
            load(folder)
    finally:
        write(folder.parent, ["small", "large"])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_command_joins_stages_to_a_cascade_that_can_be_moved(cascade, folder, sources, tmp_path,
                                                                 capsys):
    stages, joined = [str(folder.parent / name) for name in ("small", "large")], tmp_path / "joined"
    assert run(["train", "join", *stages, "--output", str(joined)]) == 0
    assert f"{joined}: 2to4 and 4to8, from 2x2 to 8x8" in capsys.readouterr().err
    assert json.loads((joined / "config.json").read_text())["stages"] == ["2to4", "4to8"]
    joined.rename(tmp_path / "moved")
    options = DecodeConfig(1)
    assert np.array_equal(load(tmp_path / "moved", "cpu")(sources, options).images,
                          cascade(sources, options).images)
    assert (run(["train", "join", str(folder), str(tmp_path / "moved"), "--output", str(joined)])
            == 2)
    assert ("the stages of joined do not fit: large draws 8x8, 2to4 enlarges "
            "2x2" in capsys.readouterr().err)
    assert not joined.exists()
    assert run(["train", "join", stages[0], "--output", str(joined)]) == 2
    assert "a cascade has at least two stages" in capsys.readouterr().err
    assert run(["train", "join", *stages, "--output", str(tmp_path / "moved")]) == 2
    assert "moved exists; choose a new folder" in capsys.readouterr().err


def test_bits_per_dim_are_those_of_both_stages(cascade, sources, rng):
    targets = rng.integers(0, 256, (5, 8, 8, 3), np.uint8)
    middle = reduced(targets, 4)
    stages = cascade.first.bits_per_dim(sources, middle), Upscaler(cascade.model, "last",
                                                                   device="cpu").bits_per_dim(
                                                                       middle, targets)
    assert cascade.bits_per_dim(sources, targets) == pytest.approx(stages[0] / 4 + stages[1])


def test_the_page_shows_the_small_picture_and_the_large_one_growing_in_it(cascade, sources):
    *frames, last = cascade.stream(sources[:1], DecodeConfig(3), interval=0)
    for frame in frames:
        small = unfinished(frame.earlier, 0).repeat(2, axis=0).repeat(2, axis=1)
        filled = frame.filled[0].all(axis=2, keepdims=True)
        assert (unfinished(frame, 0) == np.where(filled, frame.images[0], small)).all()
        assert ("scale(2)" in frames_html({"": frame}) or not frame.earlier.share
                or frame.earlier.is_complete)
    shares = [float(frame.share[0]) for frame in (*frames, last)]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    subject = Subject(sources[0])
    page = results_html(cascade, subject, DecodeConfig(3), {"": last})
    assert page.count("<superres-stepper") == 2
    assert "Stage 1 of 2, 4x4" in page
    sample, = report_of(subject, last)["samples"]
    assert [stage["tokens"] for stage in sample["stages"]] == [48, 192]
    assert sample["tokens"] == 240


def test_a_survey_compares_both_stages_with_enlargements_and_photographs(cascade, folder, tmp_path,
                                                                         rng, capsys):
    photos = rng.integers(0, 256, (4, 8, 8, 3), np.uint8)
    (tmp_path / "photos").mkdir()
    for number, photo in enumerate(photos):
        Image.fromarray(photo).save(tmp_path / "photos" / f"{number}.png")
    store = tmp_path / "survey.db"
    methods = [f"name=large,checkpoint={folder}", f"name=small,checkpoint={folder},size=4",
               f"name=warm,checkpoint={folder},temperature=0.9,samples=2", "lanczos"]
    assert run(["survey", "create", "study", "--store", str(store), "--images",
                str(tmp_path / "photos"), "--device", "cpu", "--interpolation", "lanczos", "--gold",
                "1", "--practice", "0", "--method-b", "camera",
                *(word for method in methods for word in ("--method-a", method))]) == 0
    assert ("the pictures of small are enlarged to 8x8 by --interpolation "
            "lanczos" in capsys.readouterr().err)
    opened = Store(store)
    study = opened.study("study")
    expected = cascade(area_reduce(photos, 2, 2))
    both = [trace for stage in expected.stages for trace in stage.traces]
    record = study.methods["large"]
    assert record["mean_accepted_block_size"] == mean_accepted_block_size(both)
    assert record["stages"] == [{"size": stage.images.shape[1],
                                 "mean_accepted_block_size": mean_accepted_block_size(
                                     stage.traces)} for stage in expected.stages]
    assert study.methods["small"]["enlargement"] == "lanczos"
    assert study.methods["warm"]["samples"] == 2
    warm = cascade(area_reduce(photos, 2, 2), cascade.options(temperature=0.9), samples=2,
                   keep="likeliest")
    pictures = {"large": expected.images, "small": enlarge(expected.earlier.images, "lanczos", 8),
                "camera": photos, "warm": warm.images, "lanczos": enlarge(area_reduce(photos, 2, 2),
                                                                          "lanczos", 8)}
    digests = {sha256(picture.tobytes()).hexdigest() for made in pictures.values()
               for picture in made}
    vote_through(opened, study)
    records = [one for one in read_votes(opened, study) if one["kind"] == "main"]
    assert {one[f"sha256_{side}"] for one in records for side in "ab"} == digests
    opened.close()


@pytest.mark.parametrize(("spec", "message"), [
    ("name=small,size=3,checkpoint={}/cascade", "the method 'small': cascade draws pictures of 4 "
     "or 8 pixels, not 3"),
    ("name=other,checkpoint={}/large", "the method 'other' enlarges 4x4, 'both' 2x2; choose "
     "checkpoints of the same"),
])
def test_stages_that_cannot_be_compared_are_refused_in_one_line(spec, message, folder, tmp_path,
                                                                capsys):
    assert run(["survey", "create", "study", "--store", str(tmp_path / "survey.db"), "--images",
                str(tmp_path), "--device", "cpu", "--method-a", f"name=both,checkpoint={folder}",
                "--method-b", spec.format(folder.parent)]) == 2
    line, = capsys.readouterr().err.splitlines()
    assert message in line
