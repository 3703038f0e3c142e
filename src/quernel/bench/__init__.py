"""quernel beside other systems: one task for all, one adapter each, one scale for what they reach."""

from quernel.bench.machine import describe
from quernel.bench.runner import Outcome, beside, run
from quernel.bench.task import Answer, System, Task, best

__all__ = ["Answer", "Outcome", "System", "Task", "beside", "best", "describe", "run"]
