"""A deployment: one server, several sites, and the directory that describes them."""

import ipaddress
import json
import re
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from protolith.errors import UserError
from protolith.runs.config import read_toml, validated
from protolith.runs.defaults import Tree

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Plan(BaseModel):
    """What deployment.toml says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="the deployment's name, and that of its task unless a run says otherwise")
    host: str = Field("localhost", description="the name or address under which the sites reach the server")
    port: int = Field(9092, ge=1, le=65535, description="the server's port")
    sites: list[str] = Field(min_length=1, description="the sites, in the order of their client numbers")
    quorum: int = Field(1, ge=1, description="sites that must answer in a round")
    wait: float = Field(
        600.0,
        gt=0,
        description="seconds to wait for a quorum before a run stops, and, when it goes on, for the sites of before",
    )
    answer: float = Field(3600.0, gt=0, description="seconds that a site may take for the work of a round")


class Deployment:
    """The directory of a deployment."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.server = self.path / "server"
        self.state = self.server / "state"

    @classmethod
    def open(cls, path: Path) -> "Deployment":
        """Open a deployment that exists."""
        if not (path / "deployment.toml").is_file():
            raise UserError(f"{path} is not a deployment: make one with `protolith deploy init {path} --sites a,b`.")
        return cls(path)

    @cached_property
    def plan(self) -> Plan:
        """What deployment.toml says."""
        plan = validated(Plan, read_toml(self.path / "deployment.toml"))
        check_names(plan.sites, plan.host)  # they become folders, also where the file was changed by hand
        if plan.quorum > len(plan.sites):
            raise UserError(f"quorum = {plan.quorum}: the deployment has only {len(plan.sites)} site(s).")
        return plan

    def write(self, plan: Plan) -> None:
        """Write deployment.toml."""
        (self.path / "deployment.toml").write_text(tomli_w.dumps(plan.model_dump()))

    def site(self, name: str) -> Path:
        """The directory that goes to a site."""
        return self.path / "sites" / name

    @property
    def bind(self) -> str:
        """The address at which the server listens."""
        return "127.0.0.1" if self.plan.host in LOOPBACK else "0.0.0.0"

    @property
    def nodes(self) -> dict[str, int]:
        """The sites' node numbers, which the server gave to their keys; empty before it was started."""
        path = self.state / "nodes.json"
        return {site: int(node) for site, node in json.loads(path.read_text()).items()} if path.is_file() else {}

    def remember_nodes(self, nodes: dict[str, int]) -> None:
        """Note the sites' node numbers."""
        (self.state / "nodes.json").write_text(json.dumps(nodes, indent=2) + "\n")

    def settings(self) -> Tree:
        """What a run here starts from: each site is one client, with all its training images."""
        clients = dict.fromkeys(self.plan.sites, 1)
        place = {"engine": "flower", "deployment": str(self.path), "task": self.plan.name}
        return {**place, "protocol": {"clients": clients, "samples": dict.fromkeys(clients, 1.0)}}


def check_names(sites: Sequence[str], host: str) -> None:
    """Refuse names that cannot be folders, domains or hosts."""
    for site in sites:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", site):
            raise UserError(f"--sites: '{site}' is not a name: letters, digits, '-', '_' and '.' are allowed.")
    if len(set(sites)) != len(sites):
        raise UserError("--sites: two sites have the same name.")
    if not sites:
        raise UserError("--sites: at least one site is needed.")
    if not is_address(host) and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
        raise UserError(f"--host {host}: it is the name or the address of the server, without a port.")


def is_address(host: str) -> bool:
    """Tell whether a host is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def programs() -> Path:
    """Where Flower's programs are; a clear sentence when it is not installed."""
    folder = Path(sys.executable).parent
    if not (folder / "flower-superlink").exists():
        raise UserError("Flower is not installed: pip install 'protolith[flower]'.")
    return folder
