"""Benchmarks of quernel and other systems: common tasks, one adapter per system, one objective to compare them by."""

from quernel.bench.runner import Outcome, compare, count_cores, describe_machine, run
from quernel.bench.systems import Answer, System, Task, time_best

__all__ = ["Answer", "Outcome", "System", "Task", "compare", "count_cores", "describe_machine", "run", "time_best"]
