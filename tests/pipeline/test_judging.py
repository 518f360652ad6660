"""p1 judges finished pictures: the likeliest sample is kept, and the mask of reliable pixels has
its coverage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from fakes import TINY, random_model, save_cascades
from PIL import Image

from superres.checkpoint import read_checkpoint, save_checkpoint
from superres.cli.main import run
from superres.config import DecodeConfig, Reliability
from superres.decoding.batching import feed_of
from superres.errors import CheckpointError, ConfigError
from superres.evaluation.reliability import (
    calibrate_mask,
    least_faces,
    mask_scores,
    pixel_error,
    threshold_of,
)
from superres.nn.torch_model import StepModel
from superres.pipeline.upscaler import Face, Upscaler
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import image_key
from superres.tasks.sheets import COVER, VEIL, face_sheet, veiled
from superres.web.crops import Subject
from superres.web.decoding import judged_last
from superres.web.upscale_tab import command_html, results_html, viewer_html
from tests.pipeline.helpers import by_item, images_of

SAMPLED = DecodeConfig(3, temperature=0.9, consistent=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_cascades(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def two(folder):
    return Upscaler.load(folder / "two", "cpu")


@pytest.fixture(scope="module")
def three(folder):
    return Upscaler.load(folder / "three", "cpu")


@pytest.fixture
def sources(rng):
    return rng.integers(0, 256, (3, 2, 2, 3), np.uint8)


@torch.inference_mode()
def of_single_steps(upscaler, source, target):
    """Return the bits and the variances of a picture's tokens, by steps of one token in float32, as
    p1 judges."""
    tokens, bits, variance = torch.from_numpy(target.reshape(1, -1).astype(np.int64)), 0.0, []
    sources = torch.from_numpy(upscaler.source_tokens(source[None]))
    session = StepModel(upscaler.model).session(sources, 1)
    for place in range(tokens.shape[1]):
        before = tokens[:, max(place - 1, 0)].view(1, 1)
        log_p = session.step(
            before, torch.tensor([place])
        ).scores[0, 0].double().log_softmax(-1).numpy()
        bits -= log_p[tokens[0, place]] / math.log(2)
        p, value = np.exp(log_p), np.arange(len(log_p))
        variance.append((p * value**2).sum() - (p * value).sum() ** 2)
    return bits, np.array(variance).reshape(target.shape).mean(2)


@pytest.mark.slow
def test_bits_and_uncertainty_are_those_of_p1_token_by_token_over_all_stages(three, sources):
    result = three(sources[:1], SAMPLED)
    bits, variance, upscaler = 0.0, np.zeros((16, 16)), three
    pictures = [sources[0], *(stage.images[0] for stage in result.stages)]
    for source, target in list(pairwise(pictures))[::-1]:
        own, spread = of_single_steps(upscaler, source, target)
        bits, variance = bits + own, variance + np.kron(spread, np.ones((16 // len(spread),) * 2))
        upscaler = upscaler.first
    assert result.bits_per_dim == pytest.approx([bits / (3 * 16**2)], rel=1e-5)
    assert result.uncertainty.shape == (1, 16, 16)
    assert result.uncertainty[0, 5, 7] == pytest.approx(variance[4:7, 6:9].mean() ** 0.5, rel=1e-3)
    assert result.uncertainty[0, 0, 15] == pytest.approx(variance[:2, 14:].mean() ** 0.5, rel=1e-3)
    assert result.bits_per_dim == pytest.approx(three.bits_per_dim(sources[:1], result.images),
                                                rel=1e-6)


@pytest.mark.slow
def test_the_likeliest_sample_of_each_input_is_kept(two, sources):
    all_four = two(sources, SAMPLED, samples=4)
    assert all_four.samples == [1, 2, 3, 4] * 3
    for number in (1, 4):
        alone = two.decode(sources, SAMPLED, keys=[image_key(source, number) for source in sources])
        assert (all_four.images[number - 1::4] == alone.images).all()
    best = all_four.bits_per_dim.reshape(3, 4).argmin(1)
    rows = best + np.arange(0, 12, 4)
    kept = two(sources, SAMPLED, samples=4, keep="likeliest")
    assert kept.samples == (best + 1).tolist()
    assert (kept.images == all_four.images[rows]).all()
    assert (kept.earlier.images == all_four.earlier.images[rows]).all()
    assert [trace.accepted for trace in kept.traces] == [all_four.traces[row].accepted
                                                         for row in rows]
    ordered = all_four.by_likelihood(4)
    assert (np.diff(ordered.bits_per_dim.reshape(3, 4), axis=1) >= 0).all()
    assert ordered.samples[::4] == kept.samples
    for at_once in (1, 3, 16):
        faces = [Face(source, 7) for source in sources]
        made = by_item(two.refilled(feed_of(faces), SAMPLED, at_once, 4))
        results = [made[id(face)] for face in faces]
        assert [one.sample for one in results] == kept.samples
        assert [one.bits_per_dim for one in results] == kept.bits_per_dim.tolist()
        assert (images_of(two, results) == kept.images).all()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"samples": 2, "options": DecodeConfig(3)}, "--samples 2 at temperature 0"),
    ({"samples": 0}, "at least 1, not 0"), ({"keep": "likeliest"}, "has no effect on one sample; "
                                            "give --samples 4"),
    ({"samples": 2, "keep": "best"}, "must be one of likeliest, not 'best'"),
])
def test_samples_that_cannot_be_drawn_are_refused(arguments, message, two, sources):
    with pytest.raises(ConfigError, match=message):
        two(sources, **{"options": SAMPLED, **arguments})


def test_a_result_without_its_network_is_not_judged(two, sources):
    partial = next(two.stream(sources, SAMPLED, interval=0))
    for result in (replace(two(sources, SAMPLED), scorer=None), partial):
        with pytest.raises(ConfigError, match="p1 judges complete results"):
            result.bits_per_dim  # noqa: B018 -- raises


@pytest.mark.parametrize("output", ["out", "few"])
def test_a_run_keeps_the_likeliest_and_says_which(output, folder, two, sources, tmp_path, capsys,
                                                  monkeypatch):
    for number, source in enumerate(sources):
        Image.fromarray(source).save(tmp_path / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.png" for number in range(3)]
    place = ["--output", output] if output == "out" else []
    words = ["upscale", *names, "--checkpoint", str(folder / "two"), "--device", "cpu",
             "--temperature", "0.9", *place]
    kept = two(sources, two.options(temperature=0.9), samples=4, keep="likeliest")
    assert run([*words, "--samples", "4", "--keep", "likeliest"]) == 0
    files = [tmp_path / "out" / name if place else tmp_path / name.replace(".", "-superres.")
             for name in names]
    for file, image, number in zip(files, kept.images, kept.samples, strict=True):
        opened = Image.open(file)
        assert (np.asarray(opened) == image).all()
        assert json.loads(opened.info["superres"])["sample"] == number
    if not place:
        return
    rows = [json.loads(line)
            for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    assert [(row["sample"], row["bits_per_dim"]) for row in rows] == list(
        zip(kept.samples, kept.bits_per_dim.tolist(), strict=True))
    assert {row["options"]["keep"] for row in rows} == {"likeliest of 4"}
    assert run([*words, "--samples", "4", "--keep", "likeliest"]) == 0
    assert "0 done, 3 skipped" in capsys.readouterr().err
    assert run(words) == 2
    assert "keep 'likeliest of 4' there, None now" in capsys.readouterr().err


def test_stages_have_temperatures_of_their_own(three, sources):
    options = replace(SAMPLED, later_temperature=(0.5, 0.0), sampling="speculative")
    assert [options.of_stage(number).temperature for number in range(5)] == [0.9, 0.5, 0, 0, 0]
    assert [options.of_stage(number).sampling for number in range(3)] == ["speculative",
                                                                          "speculative", "coupled"]
    # the limits of a cascade are narrower than those of its last stage alone
    free = replace(SAMPLED, consistent=False)
    options = replace(free, later_temperature=(0.5, 0.0))
    first, second, last = three.decode(sources, options, keys=[5, 6, 7]).stages
    alike = three.decode(sources, free, keys=[5, 6, 7]).stages
    assert (first.images == alike[0].images).all()
    assert (second.images != alike[1].images).any()
    assert (last.images == three.last(second.images, replace(free, temperature=0)).images).all()
    faces = [Face(source, key) for source, key in zip(sources, (5, 6, 7), strict=True)]
    made = by_item(three.refilled(feed_of(faces), options, 2))
    assert (images_of(three, [made[id(face)] for face in faces]) == last.images).all()
    assert three.record(options)["config"]["later_temperature"] == (0.5, 0.0)


def test_a_temperature_of_later_stages_samples_where_the_first_is_greedy(two, sources):
    options = DecodeConfig(3, later_temperature=0.9)
    assert options.is_sampling
    one, other = two(sources[:1], options, samples=2).earlier.images
    assert (one == other).all()
    greedy = two(sources, DecodeConfig(3))
    assert (two(sources, options).earlier.images == greedy.earlier.images).all()


@pytest.mark.parametrize(("name", "options", "message"), [
    ("from-2", ["--later-temperature", "0"], "--later-temperature 0.0 has no effect where a single "
     "stage draws"),
    ("two", ["--later-temperature", "0", "--start", "4"], "has no effect where a single stage "
     "draws; leave it out"),
    ("two", ["--later-temperature", "-1"], "later-temperature must be 0 (greedy) or from 1e-09 to "
     "1e+09"),
    ("two", ["--later-temperature", "warm"], "later_temperature must be a number, or several with "
     "commas between"),
])
def test_a_later_temperature_without_effect_or_out_of_range_is_refused(
    name, options, message, folder, sources, tmp_path, capsys,
):
    Image.fromarray(sources[0]).save(tmp_path / "a.png")
    assert run(["upscale", str(tmp_path / "a.png"), "--output", str(tmp_path / "out"),
                "--checkpoint", str(folder / name), "--device", "cpu", "--temperature", "0.9",
                *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def faces_of_known_error(rng, faces):
    """Return uncertainties, uniform in [0, 1), and errors: a pixel of uncertainty u is wrong with
    probability 0.4 u."""
    uncertainty = rng.random((faces, 16, 16))
    return uncertainty, rng.random(uncertainty.shape) < 0.4 * uncertainty


def test_the_mask_has_its_coverage_on_faces_that_the_calibration_did_not_see(rng):
    threshold = threshold_of(*faces_of_known_error(rng, 1000), 0.9)
    # of the pixels up to t, 0.2 t are wrong: a tenth at 0.5
    assert threshold == pytest.approx(0.5, abs=0.02)
    further, is_wrong = faces_of_known_error(rng, 1000)
    scores = mask_scores(further <= threshold, is_wrong)
    assert scores["coverage"] == pytest.approx(0.9, abs=0.005)
    assert scores["reliable"] == pytest.approx(0.5, abs=0.02)


def test_the_mean_coverage_of_small_calibrations_is_at_least_the_wanted_one(rng):
    found = np.array([threshold_of(*faces_of_known_error(rng, 150), 0.9) for _ in range(40)])
    assert (found * (1 - 0.2 * found)).sum() / found.sum() >= 0.9
    # without the correction for the number of faces, half of them
    assert (found <= 0.5).mean() > 0.9


def test_pixels_of_the_same_uncertainty_are_in_the_mask_together_and_there_may_be_none():
    uncertainty = np.array([[[1.0, 2.0], [2.0, 3.0]]] * 50)
    wrong = np.zeros_like(uncertainty, bool)
    wrong[:, 0, 1] = True
    assert threshold_of(uncertainty, wrong, 0.5) == 3.0
    assert threshold_of(uncertainty, wrong, 0.9) == 1.0
    assert threshold_of(uncertainty, ~wrong, 0.9) == -1.0
    assert mask_scores(uncertainty <= -1, wrong) == {"coverage": None, "reliable": 0.0}


@pytest.mark.parametrize(("coverage", "least"), [(0.9, 36), (0.5, 4), (0.99, 396)])
def test_too_few_faces_for_a_calibration_are_refused_with_the_number_wanted(two, coverage, least):
    assert least_faces(coverage) == least
    faces = np.zeros((least - 1, 4, 4, 3), np.uint8)
    few = FacePairs(faces, faces, np.arange(least - 1, dtype=np.int32))
    with pytest.raises(ConfigError, match=f"{least - 1} faces are too few for a coverage of "
                       f"{coverage}; give at least"):
        calibrate_mask(two, few, 25, coverage)
    with pytest.raises(ConfigError, match="no number of faces shows a coverage of 1"):
        calibrate_mask(two, few, 25, 1.0)


def test_the_error_of_a_pixel_is_the_mean_over_its_colours():
    images, truth = np.zeros((1, 1, 2, 3), np.uint8), np.array([[[[3, 0, 6], [255, 255, 255]]]],
                                                               np.uint8)
    assert pixel_error(images, truth).tolist() == [[[3, 255]]]


@pytest.fixture
def calibrated(folder, two, tmp_path, rng, capsys):
    """The folder of a cascade that was calibrated on faces of which half of the pixels are
    right."""
    place = tmp_path / "checkpoints"
    place.mkdir()
    for name in ("from-2", "from-4", "two"):
        (place / name).mkdir()
        for file in (folder / name).iterdir():
            (place / name / file.name).write_bytes(file.read_bytes())
    lr = rng.integers(0, 256, (8, 2, 2, 3), np.uint8)
    drawn = two.decode(lr, keys=[image_key(source, 1) for source in lr])
    near = drawn.uncertainty <= np.median(drawn.uncertainty)
    hr = np.where(near[..., None], drawn.images, drawn.images ^ 128)
    np.savez(tmp_path / "faces.npz", hr=hr, lr=lr, ids=np.arange(8, dtype=np.int32))
    words = ["calibrate", "--data", str(tmp_path / "faces.npz"), "--checkpoint", str(place / "two"),
             "--device", "cpu"]
    assert run([*words, "--coverage", "0.6", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    return place / "two", report, drawn


def test_one_command_calibrates_a_checkpoint_and_keeps_its_other_entries(calibrated, two):
    place, report, drawn = calibrated
    document = read_checkpoint(place).config
    assert document["stages"] == ["from-2", "from-4"]
    found = Reliability.from_dict(document["reliability"])
    assert (found.revision, found.coverage, found.tolerance) == (two.revision, 0.6, 25)
    assert found.threshold > np.median(drawn.uncertainty)
    assert report["within_tolerance"] == pytest.approx(0.5, abs=0.01)
    assert report["held_out"]["images"] == 4
    upscaler = Upscaler.load(place, "cpu")
    assert upscaler.reliability == found
    result = upscaler(drawn.sources)
    assert (result.reliable == (result.uncertainty <= found.threshold)).all()
    assert two(drawn.sources).reliable is None
    assert upscaler.from_size(4).reliability is upscaler.at_size(4).reliability is None


def test_a_calibration_of_other_weights_is_not_used_and_a_damaged_one_is_refused(calibrated):
    place, _, _ = calibrated
    network = replace(TINY, source_shape=(4, 4, 3), target_shape=(8, 8, 3))
    save_checkpoint(random_model(network, seed=9, dtype=torch.float32), place.parent / "from-4")
    assert Upscaler.load(place, "cpu").reliability is None
    document = read_checkpoint(place).config
    document["reliability"]["threshold"] = -1
    (place / "config.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"reliability is damaged .* run superres calibrate "
                       r"again"):
        Upscaler.load(place, "cpu")


def test_a_sheet_shows_a_veil_over_unreliable_pixels(calibrated, tmp_path):
    place, _, drawn = calibrated
    Image.fromarray(drawn.sources[0]).save(tmp_path / "a.png")
    assert run(["upscale", str(tmp_path / "a.png"), "--output", str(tmp_path / "out"),
                "--checkpoint", str(place), "--device", "cpu", "--sheet"]) == 0
    result = Upscaler.load(place, "cpu")(drawn.sources[:1])
    sheet = np.asarray(Image.open(tmp_path / "out" / "a-sheet.png"))
    assert (sheet == face_sheet(drawn.sources[0], result.images[0], result.reliable[0])).all()
    row = json.loads((tmp_path / "out" / "manifest.jsonl").read_text())
    assert (row["sample"], row["bits_per_dim"]) == (None, result.bits_per_dim[0])
    shown, face, reliable = (veiled(result.images[0], result.reliable[0]), result.images[0],
                             result.reliable[0])
    assert 0 < reliable.sum() < reliable.size
    assert (shown[reliable] == face[reliable]).all()
    assert np.allclose(shown[~reliable], (1 - COVER) * face[~reliable] + COVER * np.array(VEIL),
                       atol=0.51)


def test_the_page_shows_the_likeliest_sample_first_and_where_to_rely_on_it(calibrated):
    place, _, drawn = calibrated
    upscaler, subject = Upscaler.load(place, "cpu"), Subject(drawn.sources[0])
    keys = [image_key(subject.source, number) for number in (1, 2, 3)]
    stream = upscaler.decode_stream(subject.source[None].repeat(3, axis=0), SAMPLED, keys=keys,
                                    interval=0)
    *frames, last = judged_last(stream, 3)
    assert not any(frame.samples for frame in frames)
    assert sorted(last.samples) == [1, 2, 3]
    assert last.bits_per_dim.tolist() == sorted(last.bits_per_dim)
    alone = upscaler.decode(subject.source[None], SAMPLED, keys=[keys[last.samples[0] - 1]])
    assert (last.images[0] == alone.images[0]).all()
    viewer, _ = viewer_html(upscaler, subject, SAMPLED, last)
    places = [viewer.index(f"face-{number}.png") for number in last.samples]
    assert places == sorted(places)
    assert f"{last.bits_per_dim[0]:.3f} bits per pixel value" in viewer
    assert viewer.count("Unreliable veiled") == 3
    page = results_html(upscaler, subject, SAMPLED, {"": last})
    assert "Where one can rely on it" in page
    assert "60 % are within 25 grey levels" in page
    unjudged = replace(last, scorer=None, samples=[])
    assert "Where one can rely" not in results_html(upscaler, subject, SAMPLED, {"": unjudged})
    greedy_later = replace(SAMPLED, later_temperature=0.0)
    assert "--later-temperature 0.0" in command_html(upscaler, subject, greedy_later, last)
