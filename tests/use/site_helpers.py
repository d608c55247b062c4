"""Small sites to use a model at."""

import numpy as np
from PIL import Image

SMALL = {"workers": 0, "model": {"width": 4}, "training": {"epochs": 2, "batch": 16, "lr": 0.05, "crop": 1}}


def scene(rng, label, site):
    """A shape on a ground whose colour tells the site."""
    pixels = rng.integers(0, 40, (32, 32, 3)) + np.array([(150, 60, 60), (60, 150, 60), (60, 60, 150)][site])
    pixels[6:26, 6:26] += rng.integers(-5, 6)
    if label == 0:
        pixels[12:20, :] = 250
    else:
        pixels[:, 12:20] = 5
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_sites(root, images=40, sites=("east", "north", "west")):
    rng = np.random.default_rng(0)
    for site, name in enumerate(sites):
        for label, kind in enumerate(("beam", "post")):
            (root / name / kind).mkdir(parents=True)
            for index in range(images):
                scene(rng, label, site).save(root / name / kind / f"{index:03}.png")
    return root
