"""Stand-ins with scripted behaviour, for the logic around the network."""

import json
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from types import SimpleNamespace

import numpy as np
import torch

from decodes import engine_of
from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig, ModelConfig
from superres.decoding.acceptance import Exact
from superres.decoding.batching import Result
from superres.decoding.block_size import check_options
from superres.decoding.limits import Limits
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.ngram_table import NgramTable, count_ngrams
from superres.decoding.trace import RowTrace
from superres.native import build
from superres.native.engine import NativeEngine
from superres.native.on_torch import ModelOnTorch
from superres.nn.model import EncoderDecoder
from superres.nn.torch_model import StepModel
from superres.nn.weights import network_of
from superres.pipeline.pipeline import Pipeline
from superres.tasks.consistency import cell_limits
from superres.tasks.faces import FaceTask, encode

TOKENS = 32 * 32 * 3
GREEDY = DecodeConfig(block_size=1)

BAD_KEYS = [
    ([1], "there are 1 keys for 2 inputs; give one per input"),
    ([1, 2, 3], "there are 3 keys for 2 inputs"), ([], "there are 0 keys for 2 inputs"),
    ([0, -1], r"keys must be whole numbers in \[0, 2\*\*63\), not -1"),
    ([2**63, 0], "not 9223372036854775808"), ([0, 1.5], "not 1.5"), ([0, True], "not True"),
    (torch.tensor([True, False]), "not True"), ([0, np.True_], "not .*True"),
    ([torch.tensor(True), 0], "not True"), (["a", 0], "not 'a'"), (7, "a sequence, .* not 7"),
    (np.array([0.5, 1.0]), "not .*0.5"), (np.array([[0], [1]]), "not array"),
]
"""Keys that two inputs cannot have, and what is said of them."""


def changed(module, **names):
    """Return a copy of a module with other names: the module itself serves the threads of other
    tests, too."""
    return SimpleNamespace(**vars(module) | names)


def criterion_options(name, **more):
    """Return decoding settings for the registered criterion `name`, which suit small
    vocabularies."""
    return DecodeConfig(accept=name, **{"epsilon": 1, "top_k": 2, **more})


class Unruled(Exact):
    """A criterion of the user, which has no form as data."""

    rule = None


def FakeTrace(accepted):
    """Return the trace of blocks of these sizes."""
    return RowTrace([0, *accumulate(accepted)][:-1], accepted,
                    np.zeros((len(accepted), max(accepted))))


@dataclass(frozen=True)
class FakeUpscaled:
    images: np.ndarray
    traces: list
    seconds: float

    @property
    def stages(self):
        return [self]

    @property
    def bits_per_dim(self):
        """The value that shows the key, so that the likeliest sample is known."""
        return self.images[:, 0, 0, 0] / 64


@dataclass(frozen=True)
class Waiting:
    """A sequence to decode, and what a test knows it by."""

    source: torch.Tensor
    key: int
    tag: object = None


def stacked(items):
    """Return the sources of sequences, without padding, as `Stream` asks for them."""
    return np.stack([np.asarray(item.source) for item in items]), None


@dataclass
class FakeRefilled:
    """Upscales whole batches, one after another."""

    upscaler: "FakeUpscaler"
    feed: object
    options: DecodeConfig
    rows: int
    under_way: list = field(default_factory=list)
    tokens_under_way: int = 0

    def run(self):
        while True:
            while (len(self.under_way) < self.rows
                   and (more := self.feed(self.rows - len(self.under_way), True))):
                self.under_way += more
            if not self.under_way:
                return
            self.tokens_under_way = (len(self.under_way) * self.upscaler.model_config.target_length
                                     // 2)
            yield []
            sources, keys = (np.stack([item.source for item in self.under_way]),
                             [item.key for item in self.under_way])
            result = self.upscaler(sources, self.options, keys=keys)
            tokens = torch.from_numpy(encode(result.images))
            finished = [Result(item, row, trace, result.seconds / len(sources))
                        for item, row, trace in zip(self.under_way, tokens, result.traces,
                                                    strict=True)]
            self.under_way, self.tokens_under_way = [], 0
            yield finished


@dataclass
class FakeUpscaler:
    """Enlarges to the nearest pixel; at a temperature the first pixel shows the key. Records its
    calls.

    `most` images fit into memory; sources whose first value is in `broken` raise.
    """

    most: int = 1000
    broken: frozenset = frozenset()
    seconds_per_call: float = 0.5
    name: str = "fake"
    default: DecodeConfig = field(default_factory=DecodeConfig)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    revision: str = "0123abcd"
    engine: str = "fake"
    stages: int = 1
    reliability: None = None
    model_config: ModelConfig = field(default_factory=lambda: ModelConfig(prediction_heads=10))
    batches: list = field(default_factory=list)
    called: list = field(default_factory=list)
    keys: list = field(default_factory=list)

    def block_size(self, options):
        return check_options(options, self.model_config.prediction_heads,
                             self.model_config.target_length)

    options = Pipeline.options

    @property
    def face_task(self):
        return FaceTask.of(self.model_config)

    @property
    def tokens_per_image(self):
        return self.model_config.target_length

    def fitting_rows(self, options=None):
        return 16

    def refilled(self, feed, options, rows, samples=1, judged=False, finish="none"):
        assert (samples, judged, finish) == (1, False, "none")  # tests of these have a real network
        return FakeRefilled(self, feed, options, rows)

    def __call__(self, sources, options=GREEDY, *, keys=None, progress=None):
        self.batches.append(len(sources))
        self.called.append(options)
        if len(sources) > self.most:
            raise RuntimeError("CUDA out of memory.\nTried to allocate more")
        if self.broken & set(sources[:, 0, 0, 0].tolist()):
            raise RuntimeError("the network\nbroke")
        self.keys.extend(keys)
        images = self.face_task.enlarge(sources, "nearest")
        if options.is_sampling:
            images[:, 0, 0, 0] = [key % 256 for key in keys]
        if progress is not None:
            progress(TOKENS // 2, TOKENS)
            progress(TOKENS, TOKENS)
        size = self.block_size(options)
        whole, rest = divmod(TOKENS, size)
        accepted = [size] * whole + [rest] * (rest > 0)
        return FakeUpscaled(images, [FakeTrace(accepted) for _ in sources],
                            self.seconds_per_call / size)

    def decode(self, sources, options=GREEDY, *, keys=None):
        return self(sources, options, keys=keys)

    def bits_per_dim(self, sources, targets):
        """Grow with the distance of the enlarged source from the target."""
        difference = self.face_task.enlarge(sources, "nearest").astype(float) - targets
        return np.abs(difference).reshape(len(sources), -1).mean(axis=1)


class LossyUpscaler(FakeUpscaler):
    """Errs by epsilon in every token, unless acceptance is exact, which takes twice the time."""

    def __call__(self, sources, options, **more):
        result = super().__call__(sources, options, **more)
        error = 0 if options.accept == "exact" else options.epsilon
        images = np.where(result.images < 128, result.images + error, result.images - error)
        return replace(result, images=images, seconds=result.seconds * (1 if error else 2))


SMALL = ModelConfig(
    vocabulary=6, source_shape=(2, 2, 3), target_shape=(4, 4, 3), width=16, filter_size=16,
    attention_heads=2, encoder_layers=1, decoder_layers=2, attention_block_length=4,
    prediction_heads=5, head_filter_size=8, conditioning_blocks=1, conditioning_width=4,
    cell_remainder=True,
)
"""48 tokens in 12 attention blocks: a ring wraps several times. Few token values, so that proposals
are often right."""

NATIVE = {"width": 32, "filter_size": 64, "attention_heads": 2, "head_filter_size": 32}
"""Sizes that the native engine knows, with which a test takes a tenth of the time."""

TINY = ModelConfig(
    **NATIVE, decoder_layers=1, attention_block_length=16, prediction_heads=8,
    conditioning_blocks=1, conditioning_width=4, cross_attention=False,
)
"""A network for faces."""

PLAIN = {
    "aligned_conditioning": False, "numeric_neighbourhood": False, "cell_remainder": False,
    "ordinal_output": False,
}

VARIANTS = {
    "base aids": SMALL,
    "base without cross-attention": replace(SMALL, cross_attention=False),
    "no conditioning": replace(SMALL, aligned_conditioning=False),
    "no neighbourhood": replace(SMALL, numeric_neighbourhood=False, cell_remainder=False),
    "no remainder": replace(SMALL, cell_remainder=False),
    "no free scores": replace(SMALL, free_scores=False),
    "hyperbolic": replace(SMALL, free_scores=False, ordinal_shape="hyperbolic"),
    "no ordinal output": replace(SMALL, ordinal_output=False),
    "neighbourhood alone": replace(SMALL, aligned_conditioning=False, ordinal_output=False),
    "plain": replace(SMALL, **PLAIN),
    "plain without encoder layers": replace(SMALL, **PLAIN, encoder_layers=0),
    "post-norm": replace(SMALL, norm="post"),
    "dense heads": replace(SMALL, head_layer="dense"),
    "sequential heads": replace(SMALL, head_layer="sequential"),
    "sequential heads, own layer for p1": replace(SMALL, head_layer="sequential",
                                                  identity_p1=False),
    "own layer for p1": replace(SMALL, identity_p1=False),
    "as published": replace(SMALL, **PLAIN, norm="post", head_layer="dense", identity_p1=False),
    "causal attention": replace(SMALL, attention="causal"),
    "keys per pixel": replace(SMALL, attention_keys="pixels"),
    "text": replace(SMALL, **PLAIN, source_shape=(7,), target_shape=(30,)),
    "recurrent heads": replace(SMALL, **PLAIN, source_shape=(7,), target_shape=(30,),
                               head_layer="recurrent"),
}
"""One network for every switch of the settings."""


def random_model(config, seed=0, dtype=torch.float64):
    """Build a network without a single zero or one where training would have left something
    else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = EncoderDecoder(config).to(dtype).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.add_((0.5 if weight.dim() > 1 else 0.2) * weight.shape[-1] ** -0.5 * noise)
        if name == "project.weight":
            weight.mul_(6)
    return model


def save_cascades(folder):
    """Save the cascades "two" and "three" of networks with random weights, from 2 to 4 to 8 to 16
    pixels."""
    names = []
    for source, target in pairwise((2, 4, 8, 16)):
        names.append(f"from-{source}")
        network = replace(TINY, source_shape=(source, source, 3), target_shape=(target, target, 3))
        save_checkpoint(random_model(network, dtype=torch.float32), folder / names[-1])
    for name, stages in (("two", names[:2]), ("three", names)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({"format_version": 1,
                                                               "stages": stages}))
    return folder


def random_tokens(config, rows, seed=0):
    """Draw sources [rows, S] and targets [rows, T]."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, config.source_length), (rows, config.target_length)
    return [torch.randint(config.vocabulary, shape, generator=generator) for shape in shapes]


def limits_of(config):
    """Return the limits under which targets of a network reduce to their source."""
    return Limits.of(cell_limits(config.source_shape, config.target_shape, config.vocabulary))


def draft_of(model, noise=0.1, **changes):
    """Return a draft model for a `StepModel`: its own weights but for some noise, in a network that
    may lack some."""
    config = model.model.config
    dtype = next(model.model.parameters()).dtype
    draft = random_model(replace(config, **changes), dtype=dtype)
    draft.load_state_dict(model.model.state_dict(), strict=False)
    generator = torch.Generator().manual_seed(5)
    for weight in draft.parameters():
        weight.add_(noise * weight.std(correction=0) * torch.randn(weight.shape,
                                                                   generator=generator,
                                                                   dtype=dtype))
    return StepModel(draft, model.end_token)


def ngram_rows(model):
    """Return random targets of a model to count n-grams in."""
    return torch.randint(model.vocabulary, (20, model.length),
                         generator=torch.Generator().manual_seed(3))


def ngrams_of(model, order=3):
    """Return counts of `ngram_rows`, by three channels."""
    return count_ngrams(ngram_rows(model).numpy(), NgramTable(order, model.vocabulary, 3), least=1)


def on_native(network, end_token=None, **options):
    """Return the native engine of a network on torch, as a model on torch; options as for
    `NativeEngine`."""
    return ModelOnTorch(NativeEngine(network_of(network), end_token, **options))


def drafted(model, limits=None):
    """Return the proposer of a draft model."""
    return DraftProposer(engine_of(model), limits)


def proposer_for(name, model):
    """Return the registered proposer `name` for a `StepModel`, with what it needs."""
    make = {None: lambda _: (), "draft": lambda m: (engine_of(draft_of(m)),),
            "ngrams": lambda m: (ngrams_of(m),)}
    return PROPOSERS[name](*make[PROPOSERS[name].resource](model))


CHAINS = [name for name, kind in PROPOSERS.items() if not kind.proposes_tree]
"""Proposers of one continuation a step."""


def without_compilers(monkeypatch):
    """Hide the system's compilers and the package ziglang from superres.native.build."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(build, "ziglang", lambda target="": None)
