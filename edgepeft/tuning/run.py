"""A training loop on the board: ONNX Runtime for PyTorch, NumPy for the optimizer.

The task in the bundle is untouched until the end, and then replaced in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from edgepeft import __version__
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UsageError
from edgepeft.data.batches import encode_parts
from edgepeft.data.training_loop.options import BATCH
from edgepeft.data.training_loop.run import Progress, TrainingLoop, TrainingLoopResult
from edgepeft.tuning.adamw import AdamW
from edgepeft.tuning.engine import OnnxRuntimeEngine
from edgepeft.tuning.memory import lay_out
from edgepeft.tuning.options import TuneOptions
from edgepeft.tuning.target import TuningSubject
from edgepeft.tuning.text_generation import WritingEngine

__all__ = ["TuningRun"]


class TuningRun:
    """A training loop with the engine and the layout that compute it."""

    def __init__(
        self,
        bundle: Bundle,
        subject: TuningSubject,
        options: TuneOptions,
        work: Path,
        *,
        threads: int | None = None,
        keep: bool = False,
        watch: Callable[[Progress], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Lay the run out and open nothing yet; ``layout.notes`` say for people how steps will be computed.

        ``work`` is the folder of checkpoints, and of hidden states that memory has no room for; with ``keep`` they stay
        there for the next run on these rows.
        """
        self.subject, self.options, data = subject, options, subject.data
        data.task_kind.metric_or_default(options.metric)  # a wrong one is refused before rows are tokenized
        asked, most = options.batch_size, len(data.train)
        if asked is not None and asked > most:
            raise UsageError(f"--batch-size {asked} is more than the {most} rows that train; give at most {most}.")
        self.batch_size = asked or min(BATCH, most)
        rate, head_rate = subject.rates
        self.rates = {
            "learning_rate": options.learning_rate or rate,
            "head_learning_rate": options.head_learning_rate or head_rate,
        }
        encoder, pad = bundle.encoder(), bundle.architecture.pad_token_id
        rows = encode_parts(data, encoder, subject.max_length, pad, writing=subject.writing)
        self.layout = lay_out(bundle, subject, options, rows, self.batch_size)
        engine = OnnxRuntimeEngine if subject.writing is None else WritingEngine
        self.engine = engine(
            bundle,
            subject,
            rows,
            self.layout,
            work,
            optimizer=self._optimizer(),
            options=options,
            threads=threads,
            keep=keep,
        )
        entry = {"task": subject.task, "template": subject.template, "data": data.sha256}
        self.loop = TrainingLoop(
            self.engine,
            data,
            rows,
            options,
            batch_size=self.batch_size,
            folder=work,
            asked={**entry, **options.plain(), **self.layout.plain(), **self.rates},
            remedy=self._remedy(),
            scores_start=True,
            watch=watch,
            stop=stop,
        )

    def finish(self) -> TrainingLoopResult:
        """Every step that is left; the best tensors, and their score on rows that chose nothing.

        Where a task of the bundle was tuned, the metric ``before`` is its own score on those rows.

        Raises:
            EdgepeftError, Interrupted: as ``TrainingLoop.run``.
        """
        result = self.loop.run()
        training = {
            **self.options.plain(),
            "engine": f"onnxruntime {version('onnxruntime')}, edgepeft {__version__}",
            "template": self.subject.template,
            **self.rates,
            "batch_size": self.batch_size,
            **self.layout.plain(),
            **result.training,
        }
        if self.options.balanced:
            training["class_weights"] = self.subject.data.class_weights
        before = {} if self.subject.template else {"before": self._score_before(result)}
        return replace(result, training=training, metrics={**result.metrics, **before})

    def _score_before(self, result: TrainingLoopResult) -> float:
        """Score what the bundle holds on the test rows; last, for a session beside a step's would take memory."""
        there = self.subject.tensors()
        said = self.subject.card["metrics"].get("before")
        same = all(np.array_equal(there[name], after) for name, after in result.tensors.items())
        if result.improved and same and isinstance(said, float):
            return said  # the run was killed when this very result was in force already
        self.engine.finish(there)
        tuned, self.loop.kind = self.loop.kind, self.subject.facts.kind  # with the thresholds that it had
        score = self.loop.score("test").score
        self.loop.kind = tuned
        self.engine.finish(result.tensors)
        return score

    def _optimizer(self) -> AdamW:
        rate, head_rate = self.rates.values()
        rates = {name: head_rate if name.startswith("head/") else rate for name in self.subject.facts.trained}
        return AdamW(rates, weight_decay=self.options.weight_decay)

    def _remedy(self) -> str:
        rate, head_rate = self.rates.values()
        usual, head_usual = self.subject.rates
        lower, head_lower = min(rate / 10, usual), min(head_rate / 10, head_usual)
        return (
            f"The task in the bundle is as it was. Try --lr {lower:g} --head-lr {head_lower:g} with --force "
            f"(these were {rate:g} and {head_rate:g})."
        )
