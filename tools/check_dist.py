"""Check the wheel and the source distribution that `make dist` built: `make check-dist`, or with another Python.

In an empty environment the wheel is installed without extras, fits, and says what its command line needs; with the
extra `app` it runs `quernel demo`. Then the source distribution is unpacked elsewhere, and the tests named in TESTS run
in it against the installed wheel. Prints each command with the end of what it printed; exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FIT = """
import importlib.metadata as installed, sys
import quernel
from quernel.datasets import load_wind
wind = load_wind()
model = quernel.TabularQuantileRegressor(random_state=0).fit(wind.X[::30], wind.y[::30])
print(sys.version.split()[0], quernel.__version__, quernel.__file__)
print(sorted(one.metadata["Name"] for one in installed.distributions()))
print(model.predict_interval(wind.X[:2]).round())
"""
# A sample of each kind: laws, oracles, estimators, encoder, forecasts, model files, commands.
TESTS = [
    "tests/laws/test_losses.py", "tests/laws/test_metrics.py", "tests/laws/test_drawn_laws.py",
    "tests/oracles/test_published.py", "tests/oracles/test_scoringrules.py", "tests/estimators/test_ecosystem.py",
    "tests/conformal/test_prefit.py", "tests/tables/test_encoder.py", "tests/forecasting/test_features.py",
    "tests/test_extras.py", "tests/test_files.py",
]  # fmt: skip


def run(folder: Path, *call: str | Path, expect: int = 0, tail: int = 4) -> None:
    """Print a command, run it in a folder, and print the last lines of its output."""
    words = [str(word) for word in call]
    print("$ " + " ".join("..." if "\n" in word else word for word in words), flush=True)
    ran = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print("\n".join("    " + line for line in ran.stdout.strip().splitlines()[-tail:]), flush=True)
    if ran.returncode != expect:
        sys.exit(f"exit code {ran.returncode}; expected {expect}")


def main() -> None:
    """Check dist/, or the folder that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", nargs="?", type=Path, default=Path("dist"))
    parser.add_argument("--python", default=sys.executable, help="interpreter of the empty environment")
    options = parser.parse_args()
    (wheel,), (source,) = options.dist.resolve().glob("*.whl"), options.dist.resolve().glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, options.python, "-m", "venv", "empty")
        python, quernel = folder / "empty/bin/python", folder / "empty/bin/quernel"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(folder, *pip, wheel)
        run(folder, python, "-c", FIT)
        run(folder, quernel, "demo", expect=1)
        run(folder, *pip, f"{wheel}[app]")
        run(folder, quernel, "demo", "--out", "demo")
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = folder.glob("quernel-*")
        run(folder, *pip, "--upgrade", "pip>=25.1")
        run(unpacked, *pip, "--group", "dev")
        (unpacked / "src").rename(unpacked / "not_imported")  # the tests are to see the wheel
        run(unpacked, python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS)


if __name__ == "__main__":
    main()
