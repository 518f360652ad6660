"""Pairs of a survey: what is compared, on which images, and what a browser gets of it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image
from survey_tools import pictures

from superres.errors import ConfigError, InvalidInputError
from superres.survey.pairs import (
    Method,
    choose_images,
    compare_methods,
    display_png,
    encode_png,
    make_pairs,
    shuffle_tiles,
)
from superres.survey.study import CAMERA, GOLD, MAIN, PRACTICE, StudySettings


def methods(*names, count=6):
    return [Method(name, pictures(count, seed), {"of": name}) for seed, name in enumerate(names)]


def names_of(compared):
    return [comparison.name for comparison, _, _ in compared]


def test_methods_pair_off_in_order_or_all_with_the_only_one():
    a, b, c, d = methods("a", "b", "c", "d")
    assert names_of(compare_methods([a, b], [c, d])) == ["a vs c", "b vs d"]
    assert names_of(compare_methods([a, b, c], [d])) == ["a vs d", "b vs d", "c vs d"]
    assert names_of(compare_methods([d], [a, b])) == ["d vs a", "d vs b"]


def test_photographs_become_method_b_so_that_the_preference_is_the_fool_rate():
    ours, camera = methods("ours", CAMERA)
    ((comparison, a, b),) = compare_methods([camera], [ours])
    assert (comparison.method_a, comparison.method_b, a.name, b.name) == ("ours", CAMERA, "ours", CAMERA)
    assert comparison.is_fool_rate


@pytest.mark.parametrize(("first", "second", "message"), [
    ("ab", "cde", "2 --method-a and 3 --method-b do not pair off"),
    ("a", "a", "method 'a' is compared with itself"),
    ("aa", "bb", "'a vs b' is given twice"),
    ("ab", "cA", "two different methods are named 'a'"),
])
def test_comparisons_that_make_no_sense_are_refused(first, second, message):
    known = dict(zip("abcde", methods(*"abcde"), strict=True))
    known["A"] = Method("a", known["a"].pictures, {"of": "something else"})
    with pytest.raises(ConfigError, match=message):
        compare_methods([known[name] for name in first], [known[name] for name in second])


def test_pictures_of_another_size_would_give_the_method_away():
    small, large = Method("a", pictures(2, size=16)), Method("b", pictures(2, size=32))
    with pytest.raises(InvalidInputError, match="which would reveal methods: face0 is 16x16 in a, 32x32 in b"):
        make_pairs(compare_methods([small], [large]), StudySettings())
    with pytest.raises(InvalidInputError, match="a, b must have pictures of the same images"):
        make_pairs(compare_methods([small], [Method("b", pictures(3))]), StudySettings())


def test_images_are_chosen_by_the_seed_alone():
    known = [f"face{number}" for number in range(50)]
    chosen = choose_images(known, 10, 1)
    assert chosen == choose_images(known[::-1], 10, 1)
    assert chosen != choose_images(known, 10, 2)
    assert len(set(chosen)) == 10
    with pytest.raises(ConfigError, match="--pairs 51 asked for, but there are 50 images"):
        choose_images(known, 51, 1)


def test_a_study_has_a_pair_an_image_and_comparison_and_obvious_pairs():
    compared = compare_methods(methods("a", "b"), [Method("c", pictures(6, 9))])
    pairs = make_pairs(compared, StudySettings(gold=2, practice=3))
    by_kind = {kind: [pair for pair in pairs if pair.kind == kind] for kind in (MAIN, GOLD, PRACTICE)}
    assert {kind: len(found) for kind, found in by_kind.items()} == {MAIN: 12, GOLD: 4, PRACTICE: 3}
    assert {(pair.comparison, pair.a.image) for pair in by_kind[MAIN]} == {
        (f"{method} vs c", f"face{number}") for method in "ab" for number in range(6)}
    for pair in by_kind[MAIN]:
        assert pair.a.image == pair.b.image
        assert pair.a.sha256 != pair.b.sha256
    for pair in by_kind[GOLD] + by_kind[PRACTICE]:
        assert np.array_equal(pair.a.pixels, compared[0][2].pictures[pair.a.image])
        assert not np.array_equal(pair.a.pixels, pair.b.pixels)
    assert [pair.a.image for pair in pairs] == [pair.a.image for pair in make_pairs(compared, StudySettings(
        gold=2, practice=3))]


def test_gold_pairs_take_photographs_where_there_are_some():
    ours, other, camera = methods("ours", "other", CAMERA)
    pairs = make_pairs(compare_methods([ours, ours], [other, camera]), StudySettings())
    gold = next(pair for pair in pairs if pair.kind == GOLD)
    assert np.array_equal(gold.a.pixels, camera.pictures[gold.a.image])


def test_shuffled_tiles_are_the_same_pixels_in_another_order(rng):
    picture = rng.integers(0, 256, (18, 16, 3)).astype(np.uint8)
    shuffled = shuffle_tiles(picture, rng)
    assert not np.array_equal(shuffled, picture)
    assert np.array_equal(np.sort(shuffled, axis=None), np.sort(picture, axis=None))


@pytest.mark.parametrize("size", [3, 16])
def test_a_picture_that_cannot_be_broken_makes_no_gold_pair(rng, size):
    with pytest.raises(InvalidInputError, match="makes no gold pair"):
        shuffle_tiles(np.full((size, size, 3), 7, np.uint8), rng)


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic"])
def test_all_pictures_of_a_size_become_the_same_number_of_bytes_without_metadata(rng, interpolation):
    flat, noise = np.zeros((32, 32, 3), np.uint8), rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
    first, second = (display_png(encode_png(picture), 8, interpolation) for picture in (flat, noise))
    assert len(first) == len(second) > 256 * 256 * 3
    for name in (b"tEXt", b"iTXt", b"zTXt", b"tIME", b"eXIf"):
        assert name not in first
    assert len(encode_png(flat)) != len(encode_png(noise))  # what is stored would tell


def test_nearest_enlargement_repeats_each_pixel_exactly(rng):
    picture = rng.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    with Image.open(io.BytesIO(display_png(encode_png(picture), 8, "nearest"))) as shown:
        assert np.array_equal(np.asarray(shown), picture.repeat(8, 0).repeat(8, 1))
