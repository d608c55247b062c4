"""`protolith models`: what `--model` may name."""

from typing import Annotated

import typer

from protolith.cli.options import Plugin


def models(
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the networks and the pretrained backbones: input, features, parameters, and where the weights are."""
    from dataclasses import asdict

    from protolith.cli.progress import print_json
    from protolith.methods.registry import load_plugin
    from protolith.models.listed import forms, listed

    for name in plugin or []:
        load_plugin(name)
    found, others = listed(), forms()
    if json:
        print_json({"models": [asdict(one) for one in found], "forms": [asdict(one) for one in others]})
        return
    wide = max(len(row) for row in [*(one.name for one in found), *(one.form for one in others)])
    print(f"{'name':<{wide}}  input  features  parameters  weights")
    for one in found:
        print(f"{one.name:<{wide}}  {one.size:>5}  {one.features:>8}  {one.parameters:>10,}  {one.place}")
    for form in others:
        print(f"{form.form:<{wide}}  {form.what}{'' if form.here else ', which is not installed here'}")
