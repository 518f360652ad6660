"""Batches: order by seed and step, every example once an epoch, images mirrored in pairs, sentences
padded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage import data

from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, random_squares
from superres.training.corpora import hard_faces
from superres.training.data import Changes, DistilBatches, ImageBatches, TextBatches
from superres.training.picture_operations import (
    CHANGE_UNIT,
    LARGEST_CHANGE,
    TURN_UNIT,
    WEIGHT_UNIT,
    changed_pairs,
    enlargement,
    reduce_squares,
    turned,
)


def batches(count=7, batch_size=4, seed=0, flip=False):
    """Pairs whose every value but the first column's tells the image's number."""
    low = np.arange(count, dtype=np.uint8).reshape(-1, 1, 1, 1) + np.zeros((1, 2, 2, 3), np.uint8)
    high = low.repeat(2, axis=1).repeat(2, axis=2)
    low[:, :, 0], high[:, :, 0] = 100, 200
    return ImageBatches(low, high, batch_size, seed, Changes(flip))


def sentence_batches(count=40, batch_size=4, seed=0):
    """Sources and targets of different lengths; every token tells the pair's number."""
    lengths = np.random.default_rng(7).integers(1, 12, (count, 2))
    rows = [[np.full(length, number + 1) for number, length in enumerate(lengths[:, side])]
            for side in (0, 1)]
    return TextBatches(*rows, batch_size, seed)


def noise(seed, count, side):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


def images(tokens, size):
    return tokens.reshape(-1, size, size, 3)


def numbers(pair, size=2):
    return images(pair[0], size).reshape(len(pair[0]), -1).min(dim=1).values.tolist()


def assert_independent(make, step):
    """A batch depends on seed and step alone, not on the batches before it."""
    fresh, used = make(), make()
    for other in (9, 0, 30):
        used.batch(other)
    for one, other in zip(fresh.batch(step)[:2], used.batch(step)[:2], strict=True):
        assert torch.equal(one, other)


@given(st.integers(0, 50), st.integers(0, 1000))
def test_a_batch_depends_on_seed_and_step_alone(step, seed):
    assert_independent(lambda: batches(seed=seed, flip=True), step)
    assert_independent(lambda: sentence_batches(seed=seed), step)


@given(st.integers(1, 12), st.integers(1, 9), st.integers(0, 9))
def test_every_image_comes_once_an_epoch(count, batch_size, seed):
    whole = batches(count, batch_size, seed)
    seen = [n for step in range(count) for n in numbers(whole.batch(step))]
    assert len(seen) == count * batch_size
    for epoch in range(batch_size):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))


def test_images_that_are_doubled_come_twice_an_epoch():
    low = np.arange(9, dtype=np.uint8).reshape(-1, 1, 1, 1).repeat(3, axis=3)
    once, twice = (ImageBatches(low, low, 13, 0, doubled=doubled)
                   for doubled in (None, np.array([1, 4, 5, 8])))
    for step in range(3):  # an epoch of 9 + 4
        assert sorted(twice.batch(step).source[:, 0].tolist()) == sorted([*range(9), 1, 4, 5, 8])
    assert once.digest() != twice.digest()


@given(st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_parts_make_up_the_batch(parts, step):
    whole = batches(7, 4, flip=True)
    shares = [whole.batch(step, part, parts) for part in range(parts)]
    assert sum(share.true_count for share in shares) == 4
    for which, complete in enumerate(whole.batch(step)[:2]):
        joined = torch.zeros_like(complete)
        for part in range(parts):
            joined[part::parts] = shares[part][which]
        assert torch.equal(joined, complete)


def test_distil_batches_hold_true_pictures_first_and_own_ones_after_them():
    true, own = batches(50, 50, flip=True), batches(20, 30, seed=1, flip=False)
    joined = DistilBatches(true, own)
    source, target, true_count = joined.batch(3)[:3]
    assert (joined.batch_size, len(source), len(target), true_count) == (80, 80, 80, 50)
    assert torch.equal(source[:50], true.batch(3).source)
    assert torch.equal(target[:50], true.batch(3).target)
    assert bool((images(source[50:], 2)[:, :, 0] == 100).all())
    assert set(numbers((source[50:], target[50:]))) == set(range(20))


def changed_pair(high, change):
    """Change one picture by `change` grey levels."""
    return (one[0].numpy() for one in changed_pairs(torch.from_numpy(high)[None],
                                                    torch.from_numpy(change / CHANGE_UNIT)[None]))


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_changes_are_enlarged_as_torch_does_and_exactly_so_that_every_device_gives_the_same(factor):
    rng, high = np.random.default_rng(factor), torch.from_numpy(noise(0, 5, 8 * factor))
    largest = int(LARGEST_CHANGE / CHANGE_UNIT)
    change = torch.from_numpy(rng.integers(-largest, largest + 1, (5, 8, 8, 3)))
    low, found = changed_pairs(high, change.double())
    np.testing.assert_array_equal(low, area_reduce(found.numpy(), 8, 8, is_reduced=True))
    wide = torch.nn.functional.interpolate(change.double().permute(0, 3, 1, 2) * CHANGE_UNIT,
                                           high.shape[1:3], mode="bicubic")
    different = ((high + wide.permute(0, 2, 3, 1)).round().clamp(0, 255) - found).abs()
    assert float(different.max()) <= (factor == 3)  # whose weights are rounded

    # whole numbers, whose sums have no rounding errors
    weights = (enlargement(8, 8 * factor, torch.device("cpu")) / WEIGHT_UNIT).long()
    wide = weights @ change.permute(0, 3, 1, 2) @ weights.T
    exact = high + (wide.double() * WEIGHT_UNIT**2 * CHANGE_UNIT).permute(0, 2, 3, 1)
    assert torch.equal(found, exact.round().clamp(0, 255).to(torch.uint8))
    assert int(wide.abs().max()) < 2**52


def coefficients(*turns):
    """Coefficients of turns, given as degrees clockwise and scale, of what a result shows of its
    picture."""
    angle, scale = np.radians([turn for turn, _ in turns]), np.array([scale for _, scale in turns])
    return torch.from_numpy(np.rint(np.stack([np.cos(angle), np.sin(angle)]) * scale / TURN_UNIT)
                            * TURN_UNIT)


def test_turns_are_those_of_torch_and_exact_so_that_every_device_gives_the_same():
    pictures, turns = torch.from_numpy(noise(0, 5, 16)), coefficients(
        (4, 1.0), (-4, 1.05), (0, 1), (30, 0.7), (90, 1))
    (a, b), zero = turns, torch.zeros(5, dtype=torch.float64)
    matrices = torch.stack([torch.stack([a, -b, zero], 1), torch.stack([b, a, zero], 1)], 1)
    grid = torch.nn.functional.affine_grid(matrices, [5, 3, 16, 16], align_corners=False)
    expected = torch.nn.functional.grid_sample(pictures.permute(0, 3, 1, 2).double(), grid,
                                               mode="bicubic", padding_mode="border",
                                               align_corners=False).permute(0, 2, 3, 1)
    found = turned(pictures, turns)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)
    assert torch.equal(found[2], pictures[2].double())
    assert torch.equal(found[4], pictures[4].rot90().double())
    whole = found / WEIGHT_UNIT**2
    assert torch.equal(whole, whole.round())
    assert float(whole.abs().max()) < 2**52


@given(st.integers(8, 70), st.integers(1, 8), st.integers(0, 9))
def test_squares_of_a_batch_are_reduced_as_each_of_them_alone(whole, size, seed):
    pictures, squares = noise(seed, 6, whole), random_squares(whole, 6, np.random.default_rng(seed))
    found = reduce_squares(torch.from_numpy(pictures), *torch.from_numpy(squares),
                           min(size, squares[0].min()))
    for picture, (side, top, left), one in zip(pictures, squares.T, found.numpy(), strict=True):
        square = picture[top : top + side, left : left + side]
        np.testing.assert_array_equal(one, area_reduce(square, *one.shape[:2], is_reduced=True))


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_batch_is_what_its_random_numbers_say(own):
    """The formulas of one picture, in NumPy, from the same numbers; `own`: crops are cut from the
    larger pictures."""
    large, drawn = noise(0, 9, 64), noise(1, 5, 8)
    crops = large if own else noise(2, 4, 64)
    high, low = (np.stack([area_reduce(image, size, size) for image in large]) for size in (32, 8))
    whole = ImageBatches(low, high, 45, 4, Changes(
        large=large if own else None, crop_share=0.3, crops=None if own else crops,
        turned_share=0.5, drawn=[drawn], input_noise=6.0))
    rng = np.random.default_rng((4, 3, 2))
    mirrored, cropped = rng.random(45) < 0.5, rng.random(45) < 0.3
    squares = random_squares(64, 45, rng)
    changed = ~cropped & (rng.random(45) < 0.5)
    level, weight, _ = 6 * rng.random(45), np.rint(256 * rng.random(45)) / 256, rng.random(45)
    added = iter(rng.standard_normal((changed.sum(), 8, 8, 3), np.float32))
    order = np.concatenate([np.random.default_rng((4, epoch)).permutation(9)
                            for epoch in range(15, 20)])
    rng = np.random.default_rng((4, 3, 3))
    moved, (angle, scale) = rng.random(45) < 0.5, rng.uniform(-1, 1, (2, 45))

    def turn(row, picture):
        both = coefficients((4 * angle[row], 1.05 ** scale[row]) if moved[row] else (0, 1))
        return turned(torch.from_numpy(picture.copy())[None], both)[0].round().numpy()

    batch = whole.batch(3)
    for row, index in enumerate(order):
        source, target = low[index], high[index]
        if cropped[row] or moved[row]:
            side, top, left = squares[:, row] if cropped[row] else (64 if own else 32, 0, 0)
            picture = crops[index % len(crops)] if cropped[row] else large[index] if own else target
            whole_picture = turn(row, picture).clip(0, 255).astype(np.uint8)
            square = whole_picture[top : top + side, left : left + side]
            source, target = (area_reduce(square, size, size, is_reduced=True) for size in (8, 32))
        if changed[row]:
            change = np.rint(next(added) * np.float32(level[row] * 256)) / 256
            if index < len(drawn):
                change = change + weight[row] * turn(row, drawn[index] - low[index].astype(float))
            source, target = changed_pair(target, change.astype(float))
        if changed[row]:
            np.testing.assert_array_equal(area_reduce(target, 8, 8, is_reduced=True), source)
        for name, picture in (("source", source), ("target", target)):
            found = getattr(batch, name)[row].reshape(picture.shape)
            np.testing.assert_array_equal(found, picture[:, ::-1] if mirrored[row] else picture)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 5))
def test_every_pair_of_sentences_comes_once_an_epoch(count, batch_size, seed):
    whole = sentence_batches(count, batch_size, seed)
    steps = len(whole.cuts) - 1
    for epoch in range(2):
        seen = [whole.batch(step).target[:, 0]
                for step in range(epoch * steps, (epoch + 1) * steps)]
        assert sorted(torch.cat(seen).tolist()) == list(range(1, count + 1))


def test_rows_are_pairs_filled_up_to_the_longest_and_masked_there():
    whole = sentence_batches()
    for step in range(6):
        batch = whole.batch(step)
        assert torch.equal(batch.padding, batch.source == 0)
        for source, target, length in zip(batch.source, batch.target, batch.lengths.tolist(),
                                          strict=True):
            assert target.tolist() == [int(source[0])] * length + [0] * (len(target) - length)
        assert int(batch.lengths.max()) == batch.target.shape[1]
        assert batch.true_count is None


@pytest.mark.parametrize("parts", [2, 3])
def test_processes_share_a_batch_of_sentences(parts):
    whole = sentence_batches(400, 8)
    complete = sorted(whole.batch(1).target[:, 0].tolist())
    shares = torch.cat([whole.batch(1, part, parts).target[:, 0] for part in range(parts)])
    assert sorted(shares.tolist()) == complete
    # fewer rows than processes: none is left without
    assert len(sentence_batches(3, 1).batch(0, 2, 4).target) == 1


def test_faces_that_are_not_framed_as_celebas_are_hard():
    faces = []
    for degrees in (0, 20, 0, -12):  # beside a crop that is aligned
        photo = Image.fromarray(data.astronaut()).rotate(3 + degrees, Image.Resampling.BICUBIC,
                                                         center=(226, 99))
        faces.append(np.asarray(photo.resize((64, 64), Image.Resampling.BOX, (157, 30, 295, 168))))
    aligned = FacePairs(*(area_reduce(np.stack(faces), side, side) for side in (32, 8)),
                        np.arange(4, dtype=np.int32))
    for pairs in (aligned, replace(aligned, large=np.stack(faces))):
        assert hard_faces(pairs, 0.5).tolist() == [1, 3]
        assert hard_faces(pairs, 0.0) is None
