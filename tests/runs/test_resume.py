"""Runs that are stopped, killed or damaged go on to the byte-identical result."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from protolith.errors import UserError
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Interrupted, Observer

START = """
import os, signal, sys, json
from pathlib import Path
from protolith.runs import checkpoints, directory, runner
from protolith.runs.config import resolve

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(owner, name, call, after=False):
    original, calls = getattr(owner, name), []
    def patched(*args, **kwargs):
        calls.append(1)
        if len(calls) == call and not after:
            die()
        result = original(*args, **kwargs)
        if len(calls) == call:
            die()
        return result
    setattr(owner, name, patched)

{patch}
runner.start(resolve([json.loads(sys.argv[1])]), Path(sys.argv[2]), runner.Observer())
"""

MOMENTS = {
    "before the first round": "from protolith.federation import rounds\nrounds.run_rounds = die",
    "in the middle of a round": "from protolith.federation import coordinator\n"
    "die_at(coordinator.Coordinator, 'accuracy', 2)",
    "before a line of metrics": "die_at(directory.RunDirectory, 'append_metrics', 2)",
    "between metrics and checkpoint": "die_at(checkpoints.Checkpoints, 'write', 2)",
    "while a checkpoint is written": "die_at(checkpoints, '_sha256', 2)",
    "before a checkpoint has its name": "die_at(checkpoints, 'write_text', 2, after=True)",
    "before old checkpoints are removed": "die_at(checkpoints.Checkpoints, '_remove_old', 3)",
    "after the last checkpoint": "die_at(checkpoints.Checkpoints, '_remove_old', 4, after=True)",
    "before the summary": "die_at(directory.RunDirectory, 'write_summary', 1)",
}


class Notes(Observer):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


def settings(tiny, **more):
    return {**tiny, "method": "solo", "rounds": 4, "buffers": "average", **more}


def result(path):
    """What a run produced, without its times."""
    files = {file.name: file.read_bytes() for file in path.glob("models/*.safetensors")}
    if (path / "model.safetensors").exists():
        files["model"] = (path / "model.safetensors").read_bytes()
    lines = RunDirectory.open(path).metrics()
    return files, [line.model_copy(update={"seconds": {}}) for line in lines]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    found = {}

    def get(values):
        key = json.dumps(values)
        if key not in found:
            path = tmp_path_factory.mktemp("whole") / "run"
            runner.start(resolve([values]), path, Observer())
            found[key] = result(path)
        return found[key]

    return get


def start_process(values, path, patch=""):
    code = START.format(patch=patch)
    return subprocess.Popen([sys.executable, "-c", code, json.dumps(values), str(path)], stderr=subprocess.PIPE)


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_a_chosen_moment(tiny, tmp_path, uninterrupted, moment):
    values = settings(tiny)
    process = start_process(values, tmp_path / "run", MOMENTS[moment])
    assert process.wait(120) == -signal.SIGKILL, process.stderr.read().decode()
    notes = Notes()
    runner.resume(tmp_path / "run", notes)
    assert result(tmp_path / "run") == uninterrupted(values)
    assert notes.said == []


def test_killed_again_and_again_at_random_moments_with_workers(tiny, tmp_path, uninterrupted):
    values = settings(tiny, workers=2, rounds=6, method="fedavg")
    path = tmp_path / "run"
    rng = random.Random(0)
    process = start_process(values, path)
    for _ in range(3):
        time.sleep(rng.uniform(1.0, 6.0))
        process.kill()
        process.wait()
        if not (path / "config.toml").exists():
            process = start_process(values, path)
            continue
        again = "from protolith.runs import runner; from pathlib import Path; import sys;"
        again += "runner.resume(Path(sys.argv[1]), runner.Observer())"
        process = subprocess.Popen([sys.executable, "-c", again, str(path)], stderr=subprocess.PIPE)
    assert process.wait(180) == 0, process.stderr.read().decode()
    assert result(path) == uninterrupted({**values, "workers": 0})


@pytest.mark.parametrize("file", ["server.safetensors", "progress.json"])
@pytest.mark.parametrize("keep", [0, 40])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tiny, tmp_path, uninterrupted, file, keep):
    values = settings(tiny)
    path = tmp_path / "run"
    assert start_process(values, path, MOMENTS["before old checkpoints are removed"]).wait(120) == -signal.SIGKILL
    newest = sorted((path / "checkpoint").glob("round-*"))[-1]
    damaged = newest / file
    damaged.write_bytes(damaged.read_bytes()[:keep])
    notes = Notes()
    runner.resume(path, notes)
    assert len(notes.said) == 1 and newest.name in notes.said[0] and "damaged" in notes.said[0]
    assert result(path) == uninterrupted(values)


def test_a_changed_byte_in_a_checkpoint_is_noticed(tiny, tmp_path, uninterrupted):
    values = settings(tiny)
    path = tmp_path / "run"
    assert start_process(values, path, MOMENTS["before old checkpoints are removed"]).wait(120) == -signal.SIGKILL
    state = sorted((path / "checkpoint").glob("round-*"))[-1] / "server.safetensors"
    content = bytearray(state.read_bytes())
    content[-100] ^= 1
    state.write_bytes(bytes(content))
    notes = Notes()
    runner.resume(path, notes)
    assert len(notes.said) == 1
    assert result(path) == uninterrupted(values)


def test_only_two_checkpoints_and_their_memories_are_kept(tiny, tmp_path):
    path = tmp_path / "run"
    runner.start(resolve([settings(tiny)]), path, Observer())
    assert [folder.name for folder in sorted((path / "checkpoint").iterdir())] == ["round-000003", "round-000004"]
    rounds = {file.stem.rsplit("-", 1)[1] for file in (path / "memory").iterdir()}
    assert rounds == {"000003", "000004"}


def test_ctrl_c_leaves_a_checkpoint_and_says_how_to_go_on(tiny, tmp_path, uninterrupted):
    values = settings(tiny, checkpoint_every=3)
    path = tmp_path / "run"

    class Stop(Observer):
        def round_done(self, metrics):
            if metrics.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=f"protolith resume {path}"):
        runner.start(resolve([values]), path, Stop())
    assert [folder.name for folder in (path / "checkpoint").iterdir()] == ["round-000002"]
    runner.resume(path, Observer())
    assert result(path) == uninterrupted(settings(tiny))


def test_ctrl_c_in_a_terminal(tiny, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(
        'task = "mini"\nrounds = 300\nworkers = 2\n[model]\nwidth = 4\n[training]\nepochs = 1\n'
        "[protocol]\nsamples = 16\nclients = {pen = 2, photo = 1}\n"
    )
    command = [sys.executable, "-m", "protolith", "run", "--config", str(config), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    for line in process.stderr:
        if line.startswith("round 2/"):
            break
    os.kill(process.pid, signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert f"protolith resume {tmp_path / 'run'}" in rest and "Traceback" not in rest
    assert list((tmp_path / "run" / "checkpoint").glob("round-*"))


def test_a_finished_run_is_not_run_again(tiny, tmp_path):
    path = tmp_path / "run"
    runner.start(resolve([{**tiny, "rounds": 1}]), path, Observer())
    before = (path / "summary.json").stat().st_mtime_ns
    notes = Notes()
    runner.resume(path, notes)
    assert "nothing to resume" in notes.said[0]
    assert (path / "summary.json").stat().st_mtime_ns == before


def test_two_processes_cannot_work_on_one_run(tiny, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):

        class Stop(Observer):
            def round_done(self, metrics):
                raise KeyboardInterrupt

        runner.start(resolve([tiny]), path, Stop())
    other = RunDirectory.open(path)
    with other.lock(), pytest.raises(UserError, match="another process is working"):
        runner.resume(path, Observer())


def test_the_table_reports_the_last_five_rounds_and_never_the_best(tiny, tmp_path):
    path = tmp_path / "run"
    runner.start(resolve([{**tiny, "rounds": 7}]), path, Observer())
    lines, summary = RunDirectory.open(path).metrics(), RunDirectory.open(path).summary()
    for domain in ("pen", "photo", "print", "street"):
        values = [line.accuracy[domain] for line in lines]
        assert summary.accuracy[domain] == pytest.approx(sum(values[-5:]) / 5)
    assert summary.rule == "mean of the last 5 rounds (3 to 7)"
    assert summary.mean == pytest.approx(sum(summary.accuracy.values()) / 4)
