"""The steps of ``edgepeft quickstart``: data, training, export, measuring. Each returns or writes, none prints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeft.common.atomic import write_atomically
from edgepeft.training.demo import BBC_NEWS, SMS_SPAM, Corpus, DemoSplit

if TYPE_CHECKING:
    from edgepeft.backbones.source import Backbone
    from edgepeft.data.training_loop.run import Progress

__all__ = ["TASKS", "QuickTask", "train_task", "write_rows"]


@dataclass(frozen=True)
class QuickTask:
    """A task of the demonstration, with settings that fit in a minute on two cores."""

    name: str
    corpus: Corpus
    method: str
    learning_rate: float
    n_train: int
    max_length: int
    n_eval: int = 100
    n_test: int = 400
    batch_size: int = 16


TASKS = (
    QuickTask("topic", BBC_NEWS, "spartan", 5e-4, n_train=900, max_length=96),
    QuickTask("spam", SMS_SPAM, "pfeiffer", 1e-3, n_train=800, max_length=48),
)


def write_rows(parts: DemoSplit, folder: Path) -> dict[str, Path]:
    """``train.jsonl``, ``eval.jsonl`` and ``test.jsonl``, as ``edgepeft train`` reads them."""
    files = {}
    for name, rows in parts._asdict().items():
        lines = (json.dumps({"sentence1": row.text, "label": row.label}, ensure_ascii=False) + "\n" for row in rows)
        files[name] = folder / f"{name}.jsonl"
        write_atomically(files[name], "".join(lines).encode())
    return files


def train_task(
    task: QuickTask, backbone: Backbone, files: Mapping[str, Path], out: Path, watch: Callable[[Progress], None]
) -> None:
    """Train one epoch and write the delta to ``out``, replacing an older one."""
    from edgepeft.data.parts import load_data
    from edgepeft.methods.base import method_named
    from edgepeft.training.loop import train
    from edgepeft.training.settings import TrainSettings

    options = TrainSettings(
        task=task.name,
        epochs=1,
        learning_rate=task.learning_rate,
        batch_size=task.batch_size,
        max_length=task.max_length,
    )
    data = load_data(files["train"], files["eval"], files["test"])
    train(backbone, method_named(task.method)(), data, options, out, force=True, watch=watch)
