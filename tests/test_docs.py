"""What the README and the docstrings show is what happens."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import quernel.estimators.quantile
import quernel.kernels.spectral
import quernel.selection.quantile
from quernel import theory
from quernel.estimators import defaults

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
THEORY = (ROOT / "docs" / "theory.md").read_text()


def test_the_readme_example_runs_and_says_the_truth(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len([line for line in example.splitlines() if line.strip()]) <= 16
    namespace = {}
    exec(compile(example, "README.md", "exec"), namespace)
    assert 0.87 < float(capsys.readouterr().out.splitlines()[0]) < 0.93
    assert np.all(namespace["model"].duality_gap_ <= 1e-6)


def test_the_readme_states_the_defaults():
    for value in (f"{defaults.N_COMPONENTS} random features", f"{defaults.ALPHA:.0e}".replace("e-0", "e-")):
        assert value in README, value
    assert f"{defaults.BANDWIDTH} of the median distance" in README


def test_the_theory_example_prints_what_the_page_shows(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", THEORY, re.S)
    (shown,) = re.findall(r"```text\n(.*?)```", THEORY, re.S)
    exec(compile(example, "theory.md", "exec"), {})
    printed, shown = capsys.readouterr().out.split(), shown.split()
    assert len(printed) == len(shown) == 30
    for now, then in zip(printed, shown, strict=True):
        decimals = re.fullmatch(r"\d+\.(\d+),?", then)
        if decimals:  # the last digit may differ from one linear algebra library to another
            last = 10.0 ** -len(decimals[1])
            assert float(now.strip(",")) == pytest.approx(float(then.strip(",")), rel=0, abs=1.1 * last)
        else:
            assert now == then


def test_the_tuning_example_runs_and_says_the_truth(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tuning.md").read_text(), re.S)
    namespace = {}
    exec(compile(example, "tuning.md", "exec"), namespace)
    lines = capsys.readouterr().out.splitlines()
    usual, learned = map(float, lines[0].split())
    assert learned > usual + 0.1
    width = namespace["learned"].bandwidth_ / namespace["X"][:400].std(axis=0)
    assert width[2:].min() > 3 * width[:2].max()
    assert float(lines[-1].split()[-1]) > usual + 0.1


def test_the_theory_page_names_functions_that_exist():
    table = [line for line in THEORY.splitlines() if line.startswith("| ")]
    names = {name for line in table for name in re.findall(r"`(\w+)(?:\(.*?\))?`", line)}
    assert len(names) > 15
    assert names <= set(dir(theory))


@pytest.mark.parametrize("name", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(name):
    assert name.startswith("http") or (ROOT / name).exists(), name


@pytest.mark.parametrize("module", [quernel.estimators.quantile, quernel.kernels.spectral, quernel.selection.quantile])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 3
    assert failed == 0


@pytest.mark.parametrize("module", ["rates", "dimensions", "conditions", "decomposition", "planning"])
def test_docstring_examples_of_the_theory(module):
    failed, tried = doctest.testmod(
        importlib.import_module(f"quernel.theory.{module}"), extraglobs={"SplinePopulation": theory.SplinePopulation}
    )
    assert tried > 0
    assert failed == 0
