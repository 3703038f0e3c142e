"""tools/house.py counts what it says it counts: on a small package whose numbers are known, and on this one."""

import ast
import json
import sys
from pathlib import Path

import pytest
from tools import house

import quernel

MODULES = {
    "quernel.a": '''"""Docstring
of two lines."""

# A comment.
from quernel import b
from quernel.c import compute

__all__ = ["Public"]


class Public:
    def __init__(self, a, b, c, d, e, f, g, h):
        self.all = (a, b, c, d, e, f, g, h)  # not a line of its own


class Hidden:
    def __init__(self, a, b, c, d, e, f, g, *, h):
        """What a caller gets."""
        self.all = (
            a, b, c, d, e, f, g, h
        )
''',
    "quernel.b": "import quernel.c\n\n\ndef seven(a, b, c, d, e, f, g): ...\n",
    "quernel.c": "@njit\ndef compute(a, b, c, d, e, f, g, h):\n    return a\n",
}


@pytest.fixture
def trees():
    return {name: ast.parse(text) for name, text in MODULES.items()}


def test_lines_are_code_or_explain_or_are_blank():
    assert house.count_lines(MODULES["quernel.a"]) == {"lines": 21, "explaining": 4, "blank": 6, "code": 11}


def test_a_module_has_the_importers_that_name_it(trees):
    assert house.importers(trees) == {"quernel.b": {"quernel.a"}, "quernel.c": {"quernel.a", "quernel.b"}}


def test_fragments_are_modules_with_one_importer_and_functions_with_many_arguments(trees):
    assert house.fragments(trees) == ["   4 lines: quernel.b, of quernel.a", "   8 arguments: quernel.a.__init__"]


def test_bodies_are_without_docstrings_and_compiled_functions_are_left_out(trees):
    assert [house.body_length(node) for tree in trees.values() for node in house.functions(tree)] == [1, 3, 1]


def test_constructors_of_public_classes_may_have_many_arguments(trees):
    every = [node for tree in trees.values() for node in house.functions(tree)]
    assert [house.n_arguments(node) for node in every] == [8, 8, 7]
    assert [house.n_arguments(node) for node in house.internal_functions(trees)] == [8, 7]


def test_mypy_covers_the_packages_it_is_given_but_for_overrides():
    lines = {"quernel.losses.base": 30, "quernel.losses": 10, "quernel.lossesque": 60}
    assert house.checked_by_mypy({"packages": ["quernel.losses"]}, lines) == 0.4
    assert house.checked_by_mypy({"packages": ["quernel"]}, lines) == 1
    ignored = {"packages": ["quernel"], "overrides": [{"module": "quernel.losses.base", "ignore_errors": True}]}
    assert house.checked_by_mypy(ignored, lines) == 0.7


def test_a_walk_has_the_files_whose_functions_ran():
    loss = quernel.losses.Pinball([0.5])
    file = Path(type(loss).value.__code__.co_filename)
    assert house.walk(lambda: loss.value([[1.0]])) == [f"losses/{file.name}"]
    assert house.walk(lambda: None) == []


def test_a_command_that_fails_is_no_walk(tmp_path):
    with pytest.raises(RuntimeError, match=r"quernel fit .* failed: Error: "):
        house._run(["quernel", "fit", str(tmp_path / "none.csv"), "--target", "y", "--model", str(tmp_path / "m")])


def test_before_and_after_are_a_table(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        house, "trace_walks", lambda: {"fit": ["_a.py", "metrics.py", "losses/base.py", "losses/pinball.py"]}
    )
    monkeypatch.setattr(sys, "argv", ["house.py", "--json"])
    house.main()
    found = json.loads(capsys.readouterr().out)["numbers"]
    assert found["files"] == len(list(Path(quernel.__file__).parent.rglob("*.py")))
    assert found["files (rooms) of fit"] == "4 (2)"
    assert 0 <= found["functions with more than 7 arguments, internal"] < found["functions with more than 7 arguments"]
    (tmp_path / "before.json").write_text(
        json.dumps({"numbers": {"files": 1234, "gone": 0.5}, "walks": {"fit": ["_b.py"]}})
    )
    monkeypatch.setattr(house, "measure", lambda *_: found)
    monkeypatch.setattr(sys, "argv", ["house.py", "--against", str(tmp_path / "before.json")])
    house.main()
    lines = capsys.readouterr().out.splitlines()
    assert f"| files | 1,234 | {found['files']} |" in lines
    assert f"| code lines | - | {found['code lines']:,} |" in lines
    assert "| files (rooms) of fit | 1 (0) | 4 (2) |" in lines
    assert lines[-1] == "| gone | 0.5 | - |"
