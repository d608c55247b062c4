"""Sweeps: many runs, each in a directory named after its configuration; what is done is not done again."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from protolith.errors import RunFailed
from protolith.runs import runner
from protolith.runs.config import RunConfig
from protolith.runs.runner import Observer

# Where and how a run is executed does not change what comes out.
_IRRELEVANT = {"workers", "engine", "device", "data", "checkpoint_every"}


def job_name(config: RunConfig) -> str:
    """Name a job: readable, and different for every configuration that could give another result."""
    settings = {key: value for key, value in config.model_dump(mode="json").items() if key not in _IRRELEVANT}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"{config.method}-seed{config.seed}-{digest}"


def run_sweep(configs: Sequence[RunConfig], out: Path, observer: Callable[[], Observer]) -> list[str]:
    """Run what is not done yet, one job after the other; a job that fails does not stop the others."""
    failed = []
    for number, config in enumerate(configs, 1):
        path = out / job_name(config)
        watcher = observer()
        watcher.say(f"job {number} of {len(configs)}: {path.name}")
        try:
            if (path / "config.toml").exists():
                runner.resume(path, watcher, config.workers)
            else:
                runner.start(config, path, watcher)
        except RunFailed as error:
            watcher.say(f"{path.name} failed: {error}")
            failed.append(path.name)
        finally:
            watcher.close()
    return failed
