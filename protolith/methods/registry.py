"""The methods by name: the files of this folder, installed entry points, and plug-in files."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from protolith.data.spec import TaskSpec, read_task, register_task
from protolith.doors import brought
from protolith.errors import UserError, right_name
from protolith.methods import facts
from protolith.methods.base import Params
from protolith.records import Record

if TYPE_CHECKING:
    from protolith.methods.fedavg import Client, Server


def classify(model: nn.Module, images: Tensor, knowledge: Record) -> Tensor:
    """Predict with the network's own head (what most methods do)."""
    logits: Tensor = model(images)
    return logits


@dataclass(frozen=True)
class Method:
    """An algorithm: its options, its client half, its server half, and what to say about it."""

    name: str
    title: str
    paper: str
    idea: str
    objective: str
    server_step: str
    traffic: str
    params: "type[Params]"
    client: "type[Client]"
    server: "type[Server]"
    passes: str = "one forward and one backward pass per batch"
    memory: str = "none"
    accuracy: str = "of the global model"
    notes: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)  # of a run, such as the layers it consists of
    predict: Callable[[nn.Module, Tensor, Record], Tensor] = classify


_PLUGGED: dict[str, Method] = {}  # those that only this process knows
_LOADED: dict[str, str] = {}  # plug-in -> the digest of what this process has loaded


@cache
def _installed() -> dict[str, Method]:
    return brought("methods", "Method", lambda one: isinstance(one, Method), lambda one: str(one.name))


def all_methods() -> dict[str, Method]:
    """Every method there is, by name."""
    return {name: get_method(name) for name in method_names()}


def method_names() -> list[str]:
    """The name of every method there is; those of this folder are not imported for it."""
    return sorted({*facts.built_in(), *_installed(), *_PLUGGED})


def get_method(name: str) -> Method:
    """Find a method by its name, in capitals or not."""
    name = right_name("method", name, method_names(), "`protolith methods` lists all")
    if (method := _PLUGGED.get(name) or _installed().get(name)) is not None:
        return method
    found: Method = importlib.import_module(facts.built_in()[name].module).METHOD
    return found


def register_method(method: Method) -> Method:
    """Add a method for this process (worker processes learn of it through a plug-in)."""
    _PLUGGED[method.name] = method
    return method


def only_here(name: str) -> bool:
    """Tell whether a method was registered in this process, so that workers know it only through a plug-in."""
    return name in _PLUGGED


def load_plugin(plugin: str) -> None:
    """Import a module or a .py file, or read a task's .toml.

    A METHOD or a TASK in it is registered, and so is whatever it registers itself.
    """
    if plugin.endswith(".toml"):
        _LOADED[plugin] = _digest([register_task(read_task(Path(plugin))).model_dump_json().encode()])
        return
    try:
        with redirect_stdout(sys.stderr):  # a command's output is its result alone
            module = _from_file(plugin) if plugin.endswith(".py") else _from_module(plugin)
    except (ImportError, OSError, SyntaxError) as error:
        raise UserError(f"the plug-in '{plugin}' cannot be loaded: {error}.") from error
    method = getattr(module, "METHOD", None)
    if isinstance(method, Method):
        register_method(method)
    if isinstance(task := getattr(module, "TASK", None), TaskSpec):
        register_task(task)


def plugin_digest(plugin: str) -> str:
    """The content of a plug-in as a hash: as it was when this process loaded it."""
    if plugin not in _LOADED:
        load_plugin(plugin)
    return _LOADED[plugin]


def _from_file(plugin: str) -> ModuleType:
    name = f"protolith_plugin_{Path(plugin).stem}"
    spec = importlib.util.spec_from_file_location(name, plugin)
    if spec is None:
        raise ImportError(f"cannot import {plugin}")
    module = importlib.util.module_from_spec(spec)
    source = Path(plugin).read_bytes()
    sys.modules[name] = module
    # Not by the loader: its cache takes a file that was edited within a second, and has the same size, for the old one.
    exec(compile(source, plugin, "exec"), module.__dict__)
    _LOADED[plugin] = _digest([source])
    return module


def _from_module(plugin: str) -> ModuleType:
    module = importlib.import_module(plugin)
    file = Path(module.__file__ or "")
    files = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file] if file.is_file() else []
    _LOADED.setdefault(plugin, _digest(source.read_bytes() for source in files))  # a module is imported once
    return module


def _digest(sources: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(hashlib.sha256(source).digest())
    return digest.hexdigest()[:10]
