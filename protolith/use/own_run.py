"""A run on images of one's own: what it takes where its user said nothing, and what it says about that."""

import os
import shlex
from typing import Any

from protolith.data.own import list_own
from protolith.data.sources.found import Progress, silent
from protolith.data.spec import all_tasks
from protolith.data.tasks import folder_of
from protolith.federation.setup import Setup
from protolith.models.backbones import is_backbone
from protolith.runs.defaults import Tree
from protolith.use.suggest import METHOD, SCRATCH, amounts_of, suggest

# The settings that are suggested, and where a user's layers have them.
PLACES = {
    "method": ("method",),
    "model": ("model", "name"),
    "size": ("size",),
    "width": ("model", "width"),
    "batch": ("training", "batch"),
    "rounds": ("rounds",),
    "epochs": ("training", "epochs"),
}
ON_RESNETS = {"fedcode"}  # makes its style encoder from one


def unsaid(given: Tree, say: Progress = silent) -> Tree:
    """The weakest layer of settings under all that a user said; empty where no images of one's own are here."""
    said = {name: value for name, place in PLACES.items() if (value := _at(given, place)) is not None}
    if _at_sites(given):
        if "size" not in said and not is_backbone(str(said.get("model", ""))):
            size = Setup.model_fields["size"].default
            say(f"size = {size} pixels: `protolith data check` at a site suggests one")
        return {}
    if not is_own(given) or not _open(said):
        return {}
    task = str(given["task"])
    found = suggest(amounts_of(list_own(folder_of(task))), model=_model(given, said))
    check = f"protolith data check {typed(task)}"
    say(f"settings for these images: {found.words(list(said))} ({check} explains them); what you set yourself stays")
    if isinstance(size := said.get("size"), int) and 2 * size <= found.size:
        say(f"size = {size} pixels: these images are worth {found.size}, and lose accuracy with so few")
    return found.settings()


def _open(said: Tree) -> set[str]:
    """What a user left open; a pretrained backbone has no width."""
    return {*PLACES} - {*said} - ({"width"} if is_backbone(str(said.get("model", ""))) else {"model"})


def _model(given: Tree, said: Tree) -> str | None:
    """The network that a user's words stand for; None where they leave it open."""
    if "model" in said:
        return str(said["model"])
    scratch = "width" in said or _at(given, ("model", "tune")) == "scratch"
    return SCRATCH if scratch or said.get("method") in ON_RESNETS else None


def is_own(given: Tree) -> bool:
    """Tell whether a run is on images of one's own that are on this machine."""
    return str(given.get("task", "mini")) not in all_tasks() and not _at_sites(given)


def default_method(given: Tree) -> str:
    """The method of a run whose user named none."""
    return METHOD if is_own(given) else str(Setup.model_fields["method"].default)


def _at_sites(given: Tree) -> bool:
    return bool(given.get("engine") == "flower")


def _at(tree: Any, place: tuple[str, ...]) -> Any:
    """A setting in a tree that nobody has looked over yet."""
    for name in place:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def typed(path: str) -> str:
    """A path as one would type it here: relative where it is below, and never taken for the name of a task."""
    try:
        short = os.path.relpath(path)
    except ValueError:  # another drive
        short = os.pardir
    shown = path if short.startswith(os.pardir) else short
    return shlex.quote(f"./{shown}" if shown in all_tasks() else shown)
