"""Write PACS or Office-Caltech10 out as plain folders, domain/class/image, from the Hugging Face parquet layout.

python benchmarks/folders.py DATA/pacs OUT [images per class and domain]
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq


def write_folders(source: Path, out: Path, per_class: int = 60) -> int:
    """Write at most so many images of each domain and class; the bytes are those of the file."""
    written: dict[tuple[str, str], int] = {}
    for file in sorted(source.glob("*.parquet")):
        about = json.loads(pq.read_schema(file).metadata[b"huggingface"])
        names = about["info"]["features"]["label"]["names"]
        for group in pq.ParquetFile(file).iter_batches(batch_size=500):
            for row in group.to_pylist():
                key = row["domain"], names[row["label"]]
                count = written.setdefault(key, 0)
                if count < per_class:
                    place = out / key[0] / key[1]
                    place.mkdir(parents=True, exist_ok=True)
                    suffix = ".png" if row["image"]["bytes"].startswith(b"\x89PNG") else ".jpg"
                    (place / f"{count:04}{suffix}").write_bytes(row["image"]["bytes"])
                    written[key] += 1
    return sum(written.values())


if __name__ == "__main__":
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    print(f"wrote {write_folders(Path(sys.argv[1]), Path(sys.argv[2]), limit):,} images to {sys.argv[2]}")
