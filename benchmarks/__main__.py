"""`python -m benchmarks`: measure, print, and write docs/benchmarks.md and benchmarks/results.json."""

import argparse
import json
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.page import page
from benchmarks.speed import LINES

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", help="measure the lines whose name contains this")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    results = []
    for line in LINES:
        if options.only and options.only not in line.__name__:
            continue
        for row in line():
            results.append(row)
            print(f"{row['what']:<86} {row['ratio']:>9.3g}  {row['unit']:<18} goal {row['goal']}", flush=True)
    if not options.no_write and not options.only:
        machine = describe()
        (HERE / "results.json").write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
        (HERE.parent / "docs" / "benchmarks.md").write_text(page(machine, results))


if __name__ == "__main__":
    main()
