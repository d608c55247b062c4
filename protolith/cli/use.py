"""`protolith predict`, `export` and `diagnose`: a finished run in use."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from protolith.errors import UserError

Directory = Annotated[Path, typer.Argument(metavar="RUN", help="A finished run's directory.")]
FalseAlarms = Annotated[
    float, typer.Option(help="Part of images like the sites' own that may be flagged as unfamiliar.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def predict(
    run: Directory,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Images, or folders of images.")],
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
    json: Json = False,
    false_alarms: FalseAlarms = 0.05,
) -> None:
    """Label images; say how sure the model is, and flag what is unlike anything that the sites have seen."""
    from protolith.cli.progress import print_json
    from protolith.runs.run import Run
    from protolith.use.predict import Predictor, as_csv, as_plain, as_table, image_files

    if csv and json:
        raise UserError("--csv and --json: choose one of them.")
    files = image_files(paths, _say)  # a path that does not exist is seen before anything is computed
    with redirect_stdout(sys.stderr):  # whatever a plug-in prints: the output is the result alone
        predictor = Predictor(Run.open(run), false_alarms, _say)
        found = list(predictor.files(files))
    if json:
        print_json(as_plain(found))
    else:
        print(as_csv(found).rstrip("\n") if csv else as_table(found))
    if predictor.note:
        _say(predictor.note)


def export(
    run: Directory,
    to: Annotated[str, typer.Option(help="onnx or safetensors.")],
    out: Annotated[Path, typer.Option(help="The file to write; MODEL_CARD.md is written beside it.")],
) -> None:
    """Write a run's model for other programs, with class names, preprocessing, prototypes, and a model card."""
    from protolith.runs.run import Run
    from protolith.use.export import export as write

    with redirect_stdout(sys.stderr):
        found = write(Run.open(run), to, out, _say)
    if found.difference is not None:
        print(f"checked with onnxruntime: no logit differs by more than {found.difference:.1e}")
    print("\n".join(f"wrote {file}" for file in found.files))


def diagnose(
    run: Directory,
    unseen: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Runs that left a site out (--protocol unseen); may be repeated."),
    ] = None,
    json: Json = False,
) -> None:
    """Say which sites are hard and why, which are alike, and what a new site could expect."""
    from protolith.cli.progress import print_json
    from protolith.experiments.table import find_runs
    from protolith.runs.run import Run
    from protolith.use.diagnose import diagnose as explain

    left_out = [found for place in unseen or [] for found in find_runs(place)]
    with redirect_stdout(sys.stderr):
        found = explain(Run.open(run), left_out, _say)
    print_json(found.plain()) if json else print(found.text())


def _say(text: str) -> None:
    typer.echo(text, err=True)
