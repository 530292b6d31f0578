"""Training a delta: AdamW with a rate of its own for the head, linear warm-up and decay, clipped gradients.

The backbone is frozen and in eval mode (its dropout is off); the head's dropout is on.  The checkpoint
that scores best on the evaluation rows is kept, the score of other rows is reported.  The run is a pure
function of data, options and seed: the order of the rows is computed, and everything else that moves
is in the checkpoint, so a resumed run ends as an uninterrupted one, bit for bit on one thread.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from edgepeft import __version__
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.data.batches import Encoded, encode, epoch_batches
from edgepeft.data.metrics import check_metric
from edgepeft.data.parts import TaskData, load_data
from edgepeft.data.rows import Row
from edgepeft.data.schedule import evaluation_interval, rate_factor, warmup_steps
from edgepeft.delta import Delta, new_delta
from edgepeft.errors import EdgepeftError
from edgepeft.methods.base import Method, method_of
from edgepeft.training.batches import tensors_of
from edgepeft.training.checkpoint import Position, load_checkpoint, save_checkpoint
from edgepeft.training.evaluation import evaluate, loss_of
from edgepeft.training.options import TrainOptions
from edgepeft.training.output import prepare_output

__all__ = ["Interrupted", "Progress", "TrainResult", "train"]


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop; its checkpoint is written."""


class Progress(NamedTuple):
    """What is going on: ``phase`` is train, eval or test, ``done`` of ``total`` its steps or rows.

    ``loss`` is the last step's, ``score`` and ``best`` are of the evaluation rows; None until known.
    """

    phase: str
    done: int
    total: int
    loss: float | None
    score: float | None
    best: float | None


@dataclass(frozen=True)
class TrainResult:
    """The best delta, its scores, and how it came about; ``truncated`` counts texts that lost tokens."""

    delta: Delta
    metric: str
    eval_score: float
    test_score: float
    best_step: int
    steps: int
    history: list[dict[str, float]]
    truncated: int
    split: str


def train(
    backbone: Backbone | Path | str,
    method: Method | str,
    data: TaskData | Path | str,
    options: TrainOptions,
    out: Path | str,
    *,
    resume: bool = False,
    force: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    start: Mapping[str, Tensor] | None = None,
) -> TrainResult:
    """Train and write the delta's folder ``out``; ``stop`` is asked after every step.

    ``backbone`` may be a folder or a Hub name, ``method`` a text such as ``lora:rank=8``, ``data`` a file of labelled
    rows, of which two tenths are held out to choose and to report.

    ``start`` holds every tensor of the delta, to begin there and not where the method does.  torch's global generator
    is left as it was found.

    Raises:
        UsageError: options that this backbone, method or data cannot have; ``out`` exists.
        BundleError: ``start`` is of another method or number of labels.
        EdgepeftError: the loss or a gradient became infinite; no space left.
        Interrupted: ``stop`` said so; a checkpoint is in ``out``.
    """
    out = Path(out)
    checkpoint = prepare_output(out, resume=resume, force=force)
    backbone, method = open_backbone(backbone), method_of(method)
    if not isinstance(data, TaskData):
        data = load_data(Path(data), regression=options.regression, seed=options.seed)
    options = options.resolved(backbone, method)
    check_metric(options.metric or "", regression=options.regression, names=data.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        run = _Run(backbone, method, data, options, out=out, watch=watch, stop=stop)
        if start is not None:
            run.delta.read(start, "the start")
        if checkpoint is not None:
            run.position = load_checkpoint(checkpoint, run.delta, run.optimizer, run.asked)
        run.finish_steps()
        return run.finish()


class _Run:
    """One run in memory: what never changes, and ``position``."""

    def __init__(
        self,
        backbone: Backbone,
        method: Method,
        data: TaskData,
        options: TrainOptions,
        *,
        out: Path,
        watch: Callable[[Progress], None],
        stop: Callable[[], bool],
    ) -> None:
        self.data, self.options, self.out, self.watch, self.stop = data, options, out, watch, stop
        self.delta = new_delta(
            backbone,
            method,
            options.task,
            data.labels,
            pairs=data.pairs,
            head=options.head,
            max_length=options.max_length or 0,
        )
        self.model = load_model(backbone)
        self.train_rows, self.eval_rows = (_encoded(backbone, data, options, rows) for rows in (data.train, data.eval))
        self.test_rows = partial(_encoded, backbone, data, options, data.test)
        per_epoch = math.ceil(len(data.train) / options.batch_size)
        self.per_epoch, self.total = per_epoch, options.steps or per_epoch * (options.epochs or 0)
        self.interval = evaluation_interval(per_epoch, self.total)
        self.warmup = warmup_steps(self.total, options.warmup)
        self.optimizer = _optimizer(self.delta, options)
        self.position = Position()
        self.loss: float | None = None
        self.asked = {
            "backbone": backbone.sha256,
            "method": method.name,
            "hyperparameters": method.settings(),
            "data": data.sha256,
            **options.plain(),
        }

    def finish_steps(self) -> None:
        """Every step that is left, with its evaluations and checkpoints."""
        position = self.position
        if not position.step:
            self.save()
        while position.step < self.total:
            epoch, first = divmod(position.step, self.per_epoch)
            lengths = self.train_rows.lengths
            for chosen in epoch_batches(lengths, self.options.batch_size, self.options.seed, epoch)[first:]:
                if position.step == self.total:
                    return
                self.step(chosen)

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
        """Forward, backward, clip, AdamW.

        Raises:
            EdgepeftError: the loss or a gradient is not finite.
        """
        self.delta.train()
        inputs, targets = tensors_of(self.train_rows, chosen)
        loss = loss_of(self.delta.logits(self.model, inputs), targets)
        self.loss = loss.item()
        if not math.isfinite(self.loss):
            raise self.diverged(f"the loss became {self.loss}")
        factor = rate_factor(self.position.step, self.warmup, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.delta.parameters(), self.options.clip_norm)
        if not math.isfinite(norm):
            raise self.diverged("the gradients are not finite")
        self.optimizer.step()

    def diverged(self, what: str) -> EdgepeftError:
        """The error that says so, and which rates to lower."""
        return EdgepeftError(
            f"{what} in step {self.position.step + 1}: the training diverged. "
            f"Lower --lr ({self.options.learning_rate:g}) or --head-lr ({self.options.head_learning_rate:g})."
        )

    def evaluate(self) -> None:
        """Score the evaluation rows; keep the delta if it is the best so far (of equal scores, the lower loss)."""
        position = self.position
        scored = evaluate(self.delta, self.model, self.eval_rows, self.metric, advance=self.counter("eval"))
        position.history.append({"step": position.step, "score": scored.score, "loss": scored.loss})
        if position.best is None or (scored.score, -scored.loss) > position.best:
            position.best, position.best_step = (scored.score, -scored.loss), position.step
            position.best_tensors = {name: t.detach().clone() for name, t in self.delta.tensors().items()}
        self.report("train", position.step, self.total)

    def finish(self) -> TrainResult:
        """Report the best delta on the test rows and write it; the checkpoint goes with the old folder."""
        position, options = self.position, self.options
        assert position.best is not None
        self.delta.read(position.best_tensors, str(self.out))
        test_rows = self.test_rows()
        tested = evaluate(self.delta, self.model, test_rows, self.metric, advance=self.counter("test"))
        scores = {
            "metric": self.metric,
            "eval": position.best[0],
            "test": tested.score,
            "n_train": len(self.data.train),
            "n_eval": len(self.data.eval),
            "n_test": len(self.data.test),
            "split": self.data.split,
        }
        training = {
            **options.plain(),
            "steps": self.total,
            "few_shot": self.data.few_shot,
            "best_step": position.best_step,
            "data": self.data.sha256,
        }
        update = {"metrics": scores, "training": training, "versions": _versions()}
        self.delta.card = self.delta.card.model_copy(update=update)
        self.delta.save(self.out, force=True)
        truncated = sum(rows.truncated for rows in (self.train_rows, self.eval_rows, test_rows))
        return TrainResult(
            delta=self.delta,
            metric=self.metric,
            eval_score=position.best[0],
            test_score=tested.score,
            best_step=position.best_step,
            steps=self.total,
            history=position.history,
            truncated=truncated,
            split=self.data.split,
        )

    @property
    def metric(self) -> str:
        """The metric's name."""
        return self.options.metric or ""

    def save(self) -> None:
        """Write where the run stands."""
        save_checkpoint(self.out, self.position, self.delta, self.optimizer, self.asked)

    def report(self, phase: str, done: int, total: int) -> None:
        """Tell the watcher."""
        history, best = self.position.history, self.position.best
        score = history[-1]["score"] if history else None
        self.watch(Progress(phase, done, total, self.loss, score, best[0] if best else None))

    def counter(self, phase: str) -> Callable[[int], None]:
        """What an evaluation calls after each batch with its number of rows."""
        done, total = 0, len(self.data.eval if phase == "eval" else self.data.test)

        def advance(n: int) -> None:
            nonlocal done
            done += n
            self.report(phase, done, total)

        return advance


def _encoded(backbone: Backbone, data: TaskData, options: TrainOptions, rows: tuple[Row, ...]) -> Encoded:
    return encode(
        rows,
        data.targets(rows),
        backbone.encoder(),
        options.max_length or 0,
        backbone.architecture.pad_token_id,
        regression=options.regression,
    )


def _optimizer(delta: Delta, options: TrainOptions) -> torch.optim.AdamW:
    """Two groups, the delta proper and its head; no weight decay, as in the methods' papers."""
    named = delta.tensors()
    head = [tensor for name, tensor in named.items() if name.startswith("head/")]
    proper = [tensor for name, tensor in named.items() if not name.startswith("head/")]
    rates = ((proper, options.learning_rate), (head, options.head_learning_rate))
    groups: list[dict[str, Any]] = [{"params": g, "lr": rate, "initial_lr": rate} for g, rate in rates if g]
    return torch.optim.AdamW(groups, weight_decay=0.0)


def _versions() -> dict[str, str]:
    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"edgepeft": __version__, "python": platform.python_version(), **packages}
