"""The options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Method = Annotated[
    str | None, typer.Option(help="The algorithm (see `protolith methods`). [default: fedavg; a folder: strata]")
]
Task = Annotated[
    str | None,
    typer.Option(
        help="mini, digits, digit5, office10, pacs, a folder of site/class/image, or a manifest. [default: mini]"
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="shift, equal, unseen, sites, local: who holds what, what is tested. [default: shift; a folder: sites]"
    ),
]
Data = Annotated[str | None, typer.Option(help="Directory that holds the task's data.")]
Rounds = Annotated[
    int | None, typer.Option(help="Communication rounds. [default: the task's; a folder: as `data check` suggests]")
]
Seed = Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")]
Workers = Annotated[
    int | None, typer.Option(help="Worker processes; 0 runs everything in one process. [default: one a core]")
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Where clients' work is executed: local, ray (a cluster) or flower (real sites). [default: local]"
    ),
]
DeploymentOption = Annotated[
    Path | None, typer.Option("--deployment", help="A deployment's directory (`protolith deploy`), for engine flower.")
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster (auto: the one of this machine), for engine ray. [default: a new one]")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. [default: auto]")]
Out = Annotated[Path | None, typer.Option(help="Directory for everything the run produces. [default: runs/<name>]")]
Config = Annotated[str | None, typer.Option(help="A TOML file with settings, or a preset (see `protolith presets`).")]
Plugin = Annotated[
    list[str] | None,
    typer.Option(help="A module, .py or .toml file with a method, model or task of your own; may be repeated."),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The network or pretrained backbone (see `protolith models`). [default: resnet10]"
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A backbone's weights (.safetensors or .pth), other than its package's."),
]
Tune = Annotated[
    str | None,
    typer.Option(
        metavar="WHAT",
        help="What is trained of a pretrained backbone: head, last, all or scratch. [default: head]",
    ),
]
Init = Annotated[Path | None, typer.Option("--init", metavar="FILE", help="Weights to start from, as safetensors.")]
WithBaselines = Annotated[
    bool,
    typer.Option("--with-baselines", help="Also train each site alone, FedAvg, and pooled data, and compare."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images of your own that cannot be read (else: an error).")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as lr=0.1; may be repeated."),
]
AttackKind = Annotated[
    str | None, typer.Option("--attack", metavar="KIND", help="Simulate an attack (docs/robust.md), such as sign-flip.")
]
Attackers = Annotated[float | None, typer.Option(help="Share of the clients that attack. [default: 0.2]")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NoDiagnostics = Annotated[
    bool, typer.Option("--no-diagnostics", help="Do not save predictions, features and prototypes for the report.")
]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Also write every round for TensorBoard.")]
Report = Annotated[bool, typer.Option("--report", help="Write report.html too, which takes a few seconds.")]
