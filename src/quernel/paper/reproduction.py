"""A whole reproduction in one folder: results, tidy tables, figures, the page, and the summary worth keeping."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quernel import __version__
from quernel.paper.experiment import NEWTON, Experiment, Size, Table, Task
from quernel.paper.holdout_fit import ADMM_MAX_ITER, GapStats, merge_gap_stats
from quernel.paper.output import OutputFolder
from quernel.paper.page import Chapter, render_page
from quernel.paper.results import Results, key, stamp, write_atomic
from quernel.paper.runner import Listener, hash_content, run

# Its presence says that a folder is ours to write into.
MARKER = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """Some experiments at one size and seed; `known` are all there are, among them those whose rows others show.

    `data` maps the name of an option to a path, for experiments that need a file; `solver` is that of all fits but
    those whose time is measured.
    """

    folder: Path
    chosen: Sequence[Experiment]
    known: Sequence[Experiment]
    size: Size
    seed: int
    data: dict[str, str] = field(default_factory=dict)
    solver: str = NEWTON

    def possible(self, experiment: Experiment) -> bool:
        """Whether the file that it needs, if any, was given."""
        return experiment.data is None or experiment.data in self.data

    def open(self, *, discard: bool = False) -> dict[str, tuple[Experiment, Results, list[Task]]]:
        """The results of every experiment whose rows are needed; refuses what another kind of run has left."""
        write_atomic(self.folder / MARKER, json.dumps(self.about(), indent=1) + "\n")
        prints = {name: hash_content(Path(path)) for name, path in self.data.items()}
        needed = {name for one in self.chosen if self.possible(one) for name in (one.name, *one.uses)}
        work = {}
        for one in self.known:
            if one.name in needed and (tasks := one.tasks(self.size)):
                stamped = stamp(one, self.seed, self.size, prints.get(one.data) if one.data else None, self.solver)
                work[one.name] = (one, Results(self.folder / "results" / one.name, stamped, discard=discard), tasks)
        return work

    def about(self) -> dict[str, Any]:
        """What made the folder."""
        about = {"made by": f"quernel reproduce {__version__}", "size": self.size, "seed": self.seed}
        return about if self.solver == NEWTON else {**about, "solver": self.solver}

    def measure(
        self, work: dict[str, tuple[Experiment, Results, list[Task]]], *, jobs: int, listener: Listener
    ) -> None:
        """Do what is not finished."""
        run(list(work.values()), seed=self.seed, jobs=jobs, data=self.data, solver=self.solver, listener=listener)

    def present(self, work: dict[str, tuple[Experiment, Results, list[Task]]], heading: Sequence[str]) -> list[Chapter]:
        """Tables, figures and the page, from what was measured."""
        for name, (_, results, tasks) in work.items():
            _write_tidy(results.table(tasks), self.folder / "rows" / f"{name}.parquet")
        chapters = [self._chapter(one, work) for one in self.chosen]
        write_atomic(self.folder / "index.html", render_page(chapters, heading))
        return chapters

    def certified(self, work: dict[str, tuple[Experiment, Results, list[Task]]]) -> list[str]:
        """What the page's heading says of a solver that is not the default: which, and how exact its fits are."""
        if self.solver == NEWTON:
            return []
        gaps: GapStats = {}
        for _, results, tasks in work.values():
            for tol, more in (item for task in tasks for item in results.finished[key(task)].gaps.items()):
                gaps[tol] = merge_gap_stats(gaps.get(tol), more)
        reached = [
            f"Of {fits:,} fits that were to have a relative duality gap of at most {tol}, {fits - short:,} came to it "
            f"in at most {ADMM_MAX_ITER:,} rounds; the largest certified gap among all of them is {largest:.1e}."
            for tol, (fits, short, largest) in sorted(gaps.items(), key=lambda item: -float(item[0]))
        ]
        first = "Solver: ADMM, the algorithm of the paper, on the same random numbers as Newton's method, the default."
        last = (
            "Ridge weights are chosen among such fits: where validation hardly tells two of them apart, another solver "
            "may choose another. Where the time of a fit is measured, it is that of the default."
        )
        return [" ".join([first, *reached, last])]

    def _chapter(self, one: Experiment, work: dict[str, tuple[Experiment, Results, list[Task]]]) -> Chapter:
        if not self.possible(one):
            option = f"--{(one.data or '').replace('_', '-')}"
            return Chapter(one, None, left_out=f"Left out: it needs a file, which {option} names.")
        sources = [work[name] for name in (one.name, *one.uses) if name in work]
        rows = [row for _, results, tasks in sources for row in results.table(tasks).rows]
        seconds = sum(results.seconds(tasks) for source, results, tasks in sources if source is one)
        return Chapter(one, one.present(Table(rows), OutputFolder(self.folder)), seconds)


def summarise(folder: Path, target: Path, readme: str) -> None:
    """Copy tables and figures, which are small, and say in a README how they were made."""
    for part, endings in (("tables", (".csv", ".md")), ("figures", (".png",))):
        (target / part).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / part).glob("*")):
            if path.suffix in endings:
                shutil.copyfile(path, target / part / path.name)
    write_atomic(target / "README.md", readme)


def _write_tidy(table: Table, path: Path) -> None:
    import pyarrow as pa  # here, because importing it takes long
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    columns = {name: [row.get(name) for row in table.rows] for name in names}
    pq.write_table(pa.table(columns), str(path))
