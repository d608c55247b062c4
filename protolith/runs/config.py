"""Configuration: layers of settings, resolved into one complete description of a run."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeVar

import tomli_w
from pydantic import BaseModel, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from protolith import files
from protolith.data.domain import Task
from protolith.data.protocols import PROTOCOLS, complete
from protolith.errors import UserError, nearest, unknown
from protolith.federation.setup import RENAMED, Setup, with_new_names
from protolith.methods.registry import get_method, load_plugin
from protolith.models.backbones import input_of, is_backbone, open_backbone
from protolith.models.registry import check_model
from protolith.runs.defaults import Tree, default_protocol, defaults_for, options_for, tuned_defaults

# Of a run's directory, in its config.toml; a later version that changes it raises the number. In the first, rounds
# count from 0 in metrics.jsonl and memory/.
FORMAT = 2
CONFIG_BYTES = 1 << 20
LISTED = "`protolith options METHOD` lists all"
SHOWN = 200  # letters of a wrong value that an error shows


class RunConfig(Setup):
    """A resolved run: everything that is needed to repeat it."""

    engine: Literal["local", "ray", "flower"] = Field("local", description="where clients' work is executed")
    deployment: str = Field("", description="directory of a deployment, for engine 'flower' (`protolith deploy init`)")
    address: str = Field("", description="a Ray cluster's address, for engine 'ray'; empty: a new one on this machine")
    workers: int = Field(-1, ge=-1, description="worker processes; -1: one for each core, 0: none (for debugging)")
    evaluate_every: int = Field(1, ge=1, description="test every so many rounds (the last five always)")
    checkpoint_every: int = Field(1, ge=1, description="write a checkpoint every so many rounds")
    patience: int = Field(
        0, ge=0, description="stop after so many rounds without a better validation accuracy; 0: never"
    )
    keep_models: list[int] = Field([], description="rounds after which the global model is kept in models/")
    init: str = Field("", description="a safetensors file with the weights to start from; empty: drawn from the seed")
    diagnostics: bool = Field(True, description="save what the report shows: predictions, features, prototypes")


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> Tree:
    """Lay one tree of settings over another."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        # Clients and samples by domain are one value each: a new table replaces the old one.
        whole = key in ("clients", "samples")
        merged[key] = (
            merge(below, value) if isinstance(below, dict) and isinstance(value, dict) and not whole else value
        )
    return merged


def resolve(layers: Iterable[Mapping[str, object]]) -> RunConfig:
    """Resolve the user's layers (the weakest first) over the defaults of task, protocol and method."""
    given: Tree = {}
    for layer in layers:
        given = merge(given, layer)
    _refuse_misshapen(given)
    for plugin in given.get("plugins", []):
        load_plugin(str(plugin))
    method = get_method(str(given.get("method", "fedavg")))
    given = with_new_names({**given, "method": method.name})
    task = str(given.get("task", "mini"))
    protocol = str(given.get("protocol", {}).get("name") or default_protocol(task))
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    tree: Tree = {}
    for default in defaults_for(task, protocol):
        tree = merge(tree, default)
    tree = merge(tree, {"protocol": {"name": protocol}, "params": options_for(task, method)})
    tree = merge(tree, method.settings)
    if is_backbone(str(given.get("model", {}).get("name", ""))):
        tree = merge(tree, tuned_defaults(given["model"], method))
    tree = merge(tree, given)
    tree = _with_input(tree, given)
    params = validated(method.params, tree.get("params", {}), "params.")
    return validated(RunConfig, {**tree, "params": params.model_dump()})


def _with_input(tree: Tree, given: Tree) -> Tree:
    """Write down what a backbone wants to see; images have its size unless the user said another."""
    check_model(name := str(tree.get("model", {}).get("name", "resnet10")))
    if not is_backbone(name):
        if (tune := tree.get("model", {}).get("tune", "scratch")) != "scratch":
            raise UserError(f"model.tune = '{tune}' needs a pretrained backbone, and {name} is trained from scratch.")
        if tree.get("model", {}).get("weights"):
            raise UserError(
                f"model.weights is for pretrained backbones; what {name} starts from is given as --init FILE."
            )
        return tree
    spec = input_of(name)
    size = given.get("size", spec.size)
    return merge(tree, {"size": size, "model": {"input": {**spec.plain(), "size": size}}})


def _refuse_misshapen(given: Tree) -> None:
    """Refuse a value where a table is needed, before it is looked into."""
    for name in ("protocol", "model", "training", "params"):
        if not isinstance(given.get(name, {}), dict):
            raise UserError(f"{name} = {str(given[name])[:SHOWN]!r}: it is a table; write [{name}] above its settings.")
    if not isinstance(given.get("plugins", []), list):
        raise UserError(f'plugins = {str(given["plugins"])[:SHOWN]!r}: it is a list, such as ["my_method.py"].')


def complete_for(config: RunConfig, task: Task) -> RunConfig:
    """Write the task's clients and samples into a configuration, and which weights a backbone has."""
    return with_weights(config.model_copy(update={"protocol": complete(config.protocol, task)}))


def with_weights(config: RunConfig) -> RunConfig:
    """Open a backbone once before a run begins: its weights must be here and be sound."""
    model = config.model
    if not is_backbone(model.name) or model.tune == "scratch":
        return config
    if model.sha256 and model.tag:  # opened before; whoever opens it now compares
        return config
    backbone = open_backbone(model.name, model.weights, config.size, model.sha256)
    backbone.check()
    known = model.model_copy(update={"sha256": backbone.sha256, "tag": backbone.tag})
    return config.model_copy(update={"model": known})


Settings = TypeVar("Settings", bound=BaseModel)


def validated(kind: type[Settings], values: Mapping[str, object], prefix: str = "") -> Settings:
    """Validate settings; the first fault becomes one sentence that names the key and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        places = [str(part) for part in fault["loc"]]
        if fault["type"] == "extra_forbidden":
            names = [prefix + name for name in keys_of(kind)]
            raise unknown("key", prefix + ".".join(places), names, LISTED) from None
        given, place = repr(fault["input"]), prefix + ".".join(places)
        shown = given if len(given) <= SHOWN else f"{given[:SHOWN]}…"
        raise UserError(f"{place} = {shown}: {fault['msg'].lower()}.{_meant(fault)}") from None


def _meant(fault: ErrorDetails) -> str:
    """The allowed word that looks most like the given one, where there are such words."""
    words = re.findall(r"'(\w[\w-]*)'", str(fault.get("ctx", {}).get("expected", "")))
    near = nearest(str(fault["input"]), words)
    return f" Did you mean '{near[0]}'?" if near else ""


def keys_of(kind: type[BaseModel]) -> list[str]:
    """All keys of a settings class, dotted."""
    return list(settings_of(kind))


def settings_of(kind: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """All settings of a class by their dotted keys."""
    found: dict[str, FieldInfo] = {}
    for name, info in kind.model_fields.items():
        inner = info.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= settings_of(inner, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    return found


def parse_set(settings: Iterable[str], method: str, plugins: Iterable[str] = ()) -> Tree:
    """Turn `key=value` settings into a tree. A key may be short (`lr`) where only one setting has that name."""
    tree: Tree = {}
    for plugin in plugins:
        load_plugin(plugin)
    params = [f"params.{name}" for name in get_method(method).params.model_fields]
    keys = [key for key in keys_of(RunConfig) if key != "params"] + params
    renamed = RENAMED.get(method.lower(), {})
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting}: it has the form key=value.")
        branch, key = tree, key.strip()
        *path, last = _full_key(renamed.get(key.removeprefix("params."), key), keys).split(".")
        for part in path:
            branch = branch.setdefault(part, {})
        branch[last] = _value(text.strip())
    return tree


def _full_key(key: str, keys: list[str]) -> str:
    if key in keys or key.startswith(("protocol.clients.", "protocol.samples.")):
        return key
    matches = [full for full in keys if full.rsplit(".", 1)[-1] == key]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"--set {key}: the name is short for {' and '.join(matches)}; write which one.")
    short = {full.rsplit(".", 1)[-1] for full in keys}
    raise unknown("key in --set", key, keys if "." in key else sorted(short), LISTED)


def _value(text: str) -> object:
    """Read a value as TOML does; a bare word is a string, and true and false may be capitalised."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def read_toml(path: Path) -> Tree:
    """Read a configuration file; one of a newer version is refused."""
    try:
        tree = parse_toml(files.read_text(path, CONFIG_BYTES))
    except FileNotFoundError:
        raise UserError(f"the configuration file {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"the configuration file {path} cannot be read: {error}.") from None
    if problem := files.newer(f"the configuration file {path}", tree.pop("format", FORMAT), FORMAT):
        raise problem
    return tree


def parse_toml(text: str) -> Tree:
    """Read TOML from outside: whatever is wrong with it is a ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def to_toml(config: RunConfig) -> str:
    """Write a configuration out, complete."""
    return tomli_w.dumps({"format": FORMAT, **config.model_dump(mode="json")})
