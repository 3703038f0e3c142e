"""What the README and the docstrings show is what happens."""

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import quernel.estimators.classifier
import quernel.estimators.quantile
import quernel.estimators.regressor
import quernel.kernels.spectral
from quernel import theory
from quernel.estimators import defaults
from quernel.losses import LOSSES as LOSS_REGISTRY

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
THEORY = (ROOT / "docs" / "theory.md").read_text()
LOSSES = (ROOT / "docs" / "losses.md").read_text()


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
    assert printed_as_shown(THEORY, capsys) == 40


def test_the_examples_of_the_losses_print_what_the_page_shows(capsys):
    assert printed_as_shown(LOSSES, capsys) > 15
    shown = re.sub(r"(```text\nsquared) 1.5", r"\1 0.5", LOSSES)
    assert shown != LOSSES
    with pytest.raises(AssertionError):
        printed_as_shown(shown, capsys)


def printed_as_shown(page, capsys):
    """Run the examples of a page one after the other; how many words did they print, all as the page shows them?"""
    examples, shown = re.findall(r"```python\n(.*?)```", page, re.S), re.findall(r"```text\n(.*?)```", page, re.S)
    assert len(examples) == len(shown)
    namespace, words = {}, 0
    for example, then_all in zip(examples, shown, strict=True):
        exec(compile(example, "page.md", "exec"), namespace)
        now_all, then_all = capsys.readouterr().out.split(), then_all.split()
        assert len(now_all) == len(then_all)
        words += len(now_all)
        for now, then in zip(now_all, then_all, strict=True):
            decimals = re.fullmatch(r"\d+\.(\d+),?", then)
            if decimals:  # the last digit may differ from one linear algebra library to another
                last = 10.0 ** -len(decimals[1])
                assert float(now.strip(",")) == pytest.approx(float(then.strip(",")), rel=0, abs=1.1 * last)
            else:
                assert now == then
    return words


def test_the_page_of_losses_has_every_loss_and_its_default_length():
    for name, loss in LOSS_REGISTRY.items():
        assert f'`"{name}"`, `{loss.__name__}(' in LOSSES
    assert defaults.LENGTH == {"huber": 0.5, "logcosh": 0.5, "epsilon_insensitive": 0.1, "smoothed_pinball": 0.1}
    assert "threshold and the scale of log-cosh are 0.5" in LOSSES
    assert "width of the smoothed pinball loss 0.1" in LOSSES


def test_the_theory_page_names_functions_that_exist():
    table = [line for line in THEORY.splitlines() if line.startswith("| ")]
    names = {name for line in table for name in re.findall(r"`(\w+)(?:\(.*?\))?`", line)}
    assert len(names) > 15
    assert names <= set(dir(theory))


@pytest.mark.parametrize("name", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(name):
    assert name.startswith("http") or (ROOT / name).exists(), name


@pytest.mark.parametrize(
    "module",
    [
        quernel.estimators.quantile,
        quernel.estimators.regressor,
        quernel.estimators.classifier,
        quernel.kernels.spectral,
    ],
)
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 3
    assert failed == 0


@pytest.mark.parametrize("module", ["rates", "dimensions", "conditions", "decomposition", "planning", "laws", "curves"])
def test_docstring_examples_of_the_theory(module):
    failed, tried = doctest.testmod(
        importlib.import_module(f"quernel.theory.{module}"), extraglobs={"SplinePopulation": theory.SplinePopulation}
    )
    assert tried > 0
    assert failed == 0
