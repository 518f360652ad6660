"""Pairs of a survey: what is compared, on which images, and what a browser gets of it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from superres.errors import ConfigError, InvalidInputError
from superres.survey.pairs import (
    SHUFFLED,
    Method,
    choose_images,
    compare_methods,
    display_png,
    encode_png,
    make_pairs,
    shuffle_tiles,
)
from superres.survey.study import CAMERA, GOLD, MAIN, PRACTICE, StudySettings
from tests.survey.helpers import pictures

METHODS = {name: Method(name, pictures(6, seed), {"of": name})
           for seed, name in enumerate([*"abcd", CAMERA])}
METHODS["A"] = Method("a", METHODS["a"].pictures, {"of": "something else"})


def compare(first, second):
    return compare_methods([METHODS[name] for name in first], [METHODS[name] for name in second])


@pytest.mark.parametrize(("first", "second", "names"), [
    ("ab", "cd", ["a vs c", "b vs d"]), ("abc", "d", ["a vs d", "b vs d", "c vs d"]),
    ("d", "ab", ["d vs a", "d vs b"]),
    ([CAMERA], "a", ["a vs camera"]),  # the preference is then the fool rate
])
def test_methods_pair_off_in_order_or_all_with_the_only_one(first, second, names):
    assert [comparison.name for comparison, _, _ in compare(first, second)] == names


@pytest.mark.parametrize(("first", "second", "message"), [
    ("ab", "cdb", "2 --method-a and 3 --method-b do not pair off"),
    ("a", "a", "method 'a' is compared with itself"),
    ("aa", "bb", "'a vs b' is given twice"),
    ("ab", "cA", "two different methods are named 'a'"),
])
def test_comparisons_that_make_no_sense_are_refused(first, second, message):
    with pytest.raises(ConfigError, match=message):
        compare(first, second)


def test_pictures_of_another_size_would_give_the_method_away():
    small, large = Method("a", pictures(2, size=16)), Method("b", pictures(2, size=32))
    with pytest.raises(InvalidInputError, match="which would reveal methods: face0 is 16x16 in a, "
                       "32x32 in b"):
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
    pairs = make_pairs(compare("ab", "c"), StudySettings(gold=2, practice=3))
    by_kind = {kind: [pair for pair in pairs if pair.kind == kind]
               for kind in (MAIN, GOLD, PRACTICE)}
    assert {kind: len(found) for kind, found in by_kind.items()} == {MAIN: 12, GOLD: 4, PRACTICE: 3}
    for pair in by_kind[MAIN]:
        assert f"{pair.methods[0]} vs {pair.methods[1]}" == pair.comparison
        for method, picture in zip(pair.methods, pair.pictures, strict=True):
            assert picture is METHODS[method].pictures[pair.image]
    for pair in by_kind[GOLD] + by_kind[PRACTICE]:
        assert np.array_equal(pair.pictures[0], METHODS["c"].pictures[pair.image])
        assert not np.array_equal(*pair.pictures)
    # of photographs, if there are some
    gold = make_pairs(compare("aa", ["b", CAMERA]), StudySettings())[-1]
    assert np.array_equal(gold.pictures[0], METHODS[CAMERA].pictures[gold.image])


def test_pairs_are_obvious_for_the_question_they_answer():
    compared = compare("ab", "c")
    sharper = StudySettings(question="Which picture is sharper?", gold=2, practice=3)
    assert {pair.kind for pair in make_pairs(compared, sharper)} == {MAIN}
    assert len(make_pairs(compared, sharper, SHUFFLED)) == 12 + 4 + 3
    sharp, soft = pictures(2, 8), pictures(2, 9)
    made = [pair for pair in make_pairs(compared, sharper,
                                        {name: (sharp[name], soft[name]) for name in sharp})
            if pair.kind != MAIN]
    assert [pair.kind for pair in made] == [PRACTICE] * 2 + [GOLD] * 2  # each picture once per kind
    for pair in made:
        assert pair.methods == ("right", "wrong")
        assert np.array_equal(pair.pictures[0], sharp[pair.image])
        assert np.array_equal(pair.pictures[1], soft[pair.image])


def test_shuffled_tiles_are_the_same_pixels_in_another_order(rng):
    picture = rng.integers(0, 256, (18, 16, 3)).astype(np.uint8)
    shuffled = shuffle_tiles(picture, rng)
    assert not np.array_equal(shuffled, picture)
    assert np.array_equal(np.sort(shuffled, axis=None), np.sort(picture, axis=None))
    for size in (3, 16):
        with pytest.raises(InvalidInputError, match="makes no obvious pair"):
            shuffle_tiles(np.full((size, size, 3), 7, np.uint8), rng)


@pytest.mark.parametrize("interpolation", ["nearest", "bicubic", "lanczos"])
def test_pictures_of_a_size_become_the_same_number_of_bytes_without_metadata(rng, interpolation):
    flat = np.zeros((32, 32, 3), np.uint8)
    noise = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
    first, second = (display_png(encode_png(picture), 8, interpolation)
                     for picture in (flat, noise))
    assert len(first) == len(second) > 256 * 256 * 3
    for name in (b"tEXt", b"iTXt", b"zTXt", b"tIME", b"eXIf"):
        assert name not in first
    if interpolation == "nearest":
        with Image.open(io.BytesIO(second)) as shown:
            assert np.array_equal(np.asarray(shown), noise.repeat(8, 0).repeat(8, 1))
