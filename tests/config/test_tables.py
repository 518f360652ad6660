"""Networks without torch: their weights' names and shapes, and their tables, are those of torch."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from fakes import PLAIN, SMALL, VARIANTS
from textual import CONFIG as TEXT

from superres.checkpoint import (
    WEIGHTS,
    bundled_checkpoints,
    find_checkpoint,
    load_network,
    read_checkpoint,
    weights_digest,
)
from superres.config import HEAD_LAYERS, PRESETS, tables
from superres.config.parameters import parameter_shapes
from superres.nn.model import meta_network
from superres.nn.weights import module_of, network_of
from superres.system.folders import bundled_folder
from superres.system.tensor_files import StoredTensor, parse_tensors, read_arrays

NETWORKS = [path.parent.name for path in bundled_folder().glob(f"*/{WEIGHTS}")
            if path.parent.name in bundled_checkpoints()]


def assert_shapes(config):
    """The shapes are those of the network on torch, in the same order."""
    found = {name: tuple(weight.shape) for name,
             weight in meta_network(config).state_dict().items()}
    assert list(parameter_shapes(config).items()) == list(found.items())


@pytest.mark.parametrize("config", [*VARIANTS.values(), *PRESETS.values()],
                         ids=[*VARIANTS, *PRESETS])
def test_weights_have_the_names_and_shapes_of_the_network(config):
    for heads, one_head_layer in ((config.prediction_heads, True), (1, False), (1, True),
                                  (5, True)):
        assert_shapes(replace(config, prediction_heads=heads, one_head_layer=one_head_layer))


@pytest.mark.parametrize(("layer", "norm", "tied", "identity"), [
    one for one in product(HEAD_LAYERS, ("pre", "post"), (True, False), (True, False))
    if one[0] != "sequential" and (one[0] != "recurrent" or one[-1])])
def test_weights_of_every_head_layer_have_their_names_and_shapes(layer, norm, tied, identity):
    assert_shapes(replace(TEXT, head_layer=layer, norm=norm, tied_embeddings=tied,
                          identity_p1=identity, prediction_heads=3))


@pytest.mark.parametrize("name", NETWORKS)
def test_bundled_weights_are_read_as_torch_reads_them(name):
    checkpoint = read_checkpoint(find_checkpoint(name))
    assert_shapes(checkpoint.network)
    network = load_network(checkpoint)
    assert network.revision == weights_digest(checkpoint.folder)
    assert module_of(network) is module_of(network)
    for key, weight in module_of(network).state_dict().items():
        assert network.arrays[key].dtype == np.float32
        assert network.arrays[key].flags.c_contiguous
        assert torch.equal(weight, torch.from_numpy(network.arrays[key]))
    again = network_of(module_of(network), network.revision)
    assert list(again.arrays) == list(network.arrays)
    assert again.module is module_of(network)
    assert np.shares_memory(again.arrays["project.bias"],
                            again.module.project.bias.detach().numpy())
    module_of(network).train()
    assert network_of(module_of(network)).module is None


# Reading

def test_every_bfloat16_and_float16_becomes_the_float32_of_torch():
    bits = np.arange(2**16, dtype=np.uint16)
    for kind, dtype in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        found = StoredTensor(kind, (2**8, 2**8), bytearray(bits.tobytes())).array()
        expected = torch.from_numpy(bits.view(np.int16).copy()).view(dtype).float().numpy()
        number = ~np.isnan(expected)
        assert np.array_equal(found.ravel()[number].astype(np.float32).view(np.uint32),
                              expected[number].view(np.uint32))
        assert np.isnan(found.ravel()[~number]).all()


def test_types_that_numpy_lacks_and_damage_are_value_errors(tmp_path):
    with pytest.raises(ValueError, match="F8_E4M3 is not supported"):
        StoredTensor("F8_E4M3", (1,), bytearray(1)).array()
    with pytest.raises(ValueError, match="header"):
        parse_tensors(b"\xff" * 99)
    (tmp_path / "empty").write_bytes((57).to_bytes(8, "little")
                                     + b'{"a":{"dtype":"F32","shape":[0,3],"data_offsets":[0,0]}}'
                                     + b" ")
    assert read_arrays(tmp_path / "empty")["a"].shape == (0, 3)


# Tables

def torch_sinusoid(count, width):
    powers = torch.arange(width // 2) * (-math.log(10_000.0) / max(width // 2 - 1, 1))
    rates = torch.tensor([math.exp(power) for power in powers.tolist()], dtype=torch.float32)
    angles = (torch.arange(count)[:, None].float() * rates).tolist()
    return torch.tensor([[function(angle) for function in (math.sin, math.cos) for angle in row]
                         for row in angles], dtype=torch.float32)


@pytest.mark.parametrize("width", [4, 32, 96, 128, 256, 512])
def test_the_position_signal_has_the_bits_of_torch(width):
    found = torch.from_numpy(tables.position_signal((256,), width))
    assert torch.equal(found, torch_sinusoid(256, width))
    found += 1  # a table of its own
    rows, columns = torch_sinusoid(64, width // 2), torch_sinusoid(192, width // 2)
    expected = torch.cat([rows.repeat_interleave(192, 0), columns.repeat(64, 1)], dim=1)
    assert torch.equal(torch.from_numpy(tables.position_signal((64, 64, 3), width)), expected)
    assert torch.equal(torch.from_numpy(tables.position_signal((256,), width)),
                       torch_sinusoid(256, width))


@pytest.mark.parametrize("shape", [(4, 6, 3), (5, 2, 1)])
def test_neighbours_are_decoded_pixels_near_the_target(shape):
    table = tables.neighbour_table(shape)
    numbers = np.arange(math.prod(shape)).reshape(shape)
    for place, row in zip(np.ndindex(shape), table, strict=True):
        expected = []
        for dy, dx in tables.NEIGHBOUR_PIXELS:
            for turn in range(shape[2]):
                y, x, c = place[0] + dy, place[1] + dx, (place[2] + turn) % shape[2]
                inside = 0 <= y < shape[0] and 0 <= x < shape[1]
                before = inside and numbers[y, x, c] < numbers[place]
                expected.append(numbers[y, x, c] if before else numbers.size)
        assert row.tolist() == expected


def test_a_cell_holds_the_positions_that_a_source_pixel_covers():
    config = replace(SMALL, source_shape=(2, 3, 3), target_shape=(4, 9, 3))
    cell, positions = tables.cell_tables(config)
    sources = np.arange(18).reshape(2, 3, 3).repeat(2, axis=0).repeat(3, axis=1).ravel()
    assert np.array_equal(cell, sources)
    for place, found in zip(cell, positions, strict=True):
        assert found.tolist() == np.flatnonzero(sources == place).tolist()
    assert positions.flags.c_contiguous


def test_the_longest_targets_are_those_of_each_source():
    config = replace(SMALL, **PLAIN, source_shape=(20,), target_shape=(30,))
    lengths = np.arange(21)
    expected = [config.longest_target(int(length)) for length in lengths]
    assert tables.longest_targets(lengths, config).tolist() == expected
    assert tables.longest_targets(torch.from_numpy(lengths), config).tolist() == expected
