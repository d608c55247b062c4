"""Files of a backbone in a folder, or in a repository of the Hugging Face hub, whose own cache keeps them."""

import importlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from protolith.errors import UserError
from protolith.extras import need


def load_library(library: str, extra: str, name: str) -> Any:
    """Import what opens a backbone; a sentence where it is not there or cannot be imported."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        if error.name == library:
            raise UserError(f"{name} needs {library}: install it with pip install 'protolith[{extra}]'.") from None
        raise UserError(f"{library} cannot be imported ({_first_line(error)}): install it again.") from None
    except RuntimeError as error:
        raise misfit(library, error) from None


def misfit(library: str, error: BaseException) -> UserError:
    """What to say where a library fails in torchvision, which was built for another torch."""
    if "torchvision" not in str(error):
        return UserError(f"{library} cannot be imported ({_first_line(error)}): install it again.")
    return UserError(
        f"{library} cannot be imported, because the torchvision that is installed does not fit this torch "
        f"({_first_line(error)}): install both from one place, such as https://download.pytorch.org/whl/cpu."
    )


def find_file(name: str, repository: str, file: str) -> Path | None:
    """A file of a repository (`OWNER/NAME[@REVISION]`), from the cache or the hub; None where it has no such file."""
    need("the Hugging Face hub", "hub", "huggingface_hub")
    from huggingface_hub import hf_hub_download  # slow to import
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    repo, _, revision = repository.partition("@")
    logging.getLogger("huggingface_hub").setLevel(
        logging.ERROR
    )  # each of its attempts is a warning; we say one sentence
    for only_here in (True, False):  # what is in the cache is not asked for again, so that a run keeps its weights
        try:
            found = hf_hub_download(
                repo, file, revision=revision or None, local_files_only=only_here,
                endpoint=os.environ.get("HF_ENDPOINT") or None,
            )  # fmt: skip
            return Path(found)
        except LocalEntryNotFoundError as error:
            reason = _first_line(error.__cause__ or error)
        except EntryNotFoundError:
            return None
        except Exception as error:  # the transport's errors differ between versions, and all mean the same here
            reason = _first_line(error)
    prefix = name.partition(":")[0]
    other = (
        "run this once with a network" if file.endswith(".json") else "name a file that you have with --weights FILE"
    )
    raise UserError(
        f"{name}: '{file}' is not here, and {repo} cannot be reached on the hub ({reason}): name a folder with its "
        f"files as {prefix}:DIRECTORY, or {other}."
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a library's configuration."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"'{path}' cannot be read ({_first_line(error)}).") from None
    if not isinstance(found, dict):
        raise UserError(f"'{path}' is no table of settings.")
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
