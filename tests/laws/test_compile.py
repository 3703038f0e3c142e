"""Compiled functions need no directory to write to, and Ctrl-C does not break numba."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quernel

# The package on the path is the copy. Several threads ask for its compiled cosine at once; its fit uses the compiled
# loops of the solver.
FIT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np, quernel
from quernel.features.random import COMPILE_FROM, RandomFeatures
assert quernel.__file__.startswith({package!r})
rng = np.random.default_rng(0)
X = rng.random((COMPILE_FROM // 10, 2))
features = RandomFeatures("gaussian", 10, random_state=0).fit(X)
with ThreadPoolExecutor(8) as pool:
    together = [pool.submit(features.transform, X) for _ in range(8)]
    expected = features.transform(X)
    assert all(np.array_equal(future.result(), expected) for future in together)
assert "quernel.kernels.numba_loops" in sys.modules
X = rng.random((4000, 2))
y = X[:, 0] + rng.standard_normal(4000)
model = quernel.KernelQuantileRegressor([0.3, 0.7], bandwidth="auto", n_components=50, alpha=1e-4, random_state=0)
model.fit(X, y)
assert model.duality_gap_.max() <= 1e-6
assert "quernel.objective.numba_kernels" in sys.modules
"""
# The compiled cosine alone; {change} is what happens to the cache between its import and its first use.
COSINE = """
import numpy as np, os, pathlib, shutil
from quernel.kernels import numba_loops as cosine
{change}
out = np.zeros((1, 1))
cosine.scaled_cosine(out, np.zeros(1), np.ones(1), out)
assert abs(out - 1).max() < 1e-12
"""


def run(code, **environment):
    """Run the code in a fresh process, in which `environment` replaces some variables (None removes one)."""
    variables = {name: value for name, value in (os.environ | environment).items() if value is not None}
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cache", ["unset", "unwritable"])
def test_an_installation_without_a_place_to_write(cache, tmp_path):
    """Files stand where the directories for a cache would be, which stops the administrator, too."""
    shutil.copytree(Path(quernel.__file__).parent, tmp_path / "quernel", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [path for path in (tmp_path / "quernel").rglob("*") if path.is_dir()]:
        (folder / "__pycache__").write_text("")
    (tmp_path / "file").write_text("")
    nowhere = str(tmp_path / "file" / "folder")
    run(
        FIT.format(package=str(tmp_path)),
        PYTHONPATH=str(tmp_path),
        NUMBA_CACHE_DIR=None if cache == "unset" else nowhere,
        HOME=nowhere,
        XDG_CACHE_HOME=nowhere,
        TMPDIR=None,
    )


def test_a_cache_that_cannot_be_written_any_more(tmp_path):
    """The directory is there when functions are declared, and is none when they are compiled."""
    folder = tmp_path / "cache"
    change = f"folder = {str(folder)!r}; shutil.rmtree(folder); pathlib.Path(folder).write_text('')"
    run(COSINE.format(change=change), NUMBA_CACHE_DIR=str(folder))


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_damaged_cache_files_are_compiled_again(ending, tmp_path):
    run(COSINE.format(change=""), NUMBA_CACHE_DIR=str(tmp_path))
    files = list(tmp_path.rglob(f"*.{ending}"))
    assert files
    for path in files:
        path.write_bytes(path.read_bytes()[:20])
    run(COSINE.format(change=""), NUMBA_CACHE_DIR=str(tmp_path))


# Ctrl-C at the {point}-th module that is looked for while numba is imported, or registry that its compiler installs.
# The signal goes to the process; what was interrupted must work when it is tried again.
INTERRUPTED = """
import os, signal, sys
import numpy as np
from quernel import KernelQuantileRegressor
from quernel.features.random import COMPILE_FROM, RandomFeatures

class Interrupt:
    count = 0

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numba", "llvmlite"):
            Interrupt.count += 1
            if Interrupt.count == {point}:
                os.kill(os.getpid(), signal.SIGINT)

def install_and_interrupt(self, registry, install):
    Interrupt().find_spec("numba")
    return install(self, registry)

rng = np.random.default_rng(0)
X = rng.random((COMPILE_FROM // 20 + 1, 2))
y = X[:, 0] + rng.standard_normal(len(X))

def use():
    Phi = RandomFeatures("gaussian", 20, random_state=0).fit(X).transform(X)
    model = KernelQuantileRegressor([0.3, 0.7], bandwidth="auto", n_components=20, alpha=1e-3, random_state=0)
    model.fit(X[:3000], y[:3000])
    assert model.duality_gap_.max() <= 1e-6
    return Phi

if {compiling}:
    import numba.core.base, quernel.objective.numba_kernels
    install = numba.core.base.BaseContext.install_registry
    numba.core.base.BaseContext.install_registry = lambda self, new: install_and_interrupt(self, new, install)
else:
    assert "numba" not in sys.modules
    sys.meta_path.insert(0, Interrupt())
try:
    use()
except KeyboardInterrupt:
    pass
else:
    raise AssertionError("not interrupted")
use()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill ends the process there")
@pytest.mark.parametrize(("point", "compiling"), [(2, 0), (20, 0), (60, 0), (120, 0), (200, 0), (1, 1), (12, 1)])
def test_an_interrupt_while_numba_is_imported_or_compiles_leaves_it_whole(point, compiling):
    run(INTERRUPTED.format(point=point, compiling=compiling))


@pytest.mark.parametrize("watched", [True, False])
def test_a_person_who_waits_for_the_compiler_is_told(watched, monkeypatch, capsys):
    from quernel import _compile

    monkeypatch.setattr(sys.stderr, "isatty", lambda: watched)
    _compile._tell_once.cache_clear()
    _compile._tell_once()
    _compile._tell_once()
    assert capsys.readouterr().err.count("compiling numerical code, once per installation") == watched
