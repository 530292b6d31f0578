#!/usr/bin/env python3
"""SPARTAN's few-shot table, tuned as a board does it (Deshpande et al., 2022, section 5.3): 200 examples of each set.

    exports/recipes/few_shot_table.py BACKBONE DATA OUT

BACKBONE is a folder or Hub name; DATA holds <set>/train.jsonl and <set>/validation.jsonl for each set.  One bundle
is exported with a template of each method; each cell is `edgepeft tune` (ONNX Runtime) from it, on 200 rows of
train.jsonl, with other rows of it choosing the checkpoint and validation rows reported.  `edgepeft bench` gives the
throughput.  For the methods of PYTORCH, PyTorch trains the same cells from the same start, on the same rows in the
same order.

OUT/table.md and OUT/table.json are written anew after every cell; a cell that is done is not done again, so the same
command continues an interrupted run.  Overridden by environment variables of these names, lists with spaces between:
METHODS, SETS, SEEDS, PYTORCH, REGRESSION, STEPS, EXAMPLES, EVAL_ROWS, TEST_ROWS, WORDS, PROFILE, ROUNDS.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from few_shot_report import markdown, table

_METRICS = {"cola": "matthews"}  # GLUE's, where it is not the default of `edgepeft tune`


def _listed(name: str, default: str) -> tuple[str, ...]:
    return tuple(os.environ.get(name, default).split())


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or not int(text):
        sys.exit(f"{name}={text!r}: a whole number of at least 1 is needed.")
    return int(text)


@dataclass(frozen=True)
class Settings:
    """What a cell's score depends on: another value is another table, and needs another OUT."""

    backbone: str
    data: str
    steps: int
    examples: int
    eval_rows: int
    test_rows: int
    words: int


@dataclass(frozen=True)
class Cell:
    """One training."""

    engine: str
    data: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.engine}-{self.data}-{_plain(self.method)}-{self.seed}"


def _plain(method: str) -> str:
    """As `edgepeft export --template` names it."""
    return method.replace("+", "-plus")


class Recipe:
    """The run: files under ``out``, cells one after the other."""

    def __init__(self, settings: Settings, out: Path) -> None:
        self.settings, self.out = settings, out
        self.methods = _listed("METHODS", "spartan pfeiffer lora bitfit")
        self.sets = _listed("SETS", "rte mrpc cola stsb sst2 bbc_news")
        self.seeds = tuple(int(seed) for seed in _listed("SEEDS", "0 1 2"))
        self.pytorch = _listed("PYTORCH", "pfeiffer")
        self.regression = _listed("REGRESSION", "stsb")

    def run(self) -> None:
        """Everything that is not done yet."""
        _same_settings(self.settings, self.out / "settings.json")
        for name in self.sets:
            self.prepare(name)
        if not (self.out / "bundle").exists():
            self.export()
        if not (self.out / "bench.json").exists():
            self.bench()
        cells = [Cell("onnxruntime", d, m, s) for s in self.seeds for d in self.sets for m in self.methods]
        cells += [Cell("pytorch", d, m, s) for s in self.seeds for d in self.sets for m in self.pytorch]
        for number, cell in enumerate(cells, 1):
            path = self.out / "cells" / f"{cell.name}.json"
            if not path.exists():
                print(f"{number} of {len(cells)}: {cell.name}", file=sys.stderr, flush=True)
                scores = self.tuned(cell) if cell.engine == "onnxruntime" else self.trained(cell)
                _write(path, {**asdict(cell), **scores})
            self.report()
        self.report()
        print(self.out / "table.md")

    def prepare(self, name: str) -> None:
        """Rows of a set, texts cut: train (all that is left), eval, test; in an order of its own, the same for all."""
        folder = self.out / "data" / name
        if (folder / "test.jsonl").exists():
            return
        source = Path(self.settings.data) / name
        if not (source / "train.jsonl").is_file() or not (source / "validation.jsonl").is_file():
            sys.exit(
                f"{source} does not hold train.jsonl and validation.jsonl; SETS names the folders of DATA to take."
            )
        train, test = (self.rows(source / f"{part}.jsonl") for part in ("train", "validation"))
        for part, rows in (
            ("train", train[self.settings.eval_rows :]),
            ("eval", train[: self.settings.eval_rows]),
            ("test", test[: self.settings.test_rows]),
        ):
            _write_text(folder / f"{part}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """Shuffled rows, each text cut to its first words."""
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for row in rows:
            for text in {"sentence1", "sentence2"} & row.keys():
                row[text] = " ".join(str(row[text]).split()[: self.settings.words])
        random.Random(0).shuffle(rows)
        return rows

    def export(self) -> None:
        """One bundle: a template of each method, and for a regression, which templates are not, an untrained task."""
        deltas: list[str] = []
        for name in self.untrained:
            rows = self.out / "data" / (name if name in self.sets else self.sets[0]) / "train.jsonl"
            first = json.loads(rows.read_text(encoding="utf-8").splitlines()[0])
            deltas += self.fresh(name, pairs="sentence2" in first)
        templates = [part for method in self.methods for part in ("--template", method)]
        given = [part for delta in deltas for part in ("--delta", delta)]
        out = str(self.out / "bundle")
        _edgepeft("export", "--backbone", self.settings.backbone, "--trainable", *given, *templates, "--out", out)

    @property
    def untrained(self) -> tuple[str, ...]:
        """What there are untrained tasks for: the regressions, or one all the same, which `edgepeft bench` measures."""
        return tuple(name for name in self.sets if name in self.regression) or ("bench",)

    def fresh(self, name: str, *, pairs: bool) -> list[str]:
        """Folders of an untrained delta of each method for a regression."""
        from few_shot_pytorch import write_fresh_delta

        folders = []
        for method in self.methods:
            folder = self.out / "fresh" / f"{name}-{_plain(method)}"
            shutil.rmtree(folder, ignore_errors=True)
            write_fresh_delta(self.settings.backbone, method, folder, pairs=pairs)
            folders.append(str(folder))
        return folders

    def bench(self) -> None:
        """Fine-tuning throughput of each method's step, PyTorch's and full fine-tuning's beside it."""
        methods = [part for method in self.methods for part in ("--method", method)]
        shape = ["--batch-size", "8", "--length", "64", "--rounds", str(_number("ROUNDS", 15))]
        target = self.out / "bench.json"
        profile = os.environ.get("PROFILE", "rpi4")
        kind = ["--profile", profile, "--workload", "finetune", "--engine", "onnxruntime"]
        _edgepeft("bench", str(self.out / "bundle"), *kind, *methods, *shape, "--json", str(target))

    def tuned(self, cell: Cell) -> dict[str, Any]:
        """`edgepeft tune` in a copy of the bundle (hard links: tuning replaces files, it writes into none)."""
        work = self.out / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.out / "bundle", work, copy_function=_link)
        data, steps = self.out / "data" / cell.data, str(self.settings.steps)
        start = ["--task", f"{cell.data}-{_plain(cell.method)}"]
        if cell.data not in self.regression:
            start += ["--template", _plain(cell.method)]
        metric = ["--metric", _METRICS[cell.data]] if cell.data in _METRICS else []
        files = ["--data", data / "train.jsonl", "--eval", data / "eval.jsonl", "--test", data / "test.jsonl"]
        amount = ["--few-shot", str(self.settings.examples), "--steps", steps, "--seed", str(cell.seed)]
        began = time.monotonic()
        printed = _edgepeft("tune", str(work), *start, *map(str, files), *amount, *metric, "--json")
        card = json.loads(printed)
        shutil.rmtree(work)
        return {"seconds": time.monotonic() - began, "metrics": card["metrics"], "training": card["training"]}

    def trained(self, cell: Cell) -> dict[str, Any]:
        """The same with PyTorch."""
        from few_shot_pytorch import train_from

        task = f"{cell.data}-{_plain(cell.method)}"
        began = time.monotonic()
        metrics = train_from(
            self.out / "bundle",
            self.out / "data" / cell.data,
            self.out / "work",
            task=task,
            template=None if cell.data in self.regression else _plain(cell.method),
            metric=_METRICS.get(cell.data),
            few_shot=self.settings.examples,
            steps=self.settings.steps,
            seed=cell.seed,
        )
        return {"seconds": time.monotonic() - began, "metrics": metrics}

    def report(self) -> None:
        """Table and JSON of what is done."""
        cells = [json.loads(path.read_text()) for path in sorted((self.out / "cells").glob("*.json"))]
        bench = json.loads((self.out / "bench.json").read_text())
        manifest = json.loads((self.out / "bundle" / "edgepeft.json").read_text())
        sizes = {m: manifest["tasks"][f"{self.untrained[0]}-{_plain(m)}"] for m in self.methods}
        columns = table(cells, bench, sizes, sets=self.sets, methods=self.methods, pytorch=self.pytorch)
        document = {"settings": asdict(self.settings), "seeds": self.seeds, **columns}
        document["settings"] |= {"backbone": Path(self.settings.backbone).name, "data": Path(self.settings.data).name}
        _write(self.out / "table.json", document)
        _write_text(self.out / "table.md", markdown(document))


def _same_settings(settings: Settings, path: Path) -> None:
    """Cells of other settings must not stand in one table."""
    asked = asdict(settings)
    if path.exists() and (known := json.loads(path.read_text())) != asked:
        odd = next(name for name in asked if known.get(name) != asked[name])
        sys.exit(f"{path.parent} was begun with {odd} = {known.get(odd)!r}, not {asked[odd]!r}; take another OUT.")
    _write(path, asked)


def _edgepeft(*arguments: str) -> str:
    """Standard output of `edgepeft`; what it says of its progress goes where ours goes."""
    done = subprocess.run(["edgepeft", *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"edgepeft {arguments[0]} ended with status {done.returncode}; the same command continues here.")
    return done.stdout


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _write(path: Path, document: Any) -> None:
    _write_text(path, json.dumps(document, indent=1) + "\n")


def _write_text(path: Path, text: str) -> None:
    """Whole or not at all: what is there counts as done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def main() -> None:
    """Read the arguments and run."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    backbone, data, out = sys.argv[1:]
    settings = Settings(
        backbone,
        data,
        steps=_number("STEPS", 100),
        examples=_number("EXAMPLES", 200),
        eval_rows=_number("EVAL_ROWS", 100),
        test_rows=_number("TEST_ROWS", 300),
        words=_number("WORDS", 60),
    )
    Recipe(settings, Path(out)).run()


if __name__ == "__main__":
    main()
