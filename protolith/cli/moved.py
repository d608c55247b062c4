"""Commands that are elsewhere now."""

import typer

from protolith.errors import UserError

# Whatever else is typed is not complained about first.
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def bench(context: typer.Context) -> None:
    """Say where it is."""
    raise UserError("`protolith bench` is not part of the package any more: in a clone, type `make bench DATA=DIR`.")
