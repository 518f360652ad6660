"""One reader of JSON: whatever is in a file of settings or rows, it is read or refused in one
line."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from superres.batch.rows import read_rows
from superres.checkpoint import read_config, read_training
from superres.config import (
    Config,
    ModelConfig,
    file_name,
    portable_name,
    reader_of,
    setting,
    without_case,
)
from superres.errors import ConfigError, SuperresError
from superres.system.json_files import parse_json, read_json
from superres.training.recipes import read_recipe
from superres.training.saved_state import SavedState
from superres.training.stage import Stage


def manifest_rows(path):
    with open(path, "rb") as file:
        return list(read_rows(file, path))


READERS = {
    "recipe.json": read_recipe, "config.json": lambda path: read_config(path.parent),
    "training.jsonl": lambda path: read_training(path.parent),
    "state.json": lambda path: read_json(path, SavedState.from_dict, ConfigError,
                                         "choose a new run folder"),
    "manifest.jsonl": manifest_rows,
}
HOSTILE = {
    "lists": b"[" * 100_000, "objects": b'{"a":' * 100_000, "closed": b"[" * 40 + b"]" * 40, "number": b"7",
    "digits": b"1" * 9999, "infinite": b'{"format_version": 1e999, "parts": 1e999, "status": "ok", "step": 1e999}',
    "nan": b'{"parts": NaN}', "twice": b'{"parts": 1, "parts": 2}', "latin": b'{"stages": "\xff"}', "list": b"[7]",
    "types": b'{"stages": {}, "format_version": [], "parts": "", "status": "ok", "input": 7, "output": {}, "step": []}',
    "half": b'{"stages": ', "zeros": bytes(99), "null": b"null", "text": b'"a\\u001b[31mb"',
    "other": b'{"colour": "red"}',
}


FREE = {("training.jsonl", "types"), ("training.jsonl", "other")}  # a history may have any entries


@pytest.mark.parametrize(("name", "kind"),
                         [pair for pair in itertools.product(READERS, HOSTILE) if pair not in FREE])
def test_hostile_json_is_refused_in_one_line_that_names_the_file(name, kind, tmp_path):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(HOSTILE[kind] + b"\n")
    with pytest.raises(SuperresError) as caught:
        READERS[name](path)
    assert path.name in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_every_encoding_of_json_is_read(encoding):
    assert parse_json('{"name": "Grüße"}'.encode(encoding)) == {"name": "Grüße"}


def test_brackets_in_texts_do_not_nest():
    value = ["[" * 100 + '"{\\', {"a]": [r"\"["] * 50}]
    assert parse_json(json.dumps(value).encode()) == value


LONG = {"names": '"{" + ",".join(f\'"{n}":0\' for n in range(200_000)) + \',"199999":0}\'',
        "text": """'["' + "[" * 40 + '","' + '\\\\"' * 200_000"""}


@pytest.mark.parametrize("kind", LONG)
def test_what_is_wrong_with_long_json_is_found_in_linear_time(kind):
    code = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, (20, 20)); text = {LONG[kind]}\n" \
        "from superres.system.json_files import parse_json\ntry: parse_json(text.encode())\n" \
        "except ValueError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith({"names": "the name '199999' occurs twice",
                                   "text": "Unterminated string"}[kind])


@dataclass(frozen=True)
class Inner(Config):
    size: int = setting(1, least=1, most=9)


@dataclass(frozen=True)
class Outer(Config):
    inner: Inner
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] | None = None
    share: float = setting(0.5, least=0, most=1)
    rate: float | tuple[float, ...] = 0.0
    flag: bool = False
    notes: dict[str, list[float]] | None = None


def test_settings_of_settings_are_read_by_their_types():
    values = {"inner": {"size": 2}, "many": [{"size": 3}, {}], "pair": [1, "a"], "share": 1,
              "rate": [1, 2.5], "notes": {"a": [1, 2]}}
    read = Outer.from_dict(values)
    assert read == Outer(Inner(2), (Inner(3), Inner()), (1, "a"), 1, (1, 2.5), False, {"a": [1, 2]})
    assert Outer.from_dict(json.loads(json.dumps(read.to_dict()))) == read


@pytest.mark.parametrize(("values", "message"), [
    ({}, "Outer needs inner"), ({"inner": 7}, "Inner needs an object of settings, not 7"),
    ({"inner": {"size": 10}}, "size must be at most 9, not 10"),
    ({"inner": {"sise": 1}}, "unknown setting sise in Inner"),
    ({"inner": {}, "many": {}}, "many must be a list, not {}"),
    ({"inner": {}, "pair": [1]}, "a list of 2 values, not [1]"),
    ({"inner": {}, "pair": ["1", "a"]}, "pair must be a whole number, not '1'"),
    ({"inner": {}, "share": 1.5}, "share must be a number from 0 to 1, not 1.5"),
    ({"inner": {}, "share": float("nan")}, "not nan"), ({"inner": {}, "share": True}, "not True"),
    ({"inner": {}, "rate": [True]}, "rate must be a number, not True"),
    ({"inner": {}, "flag": 1}, "true or false, not 1"),
    ({"inner": {}, "notes": {"a\n": ["x"]}}, "a in notes must be a number, not 'x'"),
    (7, "an object of settings, not 7"),
])
def test_a_value_of_another_type_is_named(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Outer.from_dict(values)


def test_numbers_of_any_file_fit_into_64_bits():
    with pytest.raises(ConfigError, match="whole number"):
        reader_of(int)("tokens", 2**64)


@pytest.mark.parametrize("name", ["a", "teacher-first", "v1.2", "Grüße", "a b", "console", "com",
                                  "x" * 100])
def test_a_plain_name_is_a_file_name(name):
    assert file_name(name) == name


@pytest.mark.parametrize("name", [
    "", ".", "..", "../evil", "/evil", "a/b", "a\\b", "C:evil", ".hidden", "-option", "a.", " a",
    "a ", "a\0b", "a\nb", "\x1b[31m", "\u202eevil", "\ud800", "NUL", "con.txt", "Com1",
    "LPT9.tar.gz", "a|b", "what?", "x" * 101, "ü" * 51,
])
def test_a_name_that_leads_elsewhere_or_is_no_name_anywhere_is_refused(name):
    text = {"task": "translation", "source_shape": (4,), "target_shape": (4,),
            "aligned_conditioning": False, "numeric_neighbourhood": False, "ordinal_output": False}
    for read in (file_name, lambda name: ModelConfig(**text, languages=("en", name))):
        with pytest.raises(ConfigError, match="is not fit for a file") as caught:
            read(name)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(("name", "fit"), [
    ("Grüße -.x", "Grüße -.x"), ("console", "console"), ("aux.x.png", "_aux.x.png"),
    ("CON .png", "_CON .png"), ("com¹", "_com¹"), ('<a:b>"c|d?e*', "_a_b__c_d_e_"),
    ("a\\b/c", "a_b_c"), ("a\n", "a_"), ("a. ", "a._"),
])
def test_a_name_that_windows_refuses_gets_another(name, fit):
    assert portable_name(name) == fit == portable_name(fit)


@pytest.mark.parametrize(("a", "b", "same"), [("Anna", "aNNA", True), ("e\u0301t", "ÉT", True),
                                              ("a", "b", False)])
def test_names_that_differ_in_case_or_normal_form_alone_are_the_same(a, b, same):
    assert (without_case(a) == without_case(b)) is same


@pytest.mark.parametrize(("name", "value"), [
    ("seed", -1), ("warmup_steps", -1), ("crop_share", 2), ("turned_share", -1),
    ("weight_decay", -1), ("learning_rate", "fast"), ("flip", 1), ("teacher", 7), ("minutes", "1"),
])
def test_impossible_settings_of_training_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name.replace('_', '.')} must be"):
        Stage.from_dict({"steps": 1, name: value})
