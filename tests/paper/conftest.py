"""Quick runs of the reproduction, shared by the tests that look at them, in whatever processes these run."""

import fcntl
import json
from pathlib import Path
from typing import NamedTuple

import pytest

from support.command_line import Completed, run_process

# Each simulation and each question once. Another seed than the full run's: the quick run's rows are not among those
# that it is held against.
ITEMS = ("tab.2", "fig4")
SEED = 1


class QuickRun(NamedTuple):
    folder: Path
    ran: Completed
    seed: int


@pytest.fixture(scope="session")
def quick(tmp_path_factory, worker_id):
    """Folder of a quick run of `reproduce` into `out` and `kept`, what it printed, and its seed; made once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "quick"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = folder / "completed.json"
        if not record.exists():
            into = "--out", folder / "out", "--summary", folder / "kept"
            ran = run_process("reproduce", *ITEMS, "--quick", "--seed", SEED, *into, cwd=folder)
            record.write_text(json.dumps(ran))
        ran = Completed(*json.loads(record.read_text()))
    assert ran.returncode == 0, ran.stderr
    return QuickRun(folder, ran, SEED)
