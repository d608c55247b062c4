"""The command line: `protolith COMMAND`. Exit codes: 0 done, 1 the run failed, 2 the request was wrong."""

import os
import re
import signal
import sys
from typing import Annotated, NoReturn

import typer

from protolith import __version__
from protolith.cli import deploy, experiment, figures, lists, models, moved, report, run, settings, tables, use
from protolith.errors import Interrupted, RunFailed, UserError
from protolith.files import refusal

INTERRUPTED = 130  # what shells report for a program that was stopped by Ctrl-C

typer.core.HAS_RICH = False  # the help is plain text; older versions would escape its brackets all the same
app = typer.Typer(
    name="protolith",
    help="Train one model over many sites whose data look different, without moving the data.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Start with: protolith run --config demo --method strata; on your own images: protolith data check FOLDER",
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"protolith {__version__}")
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run", cls=settings.ShortHelp)(run.run)
app.command("resume")(run.resume)
app.command("sweep")(run.sweep)
app.command("experiment")(experiment.experiment)
app.command("paper", hidden=True)(experiment.experiment)  # its name in 0.1
app.command("table")(tables.table)
app.command("figure")(figures.figure)
app.command("report")(report.report)
app.command("watch")(report.watch)
app.command("predict")(use.predict)
app.command("export")(use.export)
app.command("diagnose")(use.diagnose)
app.command("bench", hidden=True, context_settings=moved.ANYTHING)(moved.bench)
app.command("methods")(lists.methods)
app.command("models")(models.models)
app.command("tasks")(lists.tasks)
app.command("options")(settings.options)
app.command("settings", hidden=True)(settings.options)  # its name in 0.1
app.command("presets")(lists.presets)
app.add_typer(deploy.deploy, name="deploy", help="A real federation: certificates, keys, start scripts, checks.")
app.add_typer(lists.data, name="data", help="What a task's data are, whether they are here, and how they look.")


def main() -> NoReturn:
    """Run a command; say what is wrong in one sentence."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's stop is a Ctrl-C
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except UserError as error:
        _leave(str(error), 2)
    except RunFailed as error:
        _leave(str(error), 1)
    except Interrupted as error:
        _leave(str(error), INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        _leave("stopped.", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(0)
    except OSError as error:  # a full disk, a directory that may only be read, a file that went away
        if (reason := refusal(error)) is None:
            raise
        _leave(f"a file cannot be read or written ({reason}).", 1)
    except Exception as error:
        # Typer's own complaints about options (the class is click's, or typer's copy of it, by version).
        if hasattr(error, "format_message"):
            said = error.format_message()
            if type(error).__name__ == "NoArgsIsHelpError":  # a group of commands by itself
                print(said)
                sys.exit(0)
            _leave(re.sub(r"( Did you mean [^?]*\?)\1", r"\1", said), 2)  # click and typer both suggest a command
        raise


def _leave(sentence: str, code: int) -> NoReturn:
    print(f"protolith: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)
