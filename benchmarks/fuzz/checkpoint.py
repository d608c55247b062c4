"""Checkpoints and metrics: a damaged one is a ValueError, a newer one a UserError, and nothing else."""

import contextlib

from place import PLACE

from protolith.errors import UserError
from protolith.evaluation.measures import Counts, from_plain, measures_of
from protolith.runs.checkpoints import Checkpoints, describe
from protolith.runs.directory import RunDirectory

RUN = PLACE / "run"
FOLDER = RUN / "checkpoint" / "round-000001"
FOLDER.mkdir(parents=True, exist_ok=True)


def counts(test: str, said: object) -> Counts:
    return from_plain(said, measures_of([]), 3, 10)


def one(data: bytes) -> None:
    for file in (FOLDER / "progress.json", RUN / "metrics.jsonl", RUN / "summary.json", RUN / ".holder.json"):
        file.write_bytes(data)
    try:
        found = describe(FOLDER)
        assert found.round >= 0
    except (ValueError, UserError):
        pass
    try:
        FOLDER.mkdir(exist_ok=True)
        checkpoints = Checkpoints(RUN / "checkpoint", lambda client, round_: RUN / f"client-{client}-{round_}", counts)
        assert checkpoints.latest(lambda sentence: None) is None
    except UserError:
        pass
    FOLDER.mkdir(exist_ok=True)
    run = RunDirectory(RUN)
    assert all(isinstance(line.round, int) for line in run.metrics())
    assert isinstance(run.holder(), str)
    with contextlib.suppress(UserError):
        run.summary()
