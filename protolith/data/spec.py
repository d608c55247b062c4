"""Named tasks: one TOML file each says what a task is, where its domains may come from, and how it is run.

Ours lie in the folder `tasks` beside this file. One from outside comes from an entry point, a plug-in, or
`register_task`. Nothing here needs torch: a list of tasks must not wait for it.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from protolith import files
from protolith.doors import brought
from protolith.errors import UserError

FOLDER = Path(__file__).parent / "tasks"
BYTES = 1 << 20  # of a task's file
NEEDED = ("rounds", "training.epochs", "training.batch", "protocol.name")  # settings without a silent default

Tree = dict[str, Any]
Rule = Literal["given", "by-position", "by-class"]

RULES: dict[Rule, str] = {
    "given": "the authors' parts",
    "by-position": "of each ten images in class and file order the last two are the test part",
    "by-class": "about a fifth of each class, in file order, is held out as the test part",
}


class HubSource(BaseModel):
    """Where the files of a domain are on the hub: a repository, the folder of a configuration, a revision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$")
    folder: str = "data"
    revision: str = "main"

    @property
    def address(self) -> str:
        """Name it for people."""
        return f"hub:{self.repo}@{self.revision}/{self.folder}"


class Columns(BaseModel):
    """The columns of a parquet file; for image and label the first name that a file has counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label", "labels")
    domain: str = "domain"


class TaskSpec(BaseModel):
    """What a named task is, where its domains may come from, and what it is run with when nobody says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][\w-]*$")
    domains: tuple[str, ...] = Field(min_length=1)
    classes: tuple[str, ...] = Field(min_length=2)
    split: Rule = Field(description="how test images are held out; files that come in parts keep them")
    settings: Tree = Field(description="of a run; the user's words win over them")
    description: str = ""
    licence: str = "not stated"
    origin: str = "not stated"
    size: int = Field(32, ge=16, le=512, description="height and width of the network's input")
    hub: dict[str, HubSource] = Field({}, description="domains that the Hugging Face hub has")
    drawn: dict[str, str] = Field({}, description="domains that are drawn here, and by what")
    columns: Columns = Columns()
    protocols: dict[str, Tree] = Field({}, description="settings that another protocol needs, over `settings`")
    allocations: dict[str, dict[str, int]] = Field({}, description="named numbers of clients by domain")
    usual: dict[str, str] = Field({}, description="the allocation that a protocol uses when nothing else is asked for")
    methods: dict[str, Tree] = Field({}, description="options of methods, where they differ from the methods' own")

    @property
    def rule(self) -> Rule:
        """How test images are held out where the files come without parts."""
        return "by-position" if self.split == "given" else self.split

    @field_validator("domains", "classes")
    @classmethod
    def _no_name_twice(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"'{twice[0]}' is there twice")
        return names

    @field_validator("settings")
    @classmethod
    def _says_its_settings(cls, settings: Tree) -> Tree:
        if missing := [key for key in NEEDED if not _said(settings, key)]:
            raise ValueError(f"a task says its {', '.join(missing)}")
        return settings

    @model_validator(mode="after")
    def _names_its_own(self) -> "TaskSpec":
        tables: Mapping[str, Mapping[str, object]] = {"hub": self.hub, "drawn": self.drawn}
        tables = {**tables, **{f"allocations.{name}": table for name, table in self.allocations.items()}}
        for table, inside in tables.items():
            if strange := [name for name in inside if name not in self.domains]:
                raise ValueError(f"{table} names '{strange[0]}', which is no domain of the task")
        if strange := [name for name in self.usual.values() if name not in self.allocations]:
            raise ValueError(f"usual names '{strange[0]}', which is no allocation of the task")
        return self


def _said(tree: Any, key: str) -> bool:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree is not None


_PLUGGED: dict[str, TaskSpec] = {}  # those that only this process knows


def all_tasks() -> dict[str, TaskSpec]:
    """Every named task, by name: ours, those of installed packages, those that were registered."""
    return {**_ours(), **_installed(), **_PLUGGED}


def register_task(spec: TaskSpec) -> TaskSpec:
    """Add a task for this process (worker processes learn of it through a plug-in)."""
    if spec.name in _ours():
        raise UserError(f"the task '{spec.name}' is one of ours: give yours another name.")
    _PLUGGED[spec.name] = spec
    return spec


def read_task(path: Path) -> TaskSpec:
    """Read a task's file; the first fault becomes one sentence."""
    try:
        return TaskSpec.model_validate(tomllib.loads(files.read_text(path, BYTES)))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        reason = f"{place}: {fault['msg'].removeprefix('Value error, ')}".removeprefix(": ")
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    raise UserError(f"the task's file '{path}' cannot be used: {reason}.")


@cache
def _ours() -> dict[str, TaskSpec]:
    first = FOLDER / "mini.toml"  # the one that needs no data
    others = sorted(path for path in FOLDER.glob("*.toml") if path != first)
    return {spec.name: spec for spec in map(read_task, [first, *others])}


@cache
def _installed() -> dict[str, TaskSpec]:
    found: dict[str, TaskSpec] = brought(
        "tasks", "TaskSpec", lambda one: isinstance(one, TaskSpec), lambda one: str(one.name)
    )
    if taken := found.keys() & _ours().keys():
        raise UserError(f"an entry point of protolith.tasks has the name of a task of ours, '{min(taken)}'.")
    return found
