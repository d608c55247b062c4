import os

import pytest

from protolith.experiments import sweep
from protolith.machine import cores
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.use import timing

ALL = 10_000  # more than this machine has


@pytest.fixture
def one_core():
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system binds no process to cores")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def limited(groups, **limits):
    """Control groups: a limit for each folder of /batch/job."""
    (groups / "batch" / "job").mkdir(parents=True)
    for name, limit in limits.items():
        folder = {"root": groups, "batch": groups / "batch", "job": groups / "batch" / "job"}[name]
        (folder / "cpu.max").write_text(f"{limit}\n")
    (groups / "own").write_text("1:cpuset:/other\n0::/batch/job\n")
    return cores(groups, groups / "own")


def test_run_and_sweep_and_the_estimate_count_the_cores_that_this_process_may_use(one_core):
    assert cores() == 1
    assert runner.worker_count(resolve([{}]), ALL) == 1
    assert sweep.how_many_at_once([resolve([{}])] * 9, None, cores()) == 1
    assert timing.cores is cores


def test_a_control_groups_share_of_time_counts_too(tmp_path):
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert limited(tmp_path / "a") == every
    assert limited(tmp_path / "b", job="max 100000") == every
    assert limited(tmp_path / "c", job="100000 100000") == 1
    assert limited(tmp_path / "d", batch="150000 100000", job="max 100000") == 1  # one and a half: one keeps busy
    assert limited(tmp_path / "e", batch="20000 100000") == 1  # never none
    assert limited(tmp_path / "f", root="100000 100000") == 1
    assert limited(tmp_path / "g", job="nonsense") == every
    assert cores(tmp_path / "none", tmp_path / "none") == every
