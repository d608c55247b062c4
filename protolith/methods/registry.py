"""The methods by name: the files of this folder, installed entry points, and plug-in files."""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from protolith.errors import UserError, unknown
from protolith.methods.base import Params
from protolith.records import Record

if TYPE_CHECKING:
    from protolith.methods.fedavg import Client, Server

ENTRY_POINTS = "protolith.methods"


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
    protects: bool = False  # it sends weights and `with_prototypes` class means alone: `privacy` covers the latter
    predict: Callable[[nn.Module, Tensor, Record], Tensor] = classify


_PLUGGED: dict[str, Method] = {}  # those that only this process knows


@cache
def _built_in() -> dict[str, Method]:
    package = importlib.import_module("protolith.methods")
    found: dict[str, Method] = {}
    for module_info in pkgutil.iter_modules(package.__path__, "protolith.methods."):
        method = getattr(importlib.import_module(module_info.name), "METHOD", None)
        if isinstance(method, Method):
            found[method.name] = method
    return found


@cache
def _installed() -> dict[str, Method]:
    found: dict[str, Method] = {}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            method = point.load()
        except Exception as error:
            raise UserError(f"the entry point '{point.name}' of {ENTRY_POINTS} cannot be loaded: {error}.") from error
        if not isinstance(method, Method):
            raise UserError(f"the entry point '{point.name}' of {ENTRY_POINTS} is not a protolith Method.")
        found[method.name] = method
    return found


def all_methods() -> dict[str, Method]:
    """Every method there is, by name."""
    return dict(sorted({**_built_in(), **_installed(), **_PLUGGED}.items()))


def get_method(name: str) -> Method:
    """Find a method by its name."""
    methods = all_methods()
    if name not in methods:
        raise unknown("method", name, methods)
    return methods[name]


def register_method(method: Method) -> Method:
    """Add a method for this process (worker processes learn of it through a plug-in)."""
    _PLUGGED[method.name] = method
    return method


def only_here(name: str) -> bool:
    """Tell whether a method was registered in this process, so that workers know it only through a plug-in."""
    return name in _PLUGGED


def load_plugin(plugin: str) -> None:
    """Import a module or a .py file; a METHOD in it is registered, and so is whatever it registers itself."""
    try:
        if plugin.endswith(".py"):
            name = f"protolith_plugin_{Path(plugin).stem}"
            spec = importlib.util.spec_from_file_location(name, plugin)
            if spec is None or spec.loader is None:
                raise ImportError(f"cannot import {plugin}")
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(plugin)
    except (ImportError, OSError, SyntaxError) as error:
        raise UserError(f"the plug-in '{plugin}' cannot be loaded: {error}.") from error
    method = getattr(module, "METHOD", None)
    if isinstance(method, Method):
        register_method(method)
