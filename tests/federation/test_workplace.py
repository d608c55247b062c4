"""The place where clients' work is done, and what a process loads for it."""

import subprocess
import sys

import pytest
from torch import nn

from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.federation.local_update import Workplace
from protolith.models import register_model
from protolith.models.registry import _BUILDERS
from protolith.runs.config import resolve


def test_bfloat16_is_refused_for_a_network_that_cannot(tiny):
    class Tiny(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.head = nn.Linear(3, classes)

        def features(self, images):
            return images.mean(dim=(2, 3))

    register_model("tiny-test")(lambda classes, width: Tiny(classes))
    try:
        settings = {**tiny, "model": {"name": "tiny-test"}, "training": {"precision": "bfloat16"}}
        with pytest.raises(UserError, match="precision = 'bfloat16' is for resnet10 and resnet18, not for tiny-test"):
            Workplace(resolve([settings]), load_task("mini"))
    finally:
        del _BUILDERS["tiny-test"]


def test_a_server_loads_nothing_that_it_does_not_need():
    """scipy, sklearn and pyarrow are 20 to 50 MB each, which a run without them does not pay."""
    code = "import sys, protolith.runs.runner; print(*{'scipy', 'sklearn', 'pyarrow'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
