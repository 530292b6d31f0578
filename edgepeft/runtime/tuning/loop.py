"""Tuning a delta on the board: `edgepeft.training.loop` with ONNX Runtime for PyTorch and NumPy for the optimizer.

The order of the rows, the schedule and what chooses the checkpoint are the same.  The run is a pure function of
data, options and seed, and what moves is in its checkpoint, so a run that was killed ends as one that was not.
The task in the bundle is untouched until the end, and then replaced in one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgepeft import __version__
from edgepeft.data.batches import Encoded, encode, epoch_batches
from edgepeft.data.metrics import check_metric, default_metric
from edgepeft.data.rows import Row
from edgepeft.data.schedule import evaluation_interval, rate_factor, warmup_steps
from edgepeft.errors import EdgepeftError, UsageError
from edgepeft.graph.seeded import uniform
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.tuning.adamw import AdamW, clip
from edgepeft.runtime.tuning.checkpoint import Position, load_checkpoint, save_checkpoint
from edgepeft.runtime.tuning.engine import Engine
from edgepeft.runtime.tuning.evaluation import Scored
from edgepeft.runtime.tuning.layout import lay_out
from edgepeft.runtime.tuning.options import EPOCHS, TuneOptions
from edgepeft.runtime.tuning.step import Arrays
from edgepeft.runtime.tuning.subject import TuningSubject

__all__ = ["Interrupted", "Progress", "Run", "Tuned"]

_BATCH = 16


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; its checkpoint is written."""


class Progress(NamedTuple):
    """What is going on: ``phase`` is prefix, train, eval or test, ``done`` of ``total`` its steps or rows.

    A last one is commit, where the result is put in force: said before the first file of the bundle is written.
    """

    phase: str
    done: int
    total: int
    loss: float | None
    score: float | None
    best: float | None


@dataclass(frozen=True)
class Tuned:
    """The best tensors and how they came about; ``improved`` is False where no step beat the start."""

    tensors: Arrays
    metrics: dict[str, Any]
    training: dict[str, Any]
    history: list[dict[str, float]]
    truncated: int
    improved: bool


class Run:
    """One run in memory: what never changes, the tensors, and ``position``."""

    def __init__(
        self,
        bundle: Bundle,
        subject: TuningSubject,
        options: TuneOptions,
        work: Path,
        *,
        threads: int | None = None,
        watch: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.subject, self.options, self.work, self.watch, self.stop = subject, options, work, watch, stop
        data, self.facts = subject.data, subject.facts
        self.metric = options.metric or default_metric(data.labels is None)
        check_metric(self.metric, regression=data.labels is None, names=data.labels)
        self.batch_size = _batch_size(options.batch_size, len(data.train))
        self.tensors = subject.tensors()
        self.rows = {part: self._encoded(bundle, getattr(data, part)) for part in ("train", "eval", "test")}
        self.layout = lay_out(bundle, subject, options, self.rows, self.batch_size)
        self.engine = Engine(bundle, subject, self.rows, self.layout, work, threads=threads)
        for line in self.layout.notes:
            note(line)
        self.per_epoch = math.ceil(len(data.train) / self.batch_size)
        epochs = EPOCHS if options.epochs is None and options.steps is None else options.epochs
        self.total = options.steps or self.per_epoch * (epochs or 0)
        self.interval = evaluation_interval(self.per_epoch, self.total)
        self.warmup = warmup_steps(self.total, options.warmup)
        rate, head_rate = self.rates
        rates = {name: head_rate if name.startswith("head/") else rate for name in self.tensors}
        self.optimizer = AdamW(rates, weight_decay=options.weight_decay)
        self.position = Position()
        self.loss: float | None = None

    @property
    def rates(self) -> tuple[float, float]:
        """Of the delta and of its head."""
        options, facts = self.options, self.facts
        return options.learning_rate or facts.learning_rate, options.head_learning_rate or facts.head_learning_rate

    @property
    def asked(self) -> dict[str, Any]:
        """What makes the run what it is."""
        entry = {"task": self.subject.task, "template": self.subject.template, "data": self.subject.data.sha256}
        return {**entry, **self.options.plain(), **self.layout.plain(), "rates": self.rates}

    def resume(self, checkpoint: Path) -> None:
        """Stand where a checkpoint was written.

        Raises:
            UsageError, BundleError: as ``load_checkpoint``.
        """
        self.position = load_checkpoint(checkpoint, self.tensors, self.optimizer, self.asked)

    def finish_steps(self) -> None:
        """Every step that is left, with its evaluations and checkpoints.

        Raises:
            EdgepeftError: the loss or a gradient is not finite.
            Interrupted: ``stop`` said so; a checkpoint is written.
        """
        position = self.position
        if position.step < self.total and not self.out_of_patience:
            self.engine.prepare(self._prepared)
        if not position.step:
            self.evaluate()
            self.save()
        while position.step < self.total and not self.out_of_patience:
            epoch, first = divmod(position.step, self.per_epoch)
            batches = epoch_batches(self.rows["train"].lengths, self.batch_size, self.options.seed, epoch)
            for chosen in batches[first:]:
                if position.step == self.total or self.out_of_patience:
                    return
                self.step(chosen)

    def _prepared(self, done: int, total: int) -> None:
        self.report("prefix", done, total)
        if self.stop():
            self.save()
            raise Interrupted(f"stopped after step {self.position.step} of {self.total}")

    @property
    def out_of_patience(self) -> bool:
        """Whether the last evaluations brought nothing."""
        patience = self.options.patience
        later = [entry for entry in self.position.history if entry["step"] > self.position.best_step]
        return patience is not None and len(later) >= patience

    def step(self, chosen: list[int]) -> None:
        """One update, and what is due after it."""
        position = self.position
        self.update(chosen)
        position.step += 1
        self.report("train", position.step, self.total)
        evaluating = position.step % self.interval == 0 or position.step == self.total
        if evaluating:
            self.evaluate()
        stopping = self.stop()
        if evaluating or stopping or position.step % self.options.save_every == 0:
            self.save()
        if stopping:
            raise Interrupted(f"stopped after step {position.step} of {self.total}")

    def update(self, chosen: list[int]) -> None:
        """Loss and gradients, clip, AdamW.

        Raises:
            EdgepeftError: the loss or a gradient is not finite; nothing was changed.
        """
        result = self.engine.gradients(self.tensors, chosen, self.masks(len(chosen)))
        norm = clip(result.gradients, self.options.clip_norm)
        self.loss = result.loss
        if not (math.isfinite(result.loss) and math.isfinite(norm)):
            what = f"the loss became {result.loss}" if math.isfinite(norm) else "the gradients are not finite"
            rate, head_rate = self.rates
            lower, head_lower = (
                min(rate / 10, self.facts.learning_rate),
                min(head_rate / 10, self.facts.head_learning_rate),
            )
            raise EdgepeftError(
                f"{what} in step {self.position.step + 1}: the training diverged. The task in the bundle is as it was. "
                f"Try --lr {lower:g} --head-lr {head_lower:g} with --force (these were {rate:g} and "
                f"{head_rate:g})."
            )
        factor = rate_factor(self.position.step, self.warmup, self.total)
        self.optimizer.update(self.tensors, result.gradients, factor)

    def masks(self, rows: int) -> list[NDArray[np.float32]]:
        """For each dropout, what its features are multiplied by: a function of seed and step."""
        found = []
        for index, (probability, width) in enumerate(self.facts.dropouts):
            p = probability if self.options.dropout else 0.0
            drawn = uniform(f"{self.options.seed}/{self.position.step}/dropout/{index}", (rows, width))
            found.append(((drawn >= p) / (1 - p)).astype(np.float32))
        return found

    def evaluate(self) -> None:
        """Score the evaluation rows; keep the tensors if they are the best so far (of equal scores, the lower loss)."""
        position = self.position
        scored = self.scored("eval", self.tensors)
        position.history.append({"step": position.step, "score": scored.score, "loss": scored.loss})
        if position.best is None or (scored.score, -scored.loss) > position.best:
            position.best, position.best_step = (scored.score, -scored.loss), position.step
            position.best_tensors = {name: tensor.copy() for name, tensor in self.tensors.items()}
        self.report("train", position.step, self.total)

    def scored(self, part: str, tensors: Arrays) -> Scored:
        """``tensors`` on the rows of a part."""
        done, total = 0, len(self.rows[part].targets)

        def advance(n: int) -> None:
            nonlocal done
            done += n
            self.report(part, done, total)

        return self.engine.score(part, tensors, self.metric, advance)

    def finished(self) -> Tuned:
        """The best tensors, and their score on rows that chose nothing."""
        position, data = self.position, self.subject.data
        assert position.best is not None
        self.engine.release()
        tested = self.scored("test", position.best_tensors)
        metrics = {
            "metric": self.metric,
            "eval": position.best[0],
            "test": tested.score,
            "n_train": len(data.train),
            "n_eval": len(data.eval),
            "n_test": len(data.test),
            "split": data.split,
        }
        rate, head_rate = self.rates
        training = {
            **self.options.plain(),
            "engine": f"onnxruntime {version('onnxruntime')}, edgepeft {__version__}",
            "template": self.subject.template,
            "learning_rate": rate,
            "head_learning_rate": head_rate,
            "batch_size": self.batch_size,
            **self.layout.plain(),
            "steps": position.step,
            "best_step": position.best_step,
            "data": data.sha256,
        }
        truncated = sum(rows.truncated for rows in self.rows.values())
        return Tuned(position.best_tensors, metrics, training, position.history, truncated, position.best_step > 0)

    def save(self) -> None:
        """Write where the run stands."""
        save_checkpoint(self.work, self.position, self.tensors, self.optimizer, self.asked)

    def report(self, phase: str, done: int, total: int) -> None:
        """Tell the watcher."""
        history, best = self.position.history, self.position.best
        score = history[-1]["score"] if history else None
        self.watch(Progress(phase, done, total, self.loss, score, best[0] if best else None))

    def _encoded(self, bundle: Bundle, rows: tuple[Row, ...]) -> Encoded:
        subject = self.subject
        targets, regression = subject.data.targets(rows), subject.data.labels is None
        pad = bundle.architecture.pad_token_id
        return encode(rows, targets, bundle.encoder(), subject.max_length, pad, regression=regression)


def _batch_size(asked: int | None, n_train: int) -> int:
    if asked is not None and asked > n_train:
        raise UsageError(f"--batch-size {asked} is more than the {n_train} rows that train; give at most {n_train}.")
    return asked or min(_BATCH, n_train)
