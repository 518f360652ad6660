"""How much each room may hold: lines of code by room, lines by file and by function."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"^\| `([\w/.]+)` \| ([\d,]+) \|", re.MULTILINE)
BUDGETS = {room: int(lines.replace(",", "")) for room, lines in TABLE.findall(
    (ROOT / "docs" / "architecture.md").read_text().partition("## Budgets")[2])}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER}
FILE_LINES, FUNCTION_LINES = 400, 40
LONG_FILES = {
    "superres/gpu/kernel.py": 487,
    "superres/pipeline/upscaler.py": 439,
    "tests/batch/test_parts.py": 409,
    "tests/gpu/test_triton.py": 487,
    "tests/pipeline/test_upscaler.py": 418,
    "tests/proofs/test_all_settings.py": 463,
    "tests/proofs/test_native.py": 502,
    "tests/survey/test_cli.py": 500,
}
"""Files that have more lines, and how many; the list only shrinks."""
LONG_FUNCTIONS = {
    "superres/cli/upscale.py: upscale": 63,
    "superres/decoding/reference.py: decode": 54,
    "superres/gpu/kernel.py: attend": 41,
    "superres/gpu/kernel.py: decode": 180,
    "superres/gpu/kernel.py: propose": 91,
    "tests/batch/test_unpacking.py: hostile": 43,
    "tests/evaluation/test_tables.py: test_one_command_trains_the_ladder_and_measures_it": 50,
    "tests/nn/helpers.py: check_steps": 42,
    "tests/nn/helpers.py: check_tree_steps": 43,
    "tests/system/test_threads.py: test_every_entry_works_in_a_forked_child": 43,
    "tests/training/test_data.py: test_a_batch_is_what_its_random_numbers_say": 41,
    "tests/training/test_published_schedules.py: test_each_stage_is_stopped_and_ends": 49,
}
"""Functions that have more lines without their docstring, and how many; the list only shrinks."""


def python_files(room):
    return sorted((ROOT / room).rglob("*.py"))


def docstrings(tree):
    """Yield the docstrings' nodes of a module."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (isinstance(body, list) and body and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)):
            yield body[0]


def code_lines(path):
    """Count the lines of code in a file: no docstring, no comment, no blank line."""
    if path.suffix != ".py":
        text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        return sum(bool(re.sub(r"//.*", "", line).strip()) for line in text.splitlines())
    text, lines = path.read_text(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(ast.parse(text)):
        lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def files_of(room):
    if room == "superres":
        return sorted((ROOT / room).glob("*.py"))
    if room.endswith("cpp"):
        return [path for path in (ROOT / room).rglob("*") if path.suffix in (".h", ".cpp")]
    return python_files(room)


@pytest.mark.parametrize("room", BUDGETS)
def test_a_room_keeps_its_budget(room):
    lines = sum(map(code_lines, files_of(room)))
    assert lines <= BUDGETS[room], (f"{room} has {lines} lines of code, more than its budget in "
                                    "docs/architecture.md; take something out, or say there why "
                                    "it grew")


def test_every_room_has_a_budget():
    packages = {path.parent.relative_to(ROOT).as_posix()
                for path in (ROOT / "superres").glob("*/__init__.py")}
    assert packages <= BUDGETS.keys()
    assert {"superres", "superres/native/cpp", "scripts", "tests"} <= BUDGETS.keys()


def tracked_files():
    for room in ("superres", "scripts", "tests"):
        yield from python_files(room)


def assert_listed(lengths, most, exceptions):
    """Assert that what is longer than `most` is listed, no longer than there, and nothing else."""
    assert {name: lines for name, lines in lengths.items()
            if lines > exceptions.get(name, most)} == {}
    assert exceptions.keys() <= {name for name, lines in lengths.items() if lines > most}


def test_no_file_is_too_long():
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text().splitlines())
               for path in tracked_files()}
    assert_listed(lengths, FILE_LINES, LONG_FILES)


def functions_of(path):
    """Yield the name and the number of lines of each function, without its docstring."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            document = sum(each.end_lineno - each.lineno + 1 for each in docstrings(node)
                           if each is node.body[0])
            yield node.name, node.end_lineno - node.lineno + 1 - document


def test_no_function_is_too_long():
    lengths = {f"{path.relative_to(ROOT).as_posix()}: {name}": lines
               for path in tracked_files() for name, lines in functions_of(path)}
    assert_listed(lengths, FUNCTION_LINES, LONG_FUNCTIONS)


def test_lines_of_code_leave_out_docstrings_comments_and_blank_lines(tmp_path):
    path = tmp_path / "example.py"
    path.write_text('"""What it is.\n\nMore.\n"""\n\n# Why.\nx = """a\nb"""  # it\n\n\n'
                    'def f():\n    """Do it."""\n    return (x,\n            x)\n')
    assert code_lines(path) == 5
    (tmp_path / "example.h").write_text("// What.\n\n/* Why\n   so. */\nint x;  // it\n")
    assert code_lines(tmp_path / "example.h") == 1
