"""What the README and the docstrings show is what happens."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import quernel.estimators.quantile
import quernel.kernels.spectral
from quernel.estimators import defaults

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


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


@pytest.mark.parametrize("name", re.findall(r"\]\(([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(name):
    assert name.startswith("http") or (ROOT / name).exists(), name


@pytest.mark.parametrize("module", [quernel.estimators.quantile, quernel.kernels.spectral])
def test_docstring_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried > 3
    assert failed == 0
