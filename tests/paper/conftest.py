"""Quick runs of the reproduction, shared by the tests that look at them, in whatever processes these run."""

import fcntl
import json

import pytest

from support.command_line import Completed, run_process

# Another seed than the full run's: the quick run's rows are not among those that it is held against.
ITEMS = ("tab.2", "tab.3", "fig3", "fig4")
QUICK = ("--quick", "--seed", 1)


@pytest.fixture(scope="session")
def quick(tmp_path_factory, worker_id):
    """quick(*options): (folder, what `reproduce` printed) of a run into `out` and `kept`, made once for all tests."""
    base = tmp_path_factory.getbasetemp()

    def run(*options, items=ITEMS):
        folder = (base if worker_id == "master" else base.parent) / "_".join(["quick", *options])
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            record = folder / "completed.json"
            if not record.exists():
                into = "--out", folder / "out", "--summary", folder / "kept"
                ran = run_process("reproduce", *items, *QUICK, *options, *into, cwd=folder)
                record.write_text(json.dumps(ran))
            ran = Completed(*json.loads(record.read_text()))
        assert ran.returncode == 0, ran.stderr
        return folder, ran

    return run
