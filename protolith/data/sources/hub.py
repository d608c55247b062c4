"""The Hugging Face hub: parquet files by repository and revision, kept in the hub's own cache."""

import os
from pathlib import Path

from protolith.data.sources import parquet
from protolith.data.sources.found import Found, Progress
from protolith.data.spec import Columns, HubSource
from protolith.extras import need


class HubUnavailable(Exception):
    """The hub could not be reached, or has no such files; the message says which."""


def download(source: HubSource, progress: Progress) -> list[Path]:
    """Fetch the parquet files of a source with a progress bar, or find them in the hub's cache."""
    need(f"{source.repo}, from the Hugging Face hub,", "hub")
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed

    progress(f"{source.repo}: fetching from the Hugging Face hub")
    try:
        root = snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=[f"{source.folder}/*.parquet"],
            ignore_patterns=["*/extra-*"],
            endpoint=os.environ.get("HF_ENDPOINT") or None,
            max_workers=2,
        )
    except Exception as error:  # the transport's errors differ between versions, and all mean the same here
        raise HubUnavailable(f"{source.repo}: {_first_line(error)}") from error
    files = sorted((Path(root) / source.folder).glob("*.parquet"))
    if not files:
        raise HubUnavailable(f"{source.repo}: no parquet files in '{source.folder}' of revision '{source.revision}'")
    return files


def domain(source: HubSource, name: str, files: list[Path], columns: Columns) -> Found:
    """Describe one domain in downloaded files."""
    return parquet.from_files(files, name, source.address, source.address, columns)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
