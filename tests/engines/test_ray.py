"""A real Ray cluster of two nodes on this machine: same bytes as in one process, also when parts of it die."""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import protolith as pl
from protolith.federation.setup import Setup
from protolith.models.packaged import weights_of
from protolith.runs.config import resolve
from protolith.runs.runner import Observer
from protolith.use.trained import open_trained

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'protolith[ray]')")
from ray.cluster_utils import Cluster  # noqa: E402

from protolith.engines.ray.engine import _connect  # noqa: E402
from protolith.engines.ray.place import RayPlace, task_arrays, to_arrays  # noqa: E402

PLUGIN = """
from protolith.methods import fedavg
from protolith.methods.registry import Method

class Client(fedavg.Client):
    def train(self):
        if self.context.client == 2:
            raise ArithmeticError("no luck")

METHOD = Method(name="unlucky", title="unlucky", paper="none", idea="none", objective="none", server_step="none",
                traffic="none", params=fedavg.Params, client=Client, server=fedavg.Server)
"""

FAILING = """
import json, sys
import ray
import protolith as pl

try:
    pl.fit(**json.loads(sys.argv[1]))
except pl.RunFailed as error:
    print(error)
    print(ray.is_initialized())
"""

KILLED = """
import json, sys
import protolith as pl
from protolith.runs.runner import Observer
from ray.cluster_utils import Cluster

class Tell(Observer):
    def round_done(self, metrics):
        print("round 1")

node = {"num_cpus": 1, "object_store_memory": 200 * 2**20, "include_dashboard": False}
pl.fit(address=Cluster(initialize_head=True, head_node_args=node).address, observer=Tell(), **json.loads(sys.argv[1]))
"""


@pytest.fixture
def cluster(monkeypatch):
    """Two nodes with one core each; the driver is at the first."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 200 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.second = cluster.add_node(num_cpus=1, object_store_memory=200 * 2**20)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def files(run):
    """What a run leaves behind: its models, and its accuracies."""
    found = {
        str(file.relative_to(run.path)): file.read_bytes()
        for pattern in ("model.safetensors", "models/*.safetensors")
        for file in run.path.glob(pattern)
    }
    return found, [line.accuracy for line in run.rounds]


def test_the_same_bytes_on_two_nodes(cluster, tiny, tmp_path):
    for method in ("fedavg", "fpl", "i2pfl", "fedcode", "solo"):
        settings = {**tiny, "method": method, "rounds": 2}
        here = pl.fit(out=tmp_path / method / "here", **settings)
        there = pl.fit(
            out=tmp_path / method / "there", **{**settings, "workers": -1}, engine="ray", address=cluster.address
        )
        assert files(there) == files(here) and files(here)[0]


@pytest.mark.skipif(not weights_of("efficientnet-lite0")[1], reason="the pretrained weights are not installed")
def test_heads_on_frozen_features_have_the_same_bytes_too(cluster, tiny, tmp_path):
    settings = {
        **tiny,
        "method": "strata",
        "rounds": 2,
        "size": 32,
        "model": {"name": "efficientnet-lite0", "views": 2},
    }
    here = pl.fit(out=tmp_path / "here", **settings)
    there = pl.fit(out=tmp_path / "there", **{**settings, "workers": -1}, engine="ray", address=cluster.address)
    assert files(there) == files(here) and files(here)[0]


def working(cluster):
    """The processes of a cluster that train a client at this moment."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    children = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in raylets]
    return [int(pid) for pids in children for pid in pids if title(pid) == "ray::RayPlace.train"]


def title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].split("(")[0]
    except OSError:  # it has just ended
        return ""


class Breaks(Observer):
    """Kills an actor in the first round and a node in the second, both in the middle of it."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.done = []
        self.rounds = 0
        self.began = threading.Event()

    def started(self, *given):
        threading.Thread(target=self.kill, daemon=True).start()

    def round_done(self, metrics):
        self.rounds += 1
        self.began.set()

    def kill(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not self.done:
            for pid in working(self.cluster)[:1]:
                os.kill(pid, signal.SIGKILL)
                self.done.append(("actor", self.rounds))
            time.sleep(0.05)
        self.began.wait(120)
        self.cluster.remove_node(self.cluster.second, allow_graceful=False)
        self.done.append(("node", self.rounds))


def test_an_actor_and_then_a_node_die(cluster, tiny, tmp_path):
    settings = {**tiny, "method": "fpl", "rounds": 5, "training": {"epochs": 4, "batch": 16}}
    here = pl.fit(out=tmp_path / "here", **settings)
    breaks = Breaks(cluster)
    there = pl.fit(
        out=tmp_path / "there", observer=breaks, **{**settings, "workers": -1}, engine="ray", address=cluster.address
    )
    assert [what for what, _ in breaks.done] == ["actor", "node"] and breaks.done[1][1] < 5
    assert files(there) == files(here)


def test_a_job_that_fails_three_times_fails_the_run_with_the_clients_name(tiny, tmp_path):
    plugin = tmp_path / "plugged.py"
    plugin.write_text(PLUGIN)
    settings = {**tiny, "method": "unlucky", "plugins": [str(plugin)], "workers": 1, "engine": "ray"}
    # In a process of its own, as at a user's: Ray now and then ends one that has had several clusters.
    command = [sys.executable, "-c", FAILING, json.dumps({**settings, "out": str(tmp_path / "run")}, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said, still_there = done.stdout.splitlines()[-2:]
    assert "client photo-1 failed 3 times: ArithmeticError: no luck." in said
    assert still_there == "False"


def test_a_device_that_the_cluster_lacks_is_one_sentence_and_is_asked_for_once(tiny, tmp_path):
    place = RayPlace(setup_of({**tiny, "device": "cuda:99"}), *arrays_of("mini"))
    weights = to_arrays(place.workplace.initial)
    job = {"client": 0, "round": 0, "evaluate": False, "model": False}
    for answer in (place.train(job, weights, {}, {}), place.evaluate((0, 0, 1), weights, {})):
        assert answer["user"] and "trace" not in answer and "device = 'cuda:99': this machine has" in answer["error"]
    options = ["--engine", "ray", "--workers", "1", "--device", "cuda:99", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "protolith", "run", *options, "--set", "width=2", "--set", "protocol.samples=12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr.count("device = 'cuda:99'") == 1
    assert "protolith: a machine of the Ray cluster says: device = 'cuda:99': this machine has" in done.stderr


def setup_of(given):
    config = resolve([{**given, "engine": "ray"}])
    return config.model_dump(mode="json", include=set(Setup.model_fields))


def arrays_of(name):
    task = pl.load_task(name)
    return (task.name, list(task.classes), [domain.name for domain in task.domains]), task_arrays(task)


def test_a_disk_that_takes_nothing_more_is_no_fault_of_the_job(monkeypatch, tiny):
    place = RayPlace(setup_of(tiny), *arrays_of("mini"))

    def full(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(place.workplace, "count", full)
    answer = place.evaluate((0, 0, 1), {}, {})
    assert answer["disk"] and "no space left on device" in answer["error"] and "trace" not in answer


def test_the_images_of_a_run_with_ray_are_on_this_machine(cluster, tiny, tmp_path):
    given = {**tiny, "rounds": 1, "workers": -1, "engine": "ray", "address": cluster.address}
    run = pl.fit(out=tmp_path / "run", **given)
    assert open_trained(run).task().classes == pl.load_task("mini").classes
    assert list(run.baselines().accuracy) == ["FedAvg", "every site alone", "all data pooled"]


def test_a_run_without_an_address_never_looks_for_the_cluster_of_a_run_before(monkeypatch):
    """A killed run leaves a note of its cluster, for which Ray would wait two minutes."""
    asked = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda *address, **_: asked.append(address))
    _connect("")
    assert asked == [("local",)]


def test_after_a_killed_run_the_next_one_starts_at_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray"))  # pytest's own path is too long for sockets
    given = {**tiny, "engine": "ray", "workers": 1}
    forever = [KILLED, json.dumps({**given, "rounds": 1000, "out": str(tmp_path / "killed")}, default=str)]
    quick = started(forever, 300, "round 1")  # as quick as this machine is now
    assert next(Path(os.environ["RAY_TMPDIR"]).rglob("ray_current_cluster")), "no note is left: nothing is tested"
    code = "import json, sys; import protolith as pl; print('done', pl.fit(**json.loads(sys.argv[1])))"
    started([code, json.dumps({**given, "rounds": 1, "out": str(tmp_path / "next")}, default=str)], 100 + quick, "done")


def started(arguments, seconds, wanted):
    """Run Python until it prints a line that begins so, at most for so long, and kill it; the seconds that took."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-uc", *arguments], stdout=subprocess.PIPE, text=True)
    too_late = threading.Timer(seconds, process.kill)
    too_late.start()
    try:
        assert any(line.startswith(wanted) for line in process.stdout), f"not within {seconds:.0f} s"
        return time.monotonic() - began
    finally:
        too_late.cancel()
        process.kill()
        process.wait()


def test_no_cluster_at_an_address_is_one_sentence(protolith):
    code, out, err = protolith("run", "--engine", "ray", "--address", "127.0.0.1:1", "--rounds", "1")
    assert code == 2 and out == "" and "no Ray cluster answers" in err and "Traceback" not in err
