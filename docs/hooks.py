"""The measured results are part of the site: they stand in `results/`, beside the pages."""

from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config) -> Files:  # noqa: ANN001
    """Add every page and picture of `results/`."""
    for path in sorted((ROOT / "results").rglob("*")):
        name = path.relative_to(ROOT)
        if path.suffix in (".md", ".png"):
            files.append(File.generated(config, name.as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:  # noqa: ANN001
    """In the repository the results are one folder up."""
    if not page.file.src_uri.startswith("results/"):
        depth = page.file.src_uri.count("/")
        return markdown.replace(f"]({'../' * (depth + 1)}results/", f"]({'../' * depth}results/")
    return markdown
