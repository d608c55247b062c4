"""What a run is trained with when the user says nothing: a named task's own settings, or a folder's.

The user's own words always win over these.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protolith.methods.registry import Method

Tree = dict[str, Any]

# A folder of one's own: one client per domain that holds all of it, and a size that a laptop can train.
FOLDER_DEFAULTS: Tree = {"rounds": 20, "model": {"width": 16}, "training": {"epochs": 5, "batch": 32}}


def default_protocol(task: str) -> str:
    """The main setting of a named task, one client per site for anybody else's."""
    from protolith.data.spec import all_tasks

    spec = all_tasks().get(task)
    return str(spec.settings["protocol"]["name"]) if spec else "sites"


def defaults_for(task: str, protocol: str) -> list[Tree]:
    """The layers of defaults for a task under a protocol, the weakest first.

    What is no named task is taken for a folder; whether there is one is seen when it is loaded.
    """
    from protolith.data.spec import all_tasks

    spec = all_tasks().get(task)
    return [{"size": spec.size}, spec.settings, spec.protocols.get(protocol, {})] if spec else [FOLDER_DEFAULTS]


def options_for(task: str, method: "Method") -> Tree:
    """A method's own options where they differ on a task: what the method's file says of it, then the task's."""
    from protolith.data.spec import all_tasks

    spec = all_tasks().get(task)
    return {**method.params.by_task.get(task, {}), **(spec.methods.get(method.name, {}) if spec else {})}


# A pretrained network needs few rounds, and its features one length, so that one learning rate fits all backbones. The
# head's was chosen with FedAvg on training images that no client trains on (results/pretrained.md).
TUNED: dict[str, Tree] = {
    "head": {"rounds": 20, "training": {"epochs": 5, "batch": 32, "lr": 0.01, "schedule": "cosine"}},
    "last": {"rounds": 10, "training": {"epochs": 2, "batch": 32, "lr": 0.05}},
    "all": {"rounds": 10, "training": {"epochs": 2, "batch": 32, "lr": 0.05}},
}
PROJECTION = 256  # length of the space where prototypes live on frozen features


def tuned_defaults(asked: Tree, method: "Method") -> Tree:
    """What a run on a pretrained backbone is trained with; a frozen one's images cannot be re-coloured any more."""
    from protolith.models.tuned import FROZEN, SCALE

    tune = asked.get("tune", "head")
    if tune not in TUNED:
        return {"model": {"tune": tune}}
    space = asked.get("projection", PROJECTION if tune == "head" and method.client.shapes_features else 0)
    training = dict(TUNED[tune]["training"])
    if tune in FROZEN:
        training["style_exchange"] = 0.0
    return {**TUNED[tune], "training": training, "model": {"tune": tune, "scale": SCALE, "projection": space}}
