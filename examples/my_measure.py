"""A measure of your own: `python my_measure.py`, or `run --plugin my_measure.py --set 'measures=["top-3"]'`."""

import sys

import torch
from torch import Tensor

import protolith as pl
from protolith.experiments.render import render
from protolith.experiments.table import build_tables
from protolith.methods.base import Spec


class Top3(pl.Measure):
    """How often the label is among the three likeliest classes. Counts are whole numbers, so that they add exactly."""

    name = "top-3"
    idea = "how often the label is among the three likeliest classes, in per cent"

    def schema(self, classes: int) -> dict[str, Spec]:
        """What the counts look like; what a site sends is checked against it."""
        return {"found": Spec((), torch.int64, least=0), "images": Spec((), torch.int64, least=0)}

    def count(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Count on answers [n, K] to images of these labels [n]."""
        found = (logits.topk(3).indices == labels[:, None]).any(dim=1).sum()
        return {"found": found, "images": torch.tensor(len(labels))}

    def result(self, total: dict[str, Tensor]) -> float:
        """The value of counts that were added up."""
        return 100.0 * int(total["found"]) / int(total["images"])


pl.register_measure(Top3())

if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    run = pl.fit("strata", "mini", config="demo", rounds=rounds, plugins=[__file__], measures=["top-3", "per-class"])
    print("top-3 by domain:", run.summary.measures["top-3"].domains)
    print(render(build_tables([run], "top-3"), "text"))
