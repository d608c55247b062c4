"""Draw the README's first picture: the looks of `mini`, and what methods reach on each, from the demonstration's runs.

make demo && python benchmarks/first_picture.py runs/demo docs/images/first.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.gridspec import GridSpec

from protolith.data.domain import Domain
from protolith.data.tasks import load_task
from protolith.experiments.table import find_runs
from protolith.methods.registry import get_method
from protolith.report.style import INK, LOOKS, paper

METHODS = ("fedavg", "fpl", "strata")
SHOWN = "0123456789"  # one image of each
SANS = {"font.family": ["DejaVu Sans"], "font.size": 10, "ytick.labelsize": 11, "legend.fontsize": 10}


def main(runs: Path, out: Path) -> None:
    """Write the picture."""
    found = {run.config.method: run.summary for run in find_runs(runs)}
    task = load_task("mini")
    with paper(), plt.rc_context(SANS):
        figure = plt.figure(figsize=(9.6, 3.9), layout="constrained")
        grid = GridSpec(len(task.domains), 2, figure, width_ratios=(5.2, 3))
        for row, domain in enumerate(task.domains):
            _looks(figure.add_subplot(grid[row, 0]), domain)
            axes = figure.add_subplot(grid[row, 1])
            for place, method in enumerate(METHODS):
                _bar(axes, len(METHODS) - place, method, found[method].accuracy[domain.name])
            axes.set(xlim=(0, 112), ylim=(0.4, len(METHODS) + 0.6), xticks=[], yticks=[])
            axes.spines[["top", "right", "bottom"]].set_visible(False)
            if row == 0:
                axes.set_title("test accuracy of the one model, per cent", fontsize=11, color=INK)
        figure.savefig(out, dpi=160)
    print(f"wrote {out}")


def _looks(axes: plt.Axes, domain: Domain) -> None:
    # A training image of each class, side by side.
    rows = [int((domain.train.labels == int(digit)).nonzero()[3]) for digit in SHOWN]
    axes.imshow(np.concatenate([domain.train.images[index].numpy() for index in rows], axis=1))
    axes.set(xticks=[], yticks=[])
    axes.set_ylabel(f"{domain.name}  ", rotation=0, ha="right", va="center", fontsize=12, color=INK)
    axes.spines[:].set_visible(False)


def _bar(axes: plt.Axes, height: int, method: str, value: float) -> None:
    title = get_method(method).title
    axes.barh(height, value, color=LOOKS[title].colour, height=0.8)
    axes.text(1.5, height, title, va="center", color="white", fontsize=9)
    axes.text(value + 1, height, f"{value:.0f}", va="center", color=INK, fontsize=9)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
