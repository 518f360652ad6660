"""The npm package of the engine in a browser: its types are those of its code, and its release is
that of superres."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import superres
from superres.native import abi
from superres.pipeline.browser_export import SCRIPTS
from superres.web.card import NOTE

ROOT = Path(abi.__file__).parents[2]
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
TYPEDEF = re.compile(r"@typedef \{object\} (\w+)(.*?)(?=@typedef|\*/)", re.DOTALL)
PROPERTY = re.compile(r"@property \{(.+)\} (\[?)(\w+)")
BODY = re.compile(r"^(?:export )?(?:interface|class) (\w+)[^\n]*\{[^\n]*\n(.*?)^\}",
                  re.DOTALL | re.MULTILINE)
METHOD = re.compile(r"^  (?:async )?\*?(\w+)\((.*)\) \{$", re.MULTILINE)
RETURNING = re.compile(r"@returns (?:(?!\*/).)*\*/\n  (?:async )?\*?(\w+)\(", re.DOTALL)
COMMENT = re.compile(r" */\*\*.*?\*/\n", re.DOTALL)


def read(name):
    return (SCRIPTS / name).read_text(encoding="utf-8")


def squeezed(text):
    return re.sub(r"\s", "", text)


def count(parameters):
    return len(re.sub(r"\{.*?\}", "", parameters).split(",")) if parameters else 0


def bodies(name):
    """Return the bodies of the interfaces and classes of a file, without comments."""
    return dict(BODY.findall(COMMENT.sub("", read(name))))


@pytest.mark.parametrize("name", ["superres", "element"])
def test_the_types_name_what_the_code_exports(name):
    exported = set(EXPORT.findall(read(f"{name}.js")))
    assert exported == set(EXPORT.findall(read(f"{name}.d.ts")))
    assert exported >= {"superres": {"load", "open", "marked"}, "element": {"SuperRes"}}[name]


def test_the_types_have_the_properties_that_the_code_describes():
    described = {kind: {(squeezed(types), name, bool(optional))
                        for types, optional, name in PROPERTY.findall(text)}
                 for kind, text in TYPEDEF.findall(read("superres.js"))}
    assert {"Way", "Stage", "Picture"} <= described.keys()
    declared = bodies("superres.d.ts")
    for kind, properties in described.items():
        assert {(squeezed(types), name, bool(optional)) for name, optional, types in re.findall(
            r"^  (\w+)(\??): (.+);$", declared[kind], re.MULTILINE)} == properties, kind


@pytest.mark.parametrize(("file", "kind"), [("superres", "Engine"), ("superres", "Core"),
                                            ("element", "SuperRes")])
def test_the_types_have_the_methods_of_the_classes(file, kind):
    """They may leave out a method of which the code does not say what it returns."""
    code = dict(BODY.findall(read(f"{file}.js")))[kind]
    declared = {name: count(given) for name, given in re.findall(
        r"^  (\w+)\((.*)\): .+;$", bodies(f"{file}.d.ts")[kind], re.MULTILINE)}
    methods = {name: count(given) for name, given in METHOD.findall(code)}
    assert declared.items() <= methods.items()
    assert set() < {*RETURNING.findall(code)} <= declared.keys()
    for name in re.findall(r"^  (?:readonly )?(\w+):", bodies(f"{file}.d.ts")[kind],
                           re.MULTILINE):
        assert re.search(rf"get {name}\(\)|assign\(this, .*\b{name}\b|this\.{name} = ",
                         code), name


def test_the_package_is_of_this_release_and_installs_nothing_else():
    package = json.loads(read("package.json"))
    assert package["version"] == superres.__version__
    assert f'export const VERSION = "{superres.__version__}";' in read("superres.js")
    assert not {"dependencies", "peerDependencies", "optionalDependencies",
                "scripts"} & package.keys()
    assert package["license"] == "Apache-2.0"
    assert read("LICENSE") == (ROOT / "LICENSE").read_text(encoding="utf-8")
    for entry in package["exports"].values():
        for path in entry.values() if isinstance(entry, dict) else [entry]:
            assert (SCRIPTS / path).is_file(), path


def test_the_note_of_pictures_is_that_of_the_page():
    assert f'export const NOTE = "{NOTE["note"]}";' in read("superres.js")


def test_the_element_describes_its_attributes():
    """Those of README.md are those that it observes."""
    observed = set(re.findall(r"(\w+): \"|\"(\w+)\"", "".join(
        re.findall(r"^const (?:NUMBERS|WORDS).*$", read("element.js"), re.MULTILINE))))
    names = {first or second for first, second in observed} - {"topK", "blockSize"}
    described = read("README.md").partition("Its attributes are")[2].partition("Its events")[0]
    assert {*re.findall(r"`(\w+)`", described)} == names | {"alt"}
