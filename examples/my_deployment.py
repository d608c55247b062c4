"""A real federation on this machine: a server and two sites with keys and TLS. Run it: `python my_deployment.py`.

It needs Flower, an extra of Protolith's, and ends with a sentence where that is not installed.
"""

import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from my_own_data import make_sites

import protolith as pl

HERE, SITES = Path("hospitals"), ("paper", "leaf")


def protolith(*words: object) -> None:
    """Run a command; the same words work in a terminal."""
    print("$ protolith", *words, flush=True)
    script = "from protolith.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", script, *map(str, words)], check=True)


def free_port() -> int:
    """A port that nobody uses; at real sites it is fixed, and open in the firewall."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main(rounds: int) -> None:
    """Make the deployment, start it, train, and stop it whatever happens."""
    images = make_sites(Path("images"))
    shutil.rmtree(HERE, ignore_errors=True)
    protolith("deploy", "init", HERE, "--sites", ",".join(SITES), "--port", free_port())
    try:
        protolith("deploy", "up", HERE, *(word for site in SITES for word in ("--data", f"{site}={images / site}")))
        protolith("deploy", "check", HERE)
        settings = ["--set", "width=4", "--set", "epochs=1", "--set", "batch=16"]
        out = ["--rounds", rounds, "--out", "runs/hospitals"]
        protolith("run", "--engine", "flower", "--deployment", HERE, "--method", "fpl", *settings, *out)
    finally:
        protolith("deploy", "down", HERE)
    print(pl.load("runs/hospitals").table())


if __name__ == "__main__":
    if importlib.util.find_spec("flwr") is None:
        sys.exit("Flower is not installed, so there is nothing to start: pip install 'protolith[flower]'.")
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
