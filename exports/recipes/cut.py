"""Cut data sets to rows that two cores can train on: drawn once, with the rows that choose apart.

    python exports/recipes/cut.py $DATA cut --train 640 --eval 160 --test 400

reads NAME/train.jsonl and NAME/validation.jsonl of a folder, and writes NAME/{train,eval,test}.jsonl: rows that choose
and that train are of the first file, those that are reported of the second.  At most a quarter of a small file chooses.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path


def cut(source: Path, out: Path, train: int, choose: int, test: int) -> None:
    """Write the three files of one data set; the draw depends on the rows alone."""
    draw = random.Random(0)
    given, held = (source.joinpath(f"{part}.jsonl").read_text("utf-8").splitlines() for part in ("train", "validation"))
    draw.shuffle(given)
    draw.shuffle(held)
    choose = min(choose, len(given) // 4)
    out.mkdir(parents=True, exist_ok=True)
    parts = {"eval": given[:choose], "train": given[choose : choose + train], "test": held[:test]}
    for part, rows in parts.items():
        out.joinpath(f"{part}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    for part, rows in (("train", 640), ("eval", 160), ("test", 400)):
        parser.add_argument(f"--{part}", type=int, default=rows)
    asked = parser.parse_args()
    for folder in sorted(asked.data.iterdir()):
        if folder.joinpath("train.jsonl").is_file():
            cut(folder, asked.out / folder.name, asked.train, asked.eval, asked.test)
