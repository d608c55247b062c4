"""A real federation on loopback, put to the test: equality, refusals, failures, bad uploads; with figures.

    python benchmarks/flower_trial.py --data DIR [--parts equal,refused,failures,rejected] [--json FILE]

DIR holds Office-Caltech10 as `office10/*.parquet`. Three of its domains are the sites. Every process that is
started is ended by its number.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from protolith import records
from protolith.flower import layout, processes
from protolith.flower.commands import environment
from protolith.flower.plan import Deployment

SITES = ["caltech", "amazon", "webcam"]
METHODS = ["fedavg", "fpl", "i2pfl", "fedcode"]
SETTINGS = ["--task", "office10", "--set", "width=4", "--set", "epochs=1", "--set", "batch=64"]
# A site that cheats: what its answers hold is changed on their way out.
CHEAT = """
import protolith.flower.site as site, torch
honest = site.Site.answer
def answer(self, request):
    reply = honest(self, request)
    weights, job = reply.records.get("weights", {}), request.about.get("job")
    if weights and job:
        bias, head = sorted(n for n in weights if n.startswith("head") or n.startswith("fc"))[:2] or sorted(weights)[:2]
        if job["round"] == 0: weights[bias] = weights[bias] * float("nan")
        if job["round"] == 1: weights[head] = weights[head][:, :1].clone()
        if job["round"] == 2: weights[bias] = torch.cat([weights[bias], weights[bias]])
    return reply
site.Site.answer = answer
"""


class Trial:
    """A deployment in a temporary directory."""

    def __init__(self, place: Path, data: Path, quorum: int = 2, wait: float = 20.0) -> None:
        self.place, self.data = place, data
        self.deployment = layout.create(place / "deployment", SITES, "localhost", processes.free_port())
        plan = self.deployment.plan.model_copy(update={"quorum": quorum, "wait": wait, "answer": 600.0})
        self.deployment.write(plan)
        self.deployment = Deployment.open(self.deployment.path)
        self.processes = processes.Processes(self.deployment)

    def up(self) -> None:
        processes.start_server(self.deployment, say)
        for site in SITES:
            self.start(site)

    def start(self, site: str) -> None:
        processes.start_site(self.deployment, site, self.data / "office10", say)

    def kill(self, site: str) -> None:
        os.killpg(self.processes.running()[site], signal.SIGKILL)

    def run(self, name: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "protolith", "run", "--engine", "flower"]
        place = ["--deployment", str(self.deployment.path), "--out", str(self.place / name)]
        return self.program([*command, *place, *SETTINGS, *options])

    def resume(self, name: str) -> subprocess.Popen[str]:
        return self.program([sys.executable, "-m", "protolith", "resume", str(self.place / name)])

    def program(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def metrics(self, name: str) -> list[dict[str, Any]]:
        file = self.place / name / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return [json.loads(line) for line in lines]

    def log(self, site: str) -> str:
        return (self.deployment.site(site) / "state" / "site.log").read_text(errors="replace")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def until(true: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.2)


def finish(process: subprocess.Popen[str], seconds: float = 900.0) -> tuple[int, str]:
    _, said = process.communicate(timeout=seconds)
    return process.returncode, said.strip().splitlines()[-1] if said.strip() else ""


def difference(one: Path, other: Path) -> float:
    a, b = (records.read(path / "model.safetensors") for path in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


def local(trial: Trial, name: str, *options: str) -> None:
    allocation = "protocol.clients={caltech=1,amazon=1,webcam=1,dslr=0}"
    command = [sys.executable, "-m", "protolith", "run", "--data", str(trial.data), "--out", str(trial.place / name)]
    command += [*SETTINGS, "--set", allocation, "--set", "protocol.samples=1.0", "--workers", "1", *options]
    code, said = finish(trial.program(command))
    assert code == 0, said


def equal(trial: Trial, rounds: int) -> dict[str, Any]:
    """Every method, at the sites and on this machine: weights and accuracies."""
    found: dict[str, Any] = {}
    for method in METHODS:
        options = ("--method", method, "--rounds", str(rounds))
        local(trial, f"local-{method}", *options)
        code, said = finish(trial.run(f"flower-{method}", *options))
        assert code == 0, said
        ours, theirs = trial.metrics(f"flower-{method}"), trial.metrics(f"local-{method}")
        same = all(
            a["accuracy"] == {site: b["accuracy"][site] for site in SITES} for a, b in zip(ours, theirs, strict=True)
        )
        exchanges = [line["seconds"]["evaluate"] for line in ours]
        found[method] = {
            "greatest difference of weights": difference(
                trial.place / f"flower-{method}", trial.place / f"local-{method}"
            ),
            "same accuracies": same,
            "seconds per exchange": round(sum(exchanges) / len(exchanges), 1),
            "seconds per round, local": round(sum(b["seconds"]["total"] for b in theirs) / len(theirs), 2),
        }
        say(f"{method}: {found[method]}")
    return found


def memory(trial: Trial) -> dict[str, float]:
    """Resident memory of the idle processes, in MB, by what they are."""
    found: dict[str, float] = {}
    for name, pid in trial.processes.running().items():
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                if os.getpgid(int(process.name)) != pid:
                    continue
                command = (process / "cmdline").read_bytes().split(b"\0")
                program = Path(next(c for c in command if b"flower" in c or b"flwr" in c).decode()).name
                pages = int((process / "statm").read_text().split()[1])
                found[f"{name}: {program}"] = round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
    return found


def refused(trial: Trial) -> dict[str, str]:
    """A key that is not registered, a plaintext site, a wrong authority: what each of them is told."""
    stranger = layout.create(trial.place / "stranger", SITES, "localhost", trial.deployment.plan.port)
    ours, theirs = trial.deployment.site("webcam"), stranger.site("webcam")
    base = [str(Path(sys.executable).parent / "flower-supernode")]
    base += ["--superlink", f"localhost:{trial.deployment.plan.port}", "--max-retries", "1"]
    tries = {
        "unregistered key": [
            "--root-certificates", str(ours / "ca.crt"), "--auth-supernode-private-key", str(theirs / "site.key"),
        ],
        "plaintext": ["--insecure"],
        "wrong authority": [
            "--root-certificates", str(theirs / "ca.crt"), "--auth-supernode-private-key", str(ours / "site.key"),
        ],
    }  # fmt: skip
    found = {}
    for name, options in tries.items():
        command = [*base, *options, "--host", "127.0.0.1", "--port", str(processes.free_port())]
        log = trial.place / "refused.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                command, env=environment(trial.place / "home"), stdout=output, stderr=output, start_new_session=True
            )
            try:
                found[name] = f"ended with code {process.wait(timeout=60)}"
            except subprocess.TimeoutExpired:
                found[name] = "still without connection after 60 s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said = log.read_text()
        assert "SuperNode ID" not in said, said
        say(f"{name}: {found[name]}: {' '.join(said.split())[-300:]}")
    return found


def failures(trial: Trial) -> dict[str, Any]:
    """A site killed in a round and back again, the quorum lost, the server killed: each run ends as it should."""
    found: dict[str, Any] = {}
    options = ("--method", "fedcode", "--rounds", "6")
    run = trial.run("killed-site", *options)
    until(lambda: len(trial.metrics("killed-site")) >= 1, 300, "the first round")
    before = trial.log("webcam").count("Receiving")
    until(lambda: trial.log("webcam").count("Receiving") > before, 120, "work for webcam")
    trial.kill("webcam")
    rounds = len(trial.metrics("killed-site"))
    until(lambda: len(trial.metrics("killed-site")) > rounds, 300, "a round without webcam")
    trial.start("webcam")
    code, said = finish(run)
    lines = trial.metrics("killed-site")
    found["site killed"] = {
        "exit code": code,
        "missing": [[line["round"], missing] for line in lines for missing in line["missing"]],
        "back in": [line["round"] for line in lines if len(line["accuracy"]) == len(SITES)],
    }
    say(str(found["site killed"]))

    run = trial.run("quorum", "--method", "fedavg", "--rounds", "4")
    until(lambda: len(trial.metrics("quorum")) >= 1, 300, "the first round")
    for site in ("amazon", "webcam"):
        trial.kill(site)
    code, said = finish(run)
    found["quorum lost"] = {"exit code": code, "said": said}
    say(str(found["quorum lost"]))
    for site in ("amazon", "webcam"):
        trial.start(site)
    code, said = finish(trial.resume("quorum"))
    found["quorum lost"]["resumed"] = code

    local(trial, "local-server", "--method", "fedcode", "--rounds", "4")
    run = trial.run("killed-server", "--method", "fedcode", "--rounds", "4")
    until(lambda: len(trial.metrics("killed-server")) >= 2, 300, "two rounds")
    os.kill(json.loads((trial.place / "killed-server" / "flower.json").read_text())["pid"], signal.SIGKILL)
    trial.processes.end(processes.SERVER)
    code, said = finish(run)
    found["server killed"] = {"exit code": code, "said": said}
    processes.start_server(trial.deployment, say)
    code, said = finish(trial.resume("killed-server"))
    found["server killed"] |= {
        "resumed": code,
        "greatest difference of weights": difference(trial.place / "killed-server", trial.place / "local-server"),
    }
    say(str(found["server killed"]))
    return found


def wait_for_sites(trial: Trial) -> None:
    """The server takes up to a minute to notice that a site was cut off, and refuses its return until then."""
    check = [sys.executable, "-m", "protolith", "deploy", "check", str(trial.deployment.path)]
    for _ in range(12):
        if subprocess.run(check, capture_output=True).returncode == 0:
            return
        time.sleep(10)


def rejected(trial: Trial) -> dict[str, Any]:
    """A site that sends NaN, then a wrong shape, then the wrong number of classes: rejected by name."""
    trial.processes.end("webcam")
    patch = trial.place / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(CHEAT)
    os.environ["PYTHONPATH"] = str(patch)
    trial.start("webcam")
    del os.environ["PYTHONPATH"]
    wait_for_sites(trial)
    code, said = finish(trial.run("cheated", "--method", "fedavg", "--rounds", "4"))
    lines = trial.metrics("cheated")
    return {
        "exit code": code,
        "said": said,
        "rejected": [[line["round"], reason] for line in lines for reason in line["rejected"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--parts", default="equal,refused,failures,rejected")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="flower-trial-") as place:
        trial = Trial(Path(place), arguments.data.resolve())
        found: dict[str, Any] = {}
        try:
            trial.up()
            time.sleep(15)
            found["idle memory, MB"] = memory(trial)
            if "equal" in parts:
                found["equal"] = equal(trial, arguments.rounds)
            for name, part in (("refused", refused), ("failures", failures), ("rejected", rejected)):
                if name in parts:
                    found[name] = part(trial)
                    print(json.dumps({name: found[name]}, indent=2), flush=True)
        finally:
            processes.stop(trial.deployment, say)
    print(json.dumps(found, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
