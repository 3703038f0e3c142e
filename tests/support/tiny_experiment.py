"""An experiment of no interest but its runner's: short tasks whose numbers depend on their own generator alone."""

import sys
import time
from pathlib import Path

from quernel.paper import Experiment, Section, Verdict
from quernel.paper.reproduction import Reproduction


def tasks(size):
    return [{"n": n, "repetition": k} for n in (3, 5) for k in range(4 if size == "quick" else 8)]


def measure(task, rng):
    time.sleep(0.15)
    return [{"draw": k, "value": rng.standard_normal(), "mean": rng.random(task["n"]).mean()} for k in range(2)]


def present(table, output):
    rows = [[n, *cell.summary("value")[:3]] for (n,), cell in table.groups("n")]
    item = output.save_table({"n": "d", "mean": ".3f", "sd": ".3f", "s.e.": ".3f"}, rows, "tiny", "Means <of> nothing.")
    return Section(["Nothing & less."], [item], [Verdict("The sum is known.", True)])


TINY = Experiment("tiny", "fig.0", "A tiny experiment", present, tasks, measure)


def reproduce(folder, *, seed=0, size="quick", jobs=2, discard=False, listener=lambda *args: None, one=TINY):
    plan = Reproduction(Path(folder), [one], [one], size, seed)
    plan.folder.mkdir(parents=True, exist_ok=True)
    work = plan.open(discard=discard)
    plan.measure(work, jobs=jobs, listener=listener)
    return plan.present(work, ["How it was made."])


if __name__ == "__main__":
    from support.tiny_experiment import reproduce as run  # by the name under which workers find it

    run(sys.argv[1], size="full")
