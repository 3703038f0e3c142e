"""A whole reproduction in one folder: stored results, tidy tables, figures, the HTML page, and a summary to commit.

results/<experiment>/   finished tasks, see `quernel.paper.runner`
rows/<experiment>.parquet   all measurements as one tidy table
figures/, tables/, index.html   what the experiments present
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from quernel import __version__
from quernel._files import write_text_atomically
from quernel.paper.experiment import NEWTON, Experiment, Size, Task
from quernel.paper.holdout_fit import OPTIONS, GapStats, merge_gap_stats
from quernel.paper.measurements import Table
from quernel.paper.output import Chapter, OutputFolder, render_page
from quernel.paper.runner import Listener, Results, make_stamp, run

# Name of an experiment to the experiment, its results and its tasks.
Work = dict[str, tuple[Experiment, Results, list[Task]]]
# Marker file: a folder without it, unless empty, is not written into.
MARKER = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """A set of experiments at one size and seed.

    Parameters
    ----------
    folder : Path
    chosen : sequence of Experiment
        Those to show on the page, in this order.
    known : sequence of Experiment
        All that exist, among them those whose rows a chosen one `uses`.
    size : "quick" or "full"
    seed : int
    data : dict
        Option name to path, for experiments that need a file.
    solver : str
        "newton" or "admm", for all fits except those whose running time is measured.
    """

    folder: Path
    chosen: Sequence[Experiment]
    known: Sequence[Experiment]
    size: Size
    seed: int
    data: dict[str, str] = field(default_factory=dict)
    solver: str = NEWTON

    def has_data(self, experiment: Experiment) -> bool:
        """Whether the data file that the experiment needs, if any, was given."""
        return experiment.data is None or experiment.data in self.data

    def open(self, *, discard: bool = False) -> Work:
        """Open the results of every experiment whose rows are needed.

        Returns name to (experiment, results, tasks). Results of another seed, size or version raise ValueError, or are
        deleted with `discard`.
        """
        write_text_atomically(self.folder / MARKER, json.dumps(self.describe(), indent=1) + "\n")
        hashes = {name: _hash_content(Path(path)) for name, path in self.data.items()}
        needed = {name for one in self.chosen if self.has_data(one) for name in (one.name, *one.uses)}
        work = {}
        for one in self.known:
            if one.name in needed and (tasks := one.tasks(self.size)):
                stamp = make_stamp(one, self.seed, self.size, hashes.get(one.data or ""), self.solver)
                work[one.name] = (one, Results(self.folder / "results" / one.name, stamp, discard=discard), tasks)
        return work

    def describe(self) -> dict[str, Any]:
        """What made this folder, as written to its marker file."""
        about = {"made by": f"quernel reproduce {__version__}", "size": self.size, "seed": self.seed}
        return about if self.solver == NEWTON else {**about, "solver": self.solver}

    def measure(self, work: Work, *, jobs: int, listener: Listener) -> None:
        """Run all tasks without a stored result."""
        run(list(work.values()), seed=self.seed, jobs=jobs, data=self.data, solver=self.solver, listener=listener)

    def present(self, work: Work, heading: Sequence[str]) -> list[Chapter]:
        """Write tidy tables, figures and the page from the stored results; returns the page's chapters."""
        for name, (_, results, tasks) in work.items():
            _write_tidy(results.table(tasks), self.folder / "rows" / f"{name}.parquet")
        chapters = [self._chapter(one, work) for one in self.chosen]
        write_text_atomically(self.folder / "index.html", render_page(chapters, heading))
        return chapters

    def describe_gaps(self, work: Work) -> list[str]:
        """Paragraph on a solver other than the default for the page's heading: its name, and the gaps it certified."""
        if self.solver == NEWTON:
            return []
        gaps: GapStats = {}
        for _, results, tasks in work.values():
            for tol, more in (item for done in results.select(tasks) for item in done.gaps.items()):
                gaps[tol] = merge_gap_stats(gaps.get(tol), more)
        reached = [
            f"Of {fits:,} fits that were to have a relative duality gap of at most {tol}, {fits - short:,} came to it "
            f"in at most {OPTIONS.admm_max_iter:,} rounds; the largest certified gap among all of them is "
            f"{largest:.1e}."
            for tol, (fits, short, largest) in sorted(gaps.items(), key=lambda item: -float(item[0]))
        ]
        first = "Solver: ADMM, the algorithm of the paper, on the same random numbers as Newton's method, the default."
        last = (
            "Ridge weights are chosen among such fits: where validation hardly tells two of them apart, another solver "
            "may choose another. Where the time of a fit is measured, it is that of the default."
        )
        return [" ".join([first, *reached, last])]

    def _chapter(self, one: Experiment, work: Work) -> Chapter:
        """Present one experiment from its own rows and those of the experiments it uses."""
        if not self.has_data(one):
            option = f"--{(one.data or '').replace('_', '-')}"
            return Chapter(one, None, left_out=f"Left out: it needs a file, which {option} names.")
        sources = [work[name] for name in (one.name, *one.uses) if name in work]
        rows = [row for _, results, tasks in sources for row in results.table(tasks).rows]
        own = [results.select(tasks) for source, results, tasks in sources if source is one]
        seconds = sum(done.seconds for finished in own for done in finished)
        return Chapter(one, one.present(Table(rows), OutputFolder(self.folder)), seconds)


def summarise(folder: Path, target: Path, readme: str) -> None:
    """Copy the tables (CSV, Markdown) and PNG figures, which are small, to `target`, with a README."""
    for part, endings in (("tables", (".csv", ".md")), ("figures", (".png",))):
        (target / part).mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / part).glob("*")):
            if path.suffix in endings:
                shutil.copyfile(path, target / part / path.name)
    write_text_atomically(target / "README.md", readme)


def _write_tidy(table: Table, path: Path) -> None:
    """Write all measurements of an experiment as one Parquet table; columns missing in a row are null."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(name for row in table.rows for name in row))
    columns = {name: [row.get(name) for row in table.rows] for name in names}
    pq.write_table(pa.table(columns), str(path))


def _hash_content(path: Path) -> str:
    """Short hash of a file's content, or of all CSV files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.glob("*.csv")) if path.is_dir() else [path]:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]
