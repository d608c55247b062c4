"""Images of your own: make four small folders, look at them, train, predict. Run it: `python my_own_data.py`."""

import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

import protolith as pl

CLASSES = ("circle", "square", "triangle")
SITES = {  # name: (background, colour of the shape)
    "paper": ((240, 240, 230), (40, 40, 40)),
    "blueprint": ((80, 120, 190), (230, 235, 245)),
    "leaf": ((170, 200, 120), (60, 80, 30)),
    "clay": ((200, 140, 110), (90, 40, 30)),
}


def picture(shape: str, site: str, draw: random.Random) -> Image.Image:
    """One shape at a random place, in the look of a site."""
    background, colour = SITES[site]
    image = Image.new("RGB", (32, 32), background)
    pen, size = ImageDraw.Draw(image), draw.randint(12, 20)
    x, y = draw.randint(1, 31 - size), draw.randint(1, 31 - size)
    box = (x, y, x + size, y + size)
    if shape == "circle":
        pen.ellipse(box, fill=colour)
    elif shape == "square":
        pen.rectangle(box, fill=colour)
    else:
        pen.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=colour)
    return Image.blend(image, Image.effect_noise(image.size, 80).convert("RGB"), 0.2)  # as a camera's


def make_sites(root: Path, images: int = 30) -> Path:
    """Write folders as people have them: site/class/image."""
    draw = random.Random(0)
    for site in SITES:
        for shape in CLASSES:
            folder = root / site / shape
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(images):
                picture(shape, site, draw).save(folder / f"{number:03d}.png")
    return root


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    sites = make_sites(Path("sites"))
    print(pl.check(sites).text())
    run = pl.fit(
        "strata", str(sites), rounds=rounds, model={"width": 8}, training={"lr": 0.02, "batch": 8, "epochs": 3}
    )
    print(run.table())
    picture("circle", "leaf", random.Random(1)).save("new.png")
    for item in run.predictor().files(["new.png"]):
        print(
            f"{item.file}: {item.label}, confidence {item.confidence:.2f}, unlike the sites' images: {item.unfamiliar}"
        )
