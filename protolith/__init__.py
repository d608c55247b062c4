"""Federated learning that keeps working when every site's data look different.

import protolith as pl
run = pl.fit(method="fedavg", task="mini", rounds=10, seed=0)
print(run.table())
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protolith.api import RunInUse, check, fit, load, resume
    from protolith.data.spec import TaskSpec, read_task, register_task
    from protolith.data.tasks import load_task
    from protolith.errors import RunFailed, UserError
    from protolith.evaluation.measures import Measure, register_measure
    from protolith.methods.registry import Method, register_method
    from protolith.models import register_model
    from protolith.runs.run import Run

__version__ = "0.2.0.dev0"  # the one place: pyproject.toml reads it from here

__all__ = [
    "Measure",
    "Method",
    "Run",
    "RunFailed",
    "RunInUse",
    "TaskSpec",
    "UserError",
    "__version__",
    "check",
    "fit",
    "load",
    "load_task",
    "read_task",
    "register_measure",
    "register_method",
    "register_model",
    "register_task",
    "resume",
]

_WHERE = {
    "Measure": "protolith.evaluation.measures",
    "Method": "protolith.methods.registry",
    "Run": "protolith.runs.run",
    "RunFailed": "protolith.errors",
    "RunInUse": "protolith.api",
    "TaskSpec": "protolith.data.spec",
    "UserError": "protolith.errors",
    "check": "protolith.api",
    "fit": "protolith.api",
    "load": "protolith.api",
    "load_task": "protolith.data.tasks",
    "read_task": "protolith.data.spec",
    "register_measure": "protolith.evaluation.measures",
    "register_method": "protolith.methods.registry",
    "register_model": "protolith.models",
    "register_task": "protolith.data.spec",
    "resume": "protolith.api",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: the rooms below must not wait for those above."""
    if name not in _WHERE:
        raise AttributeError(f"module 'protolith' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
