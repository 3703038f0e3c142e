"""The library works without the packages of the command line, and says what to install where it needs one."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXTRAS = ("typer", "rich", "duckdb", "pyarrow", "matplotlib", "pandas", "polars", "dask", "distributed", "onnx")
WITHOUT = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
"""


def run_without_extras(code, cwd):
    call = [sys.executable, "-c", WITHOUT + code]
    return subprocess.run(call, cwd=cwd, capture_output=True, text=True, check=False)


def advised(text):
    """Names of the packages that a message says to install."""
    return re.search(r"pip install ([^`\n]+)", text)[1].replace("'", "").split()


def test_the_library_fits_saves_and_loads_without_them(tmp_path):
    code = """
import numpy as np, quernel
from quernel.datasets import load_wind
wind = load_wind()
model = quernel.KernelQuantileRegressor([0.1, 0.9], n_components=20, random_state=0).fit(wind.X[:200], wind.y[:200])
rng = np.random.default_rng(0)
columns = rng.random(60).tolist(), ["north", "south", None] * 20, ["2024-05-01", "2024-06-01"] * 30
table = np.array(columns, dtype=object).T
mixed = quernel.KernelQuantileRegressor([0.5], n_components=20, random_state=0).fit(table, rng.random(60))
for fitted, X in ((model, wind.X[:5]), (mixed, table)):
    quernel.save(fitted, "m", overwrite=True)
    assert np.array_equal(quernel.load("m").predict(X), fitted.predict(X))
print("fine")
"""
    ran = run_without_extras(code, tmp_path)
    assert ran.stdout == "fine\n", ran.stderr


def test_importing_the_library_imports_none_of_them():
    """Scikit-learn looks for pandas and rich itself; nothing of ours does."""
    code = """
import sys, traceback
def first_of_ours(name):
    frames = [frame.filename for frame in traceback.extract_stack() if "importlib" not in frame.filename]
    return "quernel" in frames[-3].replace("\\\\", "/").split("site-packages")[-1]
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in EXTRAS and first_of_ours(name):
            print(name)
sys.meta_path.insert(0, Watch())
import quernel
""".replace("EXTRAS", repr(EXTRAS))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == ""


@pytest.mark.parametrize("arguments", [["--version"], ["fit", "a.csv", "--target", "y", "--model", "m"]])
def test_the_command_line_says_in_one_line_what_to_install(tmp_path, arguments):
    ran = run_without_extras(
        f"sys.argv = ['quernel', *{arguments}]; from quernel.__main__ import main; main()", tmp_path
    )
    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    declared = [re.match(r"[\w-]+", one)[0] for one in project["optional-dependencies"]["app"]]
    assert advised(ran.stderr) == declared


@pytest.mark.parametrize(
    ("code", "packages"),
    [
        ("from quernel.data import ParquetRows; ParquetRows('a.parquet', 'y')", ["pyarrow"]),
        ("import quernel; quernel.make_report(None, [[1.0]], [2.0])", ["pyarrow"]),
        ("from quernel.plots.style import require_matplotlib; require_matplotlib()", ["matplotlib"]),
        ("from quernel.persistence.onnx_graph import import_onnx; import_onnx()", ["onnx"]),
        ("from quernel.datasets import load_wind; load_wind(as_frame=True)", ["pandas"]),
    ],
)
def test_what_needs_a_package_names_it(tmp_path, code, packages):
    ran = run_without_extras(code, tmp_path)
    assert "ImportError" in ran.stderr
    assert advised(ran.stderr.splitlines()[-1].split(", or call")[0])[: len(packages)] == packages


def test_importing_quernel_loads_nothing_else_and_every_name_is_there():
    code = (
        "import sys, quernel; heavy = {'sklearn', 'numpy', 'scipy', 'numba'} & set(sys.modules); print(sorted(heavy)); "
    )
    code += (
        "print([name for name in quernel.__all__ if getattr(quernel, name, None) is None], quernel.metrics.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["[]", "[] quernel.metrics"]
