"""The processes of a deployment on this machine: started, noted by their numbers, and ended by them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from protolith.errors import RunFailed, UserError
from protolith.flower.commands import LINK, environment, flwr, tls_problem
from protolith.flower.plan import Deployment, programs
from protolith.machine import began_at

START_SECONDS = 120.0
END_SECONDS = 15.0
SERVER = "the server"
SERVER_APP = b"flwr-serverapp"  # in the command line of the server's half of a run

Say = Callable[[str], None]


class Processes:
    """The note of what runs here: a name, the process's number, and when it began (numbers are used again)."""

    def __init__(self, deployment: Deployment) -> None:
        self.file = deployment.state / "processes.json"

    def running(self) -> dict[str, int]:
        """The processes that are noted and still there."""
        noted = json.loads(self.file.read_text()) if self.file.is_file() else {}
        return {name: pid for name, (pid, began) in noted.items() if began is not None and began_at(pid) == began}

    def start(self, name: str, command: list[str], env: Mapping[str, str], log: Path, cwd: Path) -> int:
        """Start a program in a group of its own, and note it."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        noted = {other: (pid, began_at(pid)) for other, pid in self.running().items()}
        self.file.write_text(json.dumps({**noted, name: (process.pid, began_at(process.pid))}))
        return process.pid

    def end(self, name: str) -> bool:
        """End a process and those that it started: first with a request, then without."""
        pid = self.running().get(name)
        if pid is None:
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
            deadline = time.monotonic() + END_SECONDS
            while name in self.running() and time.monotonic() < deadline:
                time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whatever the process left behind in its group
        return True


def start_server(deployment: Deployment, say: Say) -> None:
    """Start the server and make the sites' keys known to it."""
    processes = Processes(deployment)
    deployment.state.mkdir(mode=0o700, exist_ok=True)
    if SERVER not in processes.running():
        _refuse_busy(deployment.plan.port)
        log = deployment.state / "server.log"
        pid = processes.start(
            SERVER, server_command(deployment), environment(deployment.state / "flwr"), log, deployment.state
        )
        say(f"server: process {pid}, port {deployment.plan.port}, log {log}")
    deadline = time.monotonic() + START_SECONDS
    while problem := tls_problem(deployment, "127.0.0.1"):
        if SERVER not in processes.running() or time.monotonic() > deadline:
            raise RunFailed(f"the server did not start ({problem}); see {deployment.state / 'server.log'}.")
        time.sleep(0.5)
    nodes = deployment.nodes
    for site in deployment.plan.sites:
        if site not in nodes:
            key = deployment.server / "keys" / f"{site}.pub"
            nodes[site] = int(flwr(deployment, "supernode", "register", str(key), LINK)["node-id"])
            deployment.remember_nodes(nodes)
            say(f"registered the key of site {site}")


def server_command(deployment: Deployment) -> list[str]:
    """The command that starts the server."""
    place = deployment.server
    return [
        str(programs() / "flower-superlink"),
        "--ssl-ca-certfile", str(place / "ca.crt"),
        "--ssl-certfile", str(place / "server.crt"),
        "--ssl-keyfile", str(place / "server.key"),
        "--enable-supernode-auth",
        "--host", deployment.bind,
        "--port", str(deployment.plan.port),
        "--disable-runtime-dependency-installation",
        "--database", str(deployment.state / "link.db"),
    ]  # fmt: skip


def start_site(deployment: Deployment, site: str, data: Path, say: Say) -> None:
    """Start a site on this machine by its own start script."""
    processes, folder = Processes(deployment), deployment.site(site)
    if site in processes.running():
        return
    if not data.is_dir():
        raise UserError(f"--data {site}={data}: the folder does not exist.")
    state = folder / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    env = {**environment(state / "flwr"), "PROTOLITH_PORT": str(free_port())}
    log = state / "site.log"
    pid = processes.start(site, ["/bin/sh", str(folder / "start.sh"), str(data.resolve())], env, log, folder)
    say(f"site {site}: process {pid}, images in {data}, log {log}")


def stop(deployment: Deployment, say: Say) -> None:
    """End everything that was started here: the sites first."""
    processes = Processes(deployment)
    for name in sorted(processes.running(), key=lambda name: name == SERVER):
        if processes.end(name):
            say(f"ended {name if name == SERVER else f'site {name}'}")


def end_left_behind(deployment: Deployment, pid: int) -> bool:
    """End the server's half of a run whose server is gone; it would look for that server for ever."""
    server, began = Processes(deployment).running().get(SERVER), began_at(pid)
    newer = server is not None and began is not None and (began_at(server) or 0) < began
    if began is None or newer or SERVER_APP not in Path(f"/proc/{pid}/cmdline").read_bytes():
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # the run's files are whole at any moment
    return True


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _refuse_busy(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UserError(f"port {port} is in use: change `port` in deployment.toml and the sites' files.") from None
