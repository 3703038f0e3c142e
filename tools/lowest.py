"""Print the declared lower bounds of the dependencies as pins, such as numpy==1.26, one per line: `make test-lowest`.

Arguments are names of optional dependencies to include, such as plots.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def lowest_pins(extras: list[str]) -> list[str]:
    """Return name==version for each dependency of pyproject.toml; a dependency without a lower bound is an error."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    pins = []
    for one in declared:
        found = re.match(r"([\w.-]+(?:\[[\w,]+\])?)>=([\d.]+)", one)
        if found is None:
            raise SystemExit(f"{one!r} in pyproject.toml has no lower bound.")
        pins.append(f"{found[1]}=={found[2]}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest_pins(sys.argv[1:])))
