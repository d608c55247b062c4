"""Flower's own command line, with everything that would call home turned off."""

import json
import os
import socket
import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protolith.errors import RunFailed
from protolith.flower.plan import Deployment, programs

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
LINK = "protolith"  # the connection's name in Flower's configuration
SECONDS = 120.0  # for one command of Flower's, at most


def environment(home: Path) -> dict[str, str]:
    """The environment of every program of Flower's that we start."""
    path = f"{programs()}{os.pathsep}{os.environ.get('PATH', '')}"  # they start one another by name
    return {**os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}


def flwr(deployment: Deployment, *arguments: str) -> dict[str, Any]:
    """Run one of `flwr`'s commands against the deployment's server, and return its answer."""
    home = deployment.state / "flwr"
    home.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{deployment.plan.port}"
    root = deployment.server / "ca.crt"
    settings = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n'
    (home / "config.toml").write_text(f'{settings}root-certificates = "{root}"\n')
    command = [str(programs() / "flwr"), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=environment(home), capture_output=True, text=True, timeout=SECONDS, cwd=deployment.state
        )
    except subprocess.TimeoutExpired:
        raise RunFailed(f"`flwr {arguments[0]}` did not answer within {SECONDS:.0f} s.") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        said = " ".join((done.stderr or done.stdout).split())[-400:]
        raise RunFailed(f"`flwr {arguments[0]}` failed: {said or f'exit code {done.returncode}'}") from None
    if not answer.get("success"):
        said = answer.get("error-message") or answer.get("error") or done.stderr
        raise RunFailed(f"`flwr {arguments[0]}` failed: {' '.join(str(said).split())[-400:]}")
    return answer


def tls_problem(deployment: Deployment, host: str) -> str:
    """Say why no trusted connection to the server can be made under a name, or nothing."""
    try:
        _handshake(deployment, host)
    except ssl.SSLCertVerificationError as error:
        return f"the certificate is not valid for '{host}': {error.verify_message}"
    except (OSError, ssl.SSLError) as error:
        return f"no connection to {host}:{deployment.plan.port}: {error}"
    return ""


def certificate_ends(deployment: Deployment) -> datetime:
    """Until when the server's certificate is valid."""
    seconds = ssl.cert_time_to_seconds(_handshake(deployment, deployment.plan.host)["notAfter"])
    return datetime.fromtimestamp(seconds, UTC)


def _handshake(deployment: Deployment, host: str) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(deployment.server / "ca.crt"))
    with (
        socket.create_connection((host, deployment.plan.port), timeout=5) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        found: dict[str, Any] = secure.getpeercert() or {}
        return found
