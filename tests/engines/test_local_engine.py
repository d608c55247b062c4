"""Worker processes: the same numbers as in one process, whatever happens to them."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from protolith.engines.local import LocalEngine
from protolith.errors import RunFailed, UserError
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.runner import Observer

PLUGIN = """
import os
from protolith.methods import fedavg
from protolith.methods.base import Params
from protolith.methods.registry import Method

class Client(fedavg.Client):
    def train(self):
        print("a method may print what it likes")
        {body}
        super().train()

METHOD = Method(name="plugged", title="Plugged", paper="", idea="", objective="", server_step="", traffic="",
                params=Params, client=Client, server=fedavg.Server)
"""


def model_bytes(path):
    return {
        file.name: file.read_bytes()
        for file in sorted(path.rglob("*.safetensors"))
        if "model" in str(file.relative_to(path))
    }


def run(settings, path, observer=None):
    runner.start(resolve([settings]), path, observer or Observer())
    return model_bytes(path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What one process makes of the runs of this file."""
    found = {}

    def get(settings):
        key = str(settings)
        if key not in found:
            found[key] = run({**settings, "workers": 0}, tmp_path_factory.mktemp("expected") / "run")
        return found[key]

    return get


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "solo"])
def test_any_number_of_workers_gives_the_same_bytes(tiny, tmp_path, expected, method, workers):
    settings = {**tiny, "method": method}
    assert run({**settings, "workers": workers}, tmp_path / "run") == expected(settings) != {}


def test_local_buffers_and_partial_participation_on_workers(tiny, tmp_path, expected):
    settings = {**tiny, "rounds": 4, "buffers": "local"}
    settings["protocol"] = {**tiny["protocol"], "participation": 0.5, "dropout": 0.2}
    assert run({**settings, "workers": 2}, tmp_path / "run") == expected(settings)


class KillWorkers(Observer):
    """Kills a worker in the middle of every round."""

    def __init__(self, engines):
        self.engines = engines
        self.killed = []
        self.stopped = threading.Event()

    def started(self, *args):
        threading.Thread(target=self.kill, daemon=True).start()

    def kill(self):
        for number in range(3):
            if self.stopped.wait(0.7):
                return
            process = self.engines[0].processes[number % 2].process
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
                self.killed.append(process.pid)

    def finished(self, summary):
        self.stopped.set()


def test_a_killed_worker_is_replaced_and_its_job_run_again(tiny, tmp_path, expected, monkeypatch):
    engines = []
    original = LocalEngine.__init__
    monkeypatch.setattr(LocalEngine, "__init__", lambda self, *a: (original(self, *a), engines.append(self))[0])
    settings = {**tiny, "rounds": 4, "training": {"epochs": 6, "batch": 16}}
    killer = KillWorkers(engines)
    assert run({**settings, "workers": 2}, tmp_path / "run", killer) == expected(settings)
    assert killer.killed


def test_a_job_that_fails_three_times_fails_the_run_with_the_clients_name(tiny, tmp_path, capfd):
    plugin = tmp_path / "plugged.py"
    plugin.write_text(PLUGIN.format(body="if self.context.client == 2: raise ArithmeticError('no luck')"))
    settings = {**tiny, "method": "plugged", "plugins": [str(plugin)], "workers": 2}
    with pytest.raises(RunFailed, match="client photo-1 failed 3 times: ArithmeticError: no luck"):
        run(settings, tmp_path / "run")
    assert capfd.readouterr().err.count("no luck") >= 3


def test_a_worker_that_always_dies_fails_the_run(tiny, tmp_path):
    plugin = tmp_path / "plugged.py"
    plugin.write_text(PLUGIN.format(body="if self.context.client == 3: os._exit(7)"))
    settings = {**tiny, "method": "plugged", "plugins": [str(plugin)], "workers": 1}
    with pytest.raises(RunFailed, match="client print-1 failed 3 times: its worker process ended with code 7"):
        run(settings, tmp_path / "run")


def test_workers_and_spool_go_away_with_the_run(tiny, tmp_path, monkeypatch):
    engines = []
    original = LocalEngine.__init__
    monkeypatch.setattr(LocalEngine, "__init__", lambda self, *a: (original(self, *a), engines.append(self))[0])
    run({**tiny, "rounds": 1, "workers": 2}, tmp_path / "run")
    assert not engines[0].spool.exists()
    assert all(worker.process.poll() is not None for worker in engines[0].processes)


def test_a_worker_does_not_outlive_its_run(tiny, tmp_path):
    """The parent is killed in the middle of a job: the workers end by themselves and remove the spool."""
    import subprocess
    import sys

    code = (
        "from protolith.runs import runner; from protolith.runs.config import resolve; from pathlib import Path;"
        "from protolith.engines import local; import sys, os\n"
        "class Say(runner.Observer):\n"
        "    def started(self, *a):\n"
        "        e = local.LocalEngine.last; print(e.spool, *[p.process.pid for p in e.processes], flush=True)\n"
        "init = local.LocalEngine.__init__\n"
        "def patched(self, *a): init(self, *a); local.LocalEngine.last = self\n"
        "local.LocalEngine.__init__ = patched\n"
        f"runner.start(resolve([{ {**tiny, 'workers': 2, 'rounds': 500}!r}]), Path({str(tmp_path / 'run')!r}), Say())"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    spool, *pids = process.stdout.readline().split()
    time.sleep(2)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and (any(Path(f"/proc/{pid}").exists() for pid in pids) or Path(spool).exists()):
        time.sleep(0.1)
    assert not Path(spool).exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_plugged_method_that_only_this_process_knows_is_refused(tiny, tmp_path):
    from dataclasses import replace

    from protolith.methods.registry import _PLUGGED, get_method, register_method

    register_method(replace(get_method("fedavg"), name="only-here"))
    try:
        with pytest.raises(UserError, match="plugins"):
            run({**tiny, "method": "only-here", "workers": 1}, tmp_path / "run")
        assert run({**tiny, "method": "only-here", "rounds": 1, "workers": 0}, tmp_path / "alone")
    finally:
        del _PLUGGED["only-here"]
