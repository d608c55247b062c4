"""MODEL_CARD.md: what a model was trained on, how well it does at every site, and what it is not good for."""

from protolith.models.backbones import shown
from protolith.models.spec import InputSpec
from protolith.runs.attendance import sentences
from protolith.runs.result import Summary
from protolith.use.familiarity import FALSE_ALARMS, Familiarity
from protolith.use.trained import Trained


def model_card(trained: Trained, known: Familiarity | None, file: str, difference: float | None) -> str:
    """Write a model card from what the run directory holds; nothing is claimed that is not in it."""
    config, summary = trained.config, trained.run.finished
    parts = [
        f"# {file}",
        f"{_network(trained)} that tells {len(trained.classes)} classes apart: "
        f"{', '.join(trained.classes)}. Trained with Protolith by {trained.method.title} "
        f"({trained.method.paper}), {config.rounds} rounds, seed {config.seed}.",
        _data(trained, summary),
        _accuracy(trained, summary),
        _input(trained, difference),
        _familiarity(known),
        _limits(trained, summary),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _network(trained: Trained) -> str:
    """The network in words: a backbone has no width, but weights of its own."""
    saved = trained.saved
    if not saved.backbone:
        return f"A {saved.name} of width {saved.width}"
    parts = saved.backbone.get("parts") or [saved.backbone]
    said = [f"{shown(part['name'])} (weights {part['tag']}, SHA-256 {part['sha256']})" for part in parts]
    return f"A network on the pretrained backbone {' and '.join(said)}"


def _data(trained: Trained, summary: Summary | None) -> str:
    protocol = trained.config.protocol
    clients = ", ".join(f"{name} ({count})" for name, count in protocol.clients.items() if count)
    task = trained.config.task.rstrip("/").rsplit("/", 1)[-1]  # where it lies on somebody's disk is nobody's business
    lines = ["## Data", f"Task `{task}`; clients by site: {clients}. Protocol `{protocol.name}`."]
    if protocol.unseen:
        lines.append(f"No image of `{protocol.unseen}` was trained on.")
    lines += [f"- {note}" for note in summary.notes] if summary else []
    return "\n\n".join(lines[:2]) + "".join(f"\n{line}" for line in lines[2:])


def _accuracy(trained: Trained, summary: Summary | None) -> str:
    if summary is None:
        return "## Accuracy\n\nThe run was not finished, so that none is stated."
    rows = [f"| {site} | {value:.1f} |" for site, value in summary.accuracy.items()]
    table = "\n".join(["| site | accuracy in per cent |", "|---|---|", *rows, f"| mean | {summary.mean:.1f} |"])
    absent = "".join(f"\n\n{said[:1].upper()}{said[1:]}." for said in sentences(summary))
    return (
        f"## Accuracy\n\nOf {summary.tested.words} on test images, {summary.rule}; the model in this file is "
        f"that of the last round.\n\n{table}{absent}"
    )


def _input(trained: Trained, difference: float | None) -> str:
    checked = "" if difference is None else f" Checked against PyTorch: no logit differs by more than {difference:.1e}."
    spec = trained.saved.spec
    tensor = f"float32 [batch, 3, {trained.size}, {trained.size}]"
    scale = f"(pixel / 255 − mean) / std with mean {list(spec.mean)} and std {list(spec.std)}"
    return (
        f"## Input\n\nRGB images resized to {trained.size} × {trained.size} ({resizing(spec)}), {tensor}, as {scale}. "
        "The output is a row of logits for each image, in the order of the classes "
        f"above.{checked}"
    )


def resizing(spec: InputSpec) -> str:
    """How an image of any shape becomes a square for the network, in words."""
    part = f"{100 * spec.share:g} %"
    how = {
        "squash": "aspect not kept" if spec.share == 1.0 else f"the middle {part} of each side, aspect not kept",
        "crop": f"the middle square, whose side is {part} of the shorter one",
        "pad": "black beside it where it is no square",
    }[spec.resize]
    return f"{spec.interpolation}{' with antialiasing' * (spec.interpolation != 'nearest')}, {how}"


def _familiarity(known: Familiarity | None) -> str:
    if known is None:
        return "## Familiarity\n\nNot available: the training images were not at hand at export."
    return (
        f"## Familiarity\n\nPrototypes of {len(known.classes)} classes at {len(known.sites)} sites are included. With "
        f"the threshold {known.threshold():.4g}, chosen on {len(known.calibration)} held-out images for "
        f"{100 * FALSE_ALARMS:g} % false alarms, {100 * known.measured():.1f} % of {len(known.control)} other held-out "
        "images were flagged as unfamiliar."
    )


def _limits(trained: Trained, summary: Summary | None) -> str:
    lines = ["Every image gets one of the classes, also one that shows none of them."]
    if summary and len(summary.accuracy) > 1:
        worst, value = min(summary.accuracy.items(), key=lambda item: item[1])
        lines.append(f"The hardest site was {worst} with {value:.1f} %.")
    lines.append("At a site whose images look different from all of these, expect less; measure before you rely on it.")
    lines.append("Confidence is the network's softmax and is not calibrated.")
    lines.append(
        "Familiarity misses some strange images: one that is not flagged is not thereby one of the sites' kind."
    )
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines)
