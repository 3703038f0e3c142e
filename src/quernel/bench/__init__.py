"""Benchmarks of quernel and other systems: common tasks, one adapter per system, one objective to compare them by."""

from quernel.bench.machine import describe
from quernel.bench.runner import Outcome, beside, run
from quernel.bench.task import Answer, System, Task, best

__all__ = ["Answer", "Outcome", "System", "Task", "beside", "best", "describe", "run"]
