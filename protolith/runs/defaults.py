"""What each task is run with when the user says nothing: the papers' settings, and quick ones for `mini`.

The user's own words always win over these.
"""

from typing import Any

from protolith.errors import UserError

Tree = dict[str, Any]

_PAPERS: Tree = {"rounds": 100, "model": {"width": 64}, "training": {"epochs": 10}}

TASK_DEFAULTS: dict[str, Tree] = {
    "mini": {
        "rounds": 15,
        "model": {"width": 16},
        "training": {"epochs": 3, "batch": 32, "flip": False},
        "protocol": {"samples": 0.33},
    },
    "digits": {
        **_PAPERS,
        "training": {"epochs": 10, "batch": 64},
        "protocol": {"samples": {"mnist": 600, "usps": 72, "svhn": 732, "syn": 100}},
    },
    "digit5": {
        **_PAPERS,
        "training": {"epochs": 10, "batch": 64},
        "protocol": {"samples": {"mnist": 600, "usps": 72, "svhn": 732, "syn": 100, "mnistm": 590}},
    },
    "office10": {**_PAPERS, "training": {"epochs": 10, "batch": 64}, "protocol": {"samples": 0.2, "repair": True}},
    "pacs": {**_PAPERS, "training": {"epochs": 10, "batch": 16}, "protocol": {"samples": 0.3}},
}

# A folder of one's own: one client per domain that holds all of it, and a size that a laptop can train.
FOLDER_DEFAULTS: Tree = {"rounds": 20, "model": {"width": 16}, "training": {"epochs": 5, "batch": 32}}

PROTOCOL_DEFAULTS: dict[tuple[str, str], Tree] = {
    # Of an unseen domain every image is a test image; Digits have an official test part.
    ("office10", "unseen"): {"protocol": {"eval": "all"}},
    ("pacs", "unseen"): {"protocol": {"eval": "all"}},
    # FedCode: a twentieth of its domain for each Digit5 client, the whole domain divided for PACS.
    ("digit5", "local"): {"protocol": {"samples": 0.05}},
    ("pacs", "local"): {"protocol": {"samples": {}}},
}


def default_protocol(task: str) -> str:
    """The papers' main setting for their tasks, one client per site for anybody else's."""
    return "shift" if task in TASK_DEFAULTS else "sites"


def defaults_for(task: str, protocol: str) -> list[Tree]:
    """The layers of defaults for a task under a protocol, the weakest first.

    What is no task of ours is taken for a folder; whether there is one is seen when it is loaded.
    """
    from protolith.data.tasks import TASKS  # imports torch, and `--help` must not wait for it

    if task in TASKS and task not in TASK_DEFAULTS:
        raise UserError(f"the task '{task}' has no defaults yet: give it some in TASK_DEFAULTS (runs/defaults.py).")
    return [TASK_DEFAULTS.get(task, FOLDER_DEFAULTS), PROTOCOL_DEFAULTS.get((task, protocol), {})]
