"""The net under a change of the house: what every method computes, as hashes, before and after.

    python benchmarks/net.py record OUT.json [--engines here,two,ray,flower] [--only WORD]
    python benchmarks/net.py compare BEFORE.json AFTER.json

`record` runs two rounds of `mini` for every method on every engine, every option of every method, and what stands
around methods: styles, robust rules, privacy, attacks, bfloat16, participation, protocols, resume after SIGKILL. It
drives the command line and reads files, so that it can be laid under any version. `compare` says how many cases agree
in model, predictions and each metric, and names every difference; its exit code is 1 where there is one.
"""

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli_w
import torch
from PIL import Image
from safetensors import safe_open

from protolith.cli.main import main as command_line
from protolith.data.tasks import load_task
from protolith.methods.registry import all_methods, get_method
from protolith.runs.directory import processor

Settings = dict[str, Any]
Cases = dict[str, Settings]

BASE: Settings = {
    "task": "mini",
    "rounds": 2,
    "model": {"width": 4},
    "training": {"epochs": 1, "batch": 16},
    "protocol": {"clients": {"pen": 2, "photo": 1, "print": 2, "street": 1}, "samples": 24},
}
SITES = ["pen", "photo", "print"]
RULES = ["clip", "trimmed", "median", "geometric-median", "multi-krum"]
ATTACKS = [
    "label-flip", "sign-flip", "scale", "noise", "prototype-shift", "prototype-far", "copycat", "nan", "dropout-bursts",
]  # fmt: skip
KILLED = ["fedavg", "fpl", "fedcode", "scaffold", "fedpac", "strata", "moon"]
TABLES = ["training", "protocol", "params", "model", "privacy", "attack", "guard"]
PATIENCE = 600.0  # seconds after which a case hangs


def merged(*layers: Settings) -> Settings:
    """Lay settings over each other."""
    whole: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            whole[key] = {**whole.get(key, {}), **value} if key in TABLES else value
    return whole


def of_methods() -> Cases:
    """Every method as it is, and with every other value of each of its switches."""
    cases: Cases = {}
    for name in all_methods():
        cases[name] = {"method": name}
        for option, field in get_method(name).params.model_fields.items():
            kind = field.annotation
            values: tuple[Any, ...] = get_args(kind) if get_origin(kind) is Literal else ()
            values = (True, False) if kind is bool else values
            for value in values:
                if value != field.default:
                    cases[f"{name} {option}={value}"] = {"method": name, "params": {option: value}}
    return cases


def of_layers() -> Cases:
    """What may stand around a method."""
    cases: Cases = {}
    for method in ("fedavg", "fpl", "scaffold", "fedala", "i2pfl", "fedcode"):
        cases[f"{method} styles"] = {"method": method, "training": {"style_exchange": 0.6}}
    for draw in ("joint", "mean", "fixed"):
        cases[f"fedavg styles {draw}"] = {"training": {"style_exchange": 0.6, "style_draw": draw}}
        cases[f"strata {draw}"] = {"method": "strata", "params": {"draw": draw}}
    for method in ("fedavg", "i2pfl"):
        cases[f"{method} balance"] = {"method": method, "training": {"style_balance": True}}
        cases[f"{method} both"] = {"method": method, "training": {"style_balance": True, "style_exchange": 0.8}}
    # Under the names that Strata's options had while they were its own.
    cases["strata without exchange"] = {"method": "strata", "params": {"exchange": 0.0}}
    for option, value in (("draw", "joint"), ("draw", "mean"), ("draw", "fixed"), ("balance", False)):
        cases[f"strata {option}={value}"] = {"method": "strata", "params": {option: value}}
    for method in ("fedavg", "fpl", "i2pfl", "fedcode", "fedplvm", "fedproto", "copa", "fedpac", "strata", "fedopt"):
        for rule in RULES:
            if method != "strata" or rule not in ("median", "geometric-median"):
                cases[f"{method} robust {rule}"] = {"method": method, "robust": rule}
    cases["fpl styles robust"] = {"method": "fpl", "robust": "trimmed", "training": {"style_exchange": 0.6}}
    quiet = {"params": {"proto_pass": "eval_pass"}, "privacy": {"clip": 2.0, "noise": 0.5}}
    for method in ("fpl", "i2pfl", "fedproto"):
        cases[f"{method} privacy"] = {"method": method, **quiet}
        cases[f"{method} least"] = {"method": method, "privacy": {"least": 3}}
    for kind in ATTACKS:
        cases[f"fpl attack {kind}"] = {"method": "fpl", "attack": {"kind": kind}}
    for norm in ("clip", "drop"):
        cases[f"fedavg guard {norm}"] = {"attack": {"kind": "scale", "strength": 1e4}, "guard": {"norm": norm}}
    cases["fedavg strikes"] = {"rounds": 3, "attack": {"kind": "nan"}, "guard": {"strikes": 2}}
    cases["all layers"] = merged(
        {"method": "fpl", "robust": "clip", "attack": {"kind": "noise"}, "guard": {"norm": "clip"}},
        {"training": {"style_exchange": 0.6}},
    )
    return cases


def of_settings() -> Cases:
    """How a run is trained, divided and tested."""
    cases: Cases = {}
    for method in ("fedavg", "fpl", "fedcode", "strata"):
        cases[f"{method} bfloat16"] = {"method": method, "training": {"precision": "bfloat16"}}
    for method in ("fedavg", "fpl", "moon", "scaffold", "fedproto", "fedcode"):
        cases[f"{method} participation"] = {"method": method, "rounds": 4, "protocol": {"participation": 0.6}}
    cases["fedavg dropout"] = {"rounds": 4, "protocol": {"dropout": 0.4}}
    for method in ("fedavg", "fpl", "fedcode", "fedproto-original"):
        local = {"name": "local", "clients": BASE["protocol"]["clients"], "samples": 24}
        cases[f"{method} local"] = {"method": method, "protocol": local}
        cases[f"{method} equal"] = {"method": method, "protocol": {"name": "equal", "clients": {}}}
        unseen = {"name": "unseen", "unseen": "print", "clients": {"pen": 2, "photo": 1, "street": 1}}
        cases[f"{method} unseen"] = {"method": method, "protocol": unseen}
        cases[f"{method} sites"] = {"method": method, "protocol": {"name": "sites", "clients": {}, "samples": {}}}
    cases["fedavg pool"] = {"protocol": {"pool": True}}
    cases["fedavg repair"] = {"protocol": {"repair": True, "samples": 9}}
    cases["fedavg eval all"] = {"protocol": {"eval": "all"}}
    cases["fedavg shares"] = {"protocol": {"samples": 0.05}}
    cases["fedavg patience"] = {"rounds": 4, "patience": 1, "protocol": {"validation": 0.25}}
    cases["fedavg own statistics"] = {"buffers": "local"}
    cases["fpl aggregated"] = {"method": "fpl", "buffers": "local", "tested": "aggregated"}
    cases["fpl trained"] = {"method": "fpl", "tested": "trained"}
    cases["fedavg seldom tested"] = {"rounds": 8, "evaluate_every": 2, "checkpoint_every": 3, "keep_models": [2, 5]}
    cases["fedavg cosine"] = {"rounds": 4, "training": {"schedule": "cosine", "warmup": 1}}
    cases["fedavg class weights"] = {"training": {"class_weights": True}}
    cases["fedavg plain images"] = {"training": {"crop": 0, "flip": False}}
    cases["fedavg resnet18"] = {"model": {"name": "resnet18", "width": 4}}
    cases["fedavg 48 pixels"] = {"size": 48}
    cases["i2pfl cap"] = {"method": "i2pfl", "params": {"cap": 1.5}}
    return cases


def here(arguments: list[str], log: Path) -> int:
    """Start a command in a fork of this process, which saves it the seconds of importing PyTorch."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with log.open("ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.argv = ["protolith", *arguments]
            command_line()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def wait(pid: int) -> int:
    """Wait for a fork's end; its exit code."""
    until = time.monotonic() + PATIENCE
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def killed(arguments: list[str], log: Path, out: Path) -> int:
    """Kill a run once its first round is written down, and resume it."""
    pid = here(arguments, log)
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if (file := out / "metrics.jsonl").is_file() and file.stat().st_size:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.002)
    return wait(here(["resume", str(out)], log))


def tensors(file: Path) -> str:
    """One hash of a record's names, shapes and numbers; what the file says about itself is left out."""
    digest = hashlib.sha256()
    with safe_open(file, "pt") as record:
        for name in sorted(record.keys()):
            tensor = record.get_tensor(name).contiguous()
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return digest.hexdigest()[:16]


def short(value: object) -> str:
    """A hash of something plain."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def found(run: Path) -> dict[str, str]:
    """What a run came to: the hashes of its models, of what it predicts, and of each of its metrics."""
    if not (run / "summary.json").is_file():
        return {"end": "unfinished"}
    hashes = {}
    for file in sorted([*run.glob("*.safetensors"), *run.glob("models/*.safetensors")]):
        hashes[f"model {file.relative_to(run)}"] = tensors(file)
    for file in sorted(run.glob("diagnostics/tests.safetensors")):
        hashes["predictions"] = tensors(file)
    for file in sorted(run.glob("diagnostics/prototypes-*.safetensors")):
        hashes[f"sent {file.stem[-6:]}"] = tensors(file)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for key in sorted({key for line in lines for key in line} - {"seconds", "format"}):
        hashes[f"metric {key}"] = short([line.get(key) for line in lines])
    summary = json.loads((run / "summary.json").read_text())
    hashes["summary mean"] = short([summary["accuracy"], summary["mean"], summary["rule"]])
    return hashes


class Recorder:
    """Runs cases, two at a time where they are single processes, and gathers what they came to."""

    def __init__(self, place: Path, out: Path) -> None:
        self.place, self.out = place, out
        self.cases: dict[str, dict[str, str]] = {}
        self.under_way: list[tuple[int, str, Path]] = []

    def arguments(self, name: str, settings: Settings) -> tuple[list[str], Path, Path]:
        folder = self.place / short(name)
        folder.mkdir()
        (folder / "case.toml").write_text(tomli_w.dumps(settings))
        call = ["run", "--config", str(folder / "case.toml"), "--out", str(folder / "run")]
        return call, folder / "log", folder / "run"

    def start(self, name: str, settings: Settings) -> None:
        """Begin a case; of two that work, wait for the older first."""
        if len(self.under_way) == 2:
            self.finish_one()
        arguments, log, out = self.arguments(name, settings)
        self.under_way.append((here(arguments, log), name, out))

    def finish_one(self) -> None:
        pid, name, out = self.under_way.pop(0)
        self.note(name, wait(pid), out)

    def finish(self) -> None:
        while self.under_way:
            self.finish_one()

    def note(self, name: str, code: int, out: Path) -> None:
        log = (out.parent / "log").read_text(errors="replace").strip()
        self.cases[name] = found(out) if code == 0 else {"end": f"code {code}: {log[-200:]}"}
        print(f"{name}: {len(self.cases[name])} hashes{'' if code == 0 else ' ' + self.cases[name]['end']}", flush=True)
        about = {"processor": processor(), "torch": torch.__version__, "cases": self.cases}
        self.out.write_text(json.dumps(about, indent=1))


@contextlib.contextmanager
def ray_cluster() -> Iterator[str]:
    """A cluster of two cores for all cases; it ends when its process loses its input."""
    code = (
        "from ray.cluster_utils import Cluster\n"
        "node = {'num_cpus': 2, 'object_store_memory': 200 * 2**20, 'include_dashboard': False}\n"
        "cluster = Cluster(initialize_head=True, head_node_args=node)\n"
        "print(cluster.address, flush=True)\n"
        "input()\n"
    )
    own = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    pipe = subprocess.PIPE
    cluster = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True, env=own)
    assert cluster.stdout is not None and cluster.stdin is not None
    try:
        yield cluster.stdout.readline().strip()
    finally:
        cluster.stdin.close()
        cluster.wait(60)


@contextlib.contextmanager
def deployment(place: Path) -> Iterator[str]:
    """A real SuperLink and three SuperNodes on loopback, each with four images of every class."""
    task = load_task("mini")
    for site in SITES:
        domain = task.by_name[site].train
        for label, word in enumerate(task.classes):
            folder = place / "images" / site / word
            folder.mkdir(parents=True)
            for row in torch.nonzero(domain.labels == label).flatten()[:4].tolist():
                Image.fromarray(domain.images[row].numpy()).save(folder / f"{row:05d}.png")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    where, program = str(place / "deployment"), [sys.executable, "-m", "protolith", "deploy"]
    subprocess.run([*program, "init", where, "--sites", ",".join(SITES), "--port", str(port)], check=True)
    folders = [word for site in SITES for word in ("--data", f"{site}={place / 'images' / site}")]
    try:
        subprocess.run([*program, "up", where, *folders], check=True)
        yield where
    finally:
        subprocess.run([*program, "down", where], check=True)


def record(arguments: argparse.Namespace) -> int:
    """Run all cases and write down what they came to."""
    engines = arguments.engines.split(",")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        recorder = Recorder(Path(place), arguments.out)
        wanted = [name for name in all_methods() if arguments.only in name]
        if "here" in engines:
            for name, settings in {**of_methods(), **of_layers(), **of_settings()}.items():
                if arguments.only in name:
                    recorder.start(f"here: {name}", merged(BASE, settings, {"workers": 0}))
            recorder.finish()
            for method in (name for name in KILLED if name in wanted):
                name = f"killed: {method}"
                call, log, out = recorder.arguments(name, merged(BASE, {"method": method, "rounds": 3, "workers": 0}))
                recorder.note(name, killed(call, log, out), out)
        if "two" in engines:
            for method in wanted:
                recorder.start(f"two: {method}", merged(BASE, {"method": method, "workers": 2}))
                recorder.finish()
        if "ray" in engines:
            with ray_cluster() as address:
                for method in wanted:
                    ray = {"method": method, "engine": "ray", "address": address}
                    recorder.start(f"ray: {method}", merged(BASE, ray))
                    recorder.finish()
        if "flower" in engines:
            with deployment(Path(place) / "flower") as where:
                own = {"rounds": 2, "model": {"width": 4}, "training": {"epochs": 1, "batch": 16}}
                for method in wanted:
                    at_sites = {"method": method, "engine": "flower", "deployment": where}
                    recorder.start(f"flower: {method}", {**own, **at_sites})
                    recorder.finish()
    print(f"{len(recorder.cases)} cases in {arguments.out}")
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Say what agrees, and name what does not."""
    one, other = (json.loads(file.read_text()) for file in (arguments.before, arguments.after))
    if (one["processor"], one["torch"]) != (other["processor"], other["torch"]):
        print(f"NOT COMPARABLE: {one['processor']}, {one['torch']} and {other['processor']}, {other['torch']}")
    before, after, counts, different = one["cases"], other["cases"], {}, 0
    for name in sorted({*before, *after}):
        if name not in before or name not in after:
            print(f"{name}: only {'before' if name in before else 'after'}")
            different += name in before
            continue
        for key in sorted({*before[name], *after[name]}):
            same = before[name].get(key) == after[name].get(key)
            kind = key.split()[0]
            counts[kind, same] = counts.get((kind, same), 0) + 1
            different += not same
            if not same:
                print(f"{name}: {key}: {before[name].get(key, 'absent')} -> {after[name].get(key, 'absent')}")
    kinds = sorted({kind for kind, _ in counts})
    told = [f"{kind} {counts.get((kind, True), 0)} equal, {counts.get((kind, False), 0)} not" for kind in kinds]
    print(f"{len(before)} cases before, {len(after)} after; " + "; ".join(told))
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--engines", default="here,two,ray,flower")
    recording.add_argument("--only", default="", help="cases with this word in their name")
    recording.set_defaults(call=record)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(call=compare)
    arguments = parser.parse_args()
    code: int = arguments.call(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
