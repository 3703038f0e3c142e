"""`python -m benchmarks`: measure, print, and write docs/benchmarks.md and benchmarks/results.json."""

import argparse
import json
from pathlib import Path

from benchmarks import comparisons, family, guards, peers, speed
from benchmarks.page import format_ratio, render_page
from benchmarks.residuals import RESULTS as RESIDUALS
from quernel.bench import describe_machine

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", metavar="NAME", help="only the lines, comparisons or systems whose name contains this"
    )
    parser.add_argument("--systems", action="store_true", help="only the comparison with other systems")
    parser.add_argument("--goals", action="store_true", help="only the lines that have a goal")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    kept = json.loads((HERE / "results.json").read_text()) if (HERE / "results.json").exists() else {}
    results, systems = kept.get("results", []), kept.get("systems", [])
    if not options.systems:
        results = _measure_goals(options.only)
    if not options.goals:
        systems = list(comparisons.run_comparisons(options.only))
    if not options.no_write and not options.only:
        machine = describe_machine()
        everything = {"machine": machine, "results": results, "systems": systems}
        (HERE / "results.json").write_text(json.dumps(everything, indent=1) + "\n")
        residuals = json.loads(RESIDUALS.read_text())
        (HERE.parent / "docs" / "benchmarks.md").write_text(render_page(machine, results, systems, residuals))


def _measure_goals(only: str | None) -> list[dict]:
    results = []
    for line in (*speed.LINES, *peers.LINES, *family.LINES, *guards.LINES):
        if only and only not in line.__name__:
            continue
        for row in line():
            results.append(row)
            print(f"{row['what']:<86} {format_ratio(row):>26}  goal {row['goal']}", flush=True)
    return results


if __name__ == "__main__":
    main()
