"""Files of settings and of rows, and names in them: each is read, or refused in one line."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import pytest

from superres.batch.rows import read_rows
from superres.checkpoint import read_checkpoint, read_training
from superres.config import ModelConfig, file_name, portable_name, without_case
from superres.errors import ConfigError, SuperresError
from superres.system.json_files import parse_json, read_json
from superres.training.recipes import read_recipe
from superres.training.saved_state import SavedState
from tests.config.helpers import refusal


def manifest_rows(path):
    with open(path, "rb") as file:
        return list(read_rows(file, path))


READERS = {
    "recipe.json": read_recipe, "config.json": lambda path: read_checkpoint(path.parent),
    "training.jsonl": lambda path: read_training(path.parent),
    "state.json": lambda path: read_json(path, SavedState.from_dict, ConfigError,
                                         "choose a new run folder"),
    "manifest.jsonl": manifest_rows,
}
HOSTILE = {
    "lists": b"[" * 100_000, "objects": b'{"a":' * 100_000, "closed": b"[" * 40 + b"]" * 40,
    "number": b"7", "digits": b"1" * 9999, "nan": b'{"parts": NaN}',
    "infinite": b'{"format_version": 1e999, "parts": 1e999, "status": "ok", "step": 1e999}',
    "twice": b'{"parts": 1, "parts": 2}', "latin": b'{"stages": "\xff"}', "list": b"[7]",
    "types": b'{"stages": {}, "format_version": [], "parts": "", "status": "ok", "input": 7, '
    b'"output": {}, "step": []}',
    "half": b'{"stages": ', "zeros": bytes(99), "null": b"null", "text": b'"a\\u001b[31mb"',
    "other": b'{"colour": "red"}', "large": b" " * 2**25,
    "long": b'{"format_version": ' + b"1" * 999 + b', "model": {}}',
    "task": b'{"format_version": 1, "model": {"task": ["faces"]}}',
    "name": b'{"format_version": 1, "model": {"\\u001b[31m\\n": 1}}',
    "half a character": b'{"format_version": 1, "model": {"task": "\\ud800"}}',
}
FREE = {("manifest.jsonl", "large"), ("config.json", "name"), ("config.json", "half a character"),
        *(("training.jsonl", kind)
          for kind in ("types", "other", "task", "name", "half a character", "long", "large"))}
"""What may stand in a file: a history has any entries, empty lines count for nothing, and a network
is refused when it is built."""


@pytest.mark.parametrize(("name", "kind"),
                         [pair for pair in itertools.product(READERS, HOSTILE) if pair not in FREE])
def test_hostile_json_is_refused_in_one_line_that_names_the_file(name, kind, tmp_path):
    (tmp_path / name).write_bytes(HOSTILE[kind] + b"\n")
    assert name in refusal(READERS[name], tmp_path / name, error=SuperresError)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_every_encoding_of_json_is_read_and_brackets_in_texts_do_not_nest(encoding):
    value = ["Grüße", "[" * 100 + '"{\\', {"a]": [r"\"["] * 50}]
    assert parse_json(json.dumps(value, ensure_ascii=False).encode(encoding)) == value


LONG = {
    "the name '199999' occurs twice":
        '"{" + ",".join(f\'"{n}":0\' for n in range(200_000)) + \',"199999":0}\'',
    "Unterminated string": """'["' + "[" * 40 + '","' + '\\\\"' * 200_000""",
}


@pytest.mark.parametrize("message", LONG)
def test_what_is_wrong_with_long_json_is_found_in_linear_time(message):
    code = ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
            f"text = {LONG[message]}\n"
            "from superres.system.json_files import parse_json\ntry: parse_json(text.encode())\n"
            "except ValueError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(message)


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
        assert "is not fit for a file" in refusal(read, name, error=ConfigError)


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
