"""The training loop: AdamW in a fixed order, linear warm-up and decay, evaluations, the best checkpoint, resumption.

The tensors that score best on the evaluation rows are kept, the score of other rows is reported.  The run is a pure
function of data, options and seed: the order of the rows and the dropout's masks are computed from the seed, and all
else that moves is in the checkpoint, so a resumed run ends as an uninterrupted one, bit for bit on one thread.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import TextColumn, TimeRemainingColumn

from edgepeft.common.messages import first_of
from edgepeft.common.progress import bars, stopping
from edgepeft.data.batches import Encoded, epoch_batches
from edgepeft.data.by_class import headline, headline_metrics, mislabelled, shown_row, worst_of
from edgepeft.data.parts import TaskData
from edgepeft.data.row_grouping import Spread
from edgepeft.data.training_loop.baselines import compare_with_baselines
from edgepeft.data.training_loop.checkpoint import Diverged, Position, load_checkpoint, save_checkpoint
from edgepeft.data.training_loop.engine import Arrays, Scored, TrainingEngine, dropout_mask
from edgepeft.options.base import TrainingLoopOptions


class Interrupted(KeyboardInterrupt):
    """The run was stopped from outside; its checkpoint is written."""

    signal = 0  # that stopped it, if one did


@contextmanager
def resumable() -> Iterator[None]:
    """Run a function of Python within the block, so that a stop says how to go on."""
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}; with resume=True and without force it goes on.") from None


class Progress(NamedTuple):
    """Where a run stands; None is not known yet."""

    phase: str  # prefix, train, eval, test or baselines; of `edgepeft tune` commit, before its first file is written
    done: int  # of its steps or rows
    total: int
    loss: float | None = None  # of the last step
    score: float | None = None  # of the evaluation rows, as is the best
    best: float | None = None


@contextmanager
def shown_run(task: str) -> Iterator[tuple[Callable[[Progress], None], Callable[[], bool]]]:
    """Show a bar with loss and metric; yield what a run reports to, and what says whether to stop."""
    columns = TimeRemainingColumn(), TextColumn("{task.fields[state]}", markup=False)
    with bars(*columns) as shown, stopping() as stop:
        bar = shown.add_task(f"{task}: loading", total=None, state="")

        def watch(progress: Progress) -> None:
            known: dict[str, float | None] = {"loss": progress.loss, "eval": progress.score, "best": progress.best}
            state = "  ".join(f"{name} {value:.3f}" for name, value in known.items() if value is not None)
            what = f"{task}: {progress.phase}"
            shown.update(bar, description=what, completed=progress.done, total=progress.total, state=state)

        try:
            yield watch, lambda: bool(stop())
        except Interrupted as stopped:
            stopped.signal = stop()
            raise


@dataclass(frozen=True)
class TrainingLoopResult:
    """The best tensors, their scores and how they came about as a card has them."""

    tensors: Arrays = field(repr=False)
    metrics: dict[str, Any]
    training: dict[str, Any]
    history: list[dict[str, float]]
    truncated: int  # texts that lost tokens
    errors: dict[str, Any] = field(repr=False)  # where answers to the test rows are wrong, by class
    cut: int = 0  # targets that lost tokens
    chosen: dict[str, Any] = field(default_factory=dict)  # by the kind of task, on the evaluation rows
    evaluation: Arrays = field(default_factory=dict, repr=False)  # ``logits`` and ``targets``, where it calibrates
    tested: Arrays = field(default_factory=dict, repr=False)  # ``targets`` and ``outputs`` of the test rows

    @property
    def metric(self) -> str:
        """The metric's name."""
        return str(self.metrics["metric"])

    @property
    def score(self) -> float:
        """The score on rows that neither trained nor chose the step."""
        return float(self.metrics["test"])

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of what takes no training: the majority, a linear head on the frozen backbone."""
        return {name: float(of["test"]) for name, of in self.metrics["baselines"].items()}

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Precision, recall, F1 and number of test rows of each label; empty where the task has none."""
        return dict(self.errors.get("by_class") or {})

    @property
    def improved(self) -> bool:
        """True if some step beat the start; a start that is not scored is always beaten."""
        return bool(self.training["best_step"])


MAX_EVALUATIONS = 20  # a few-shot run has hundreds of short epochs


def warmup_steps(total: int, part: float) -> int:
    """Return the steps in which the rate rises; none if the run is too short for one."""
    return int(part * total)


def rate_factor(step: int, warmup: int, total: int) -> float:
    """Return the learning rate's factor in step 0, 1, ..., total - 1: linear warm-up, then linear decay to zero (Devlin
    et al., 2019, appendix A.2; transformers has the same)."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def evaluation_interval(steps_per_epoch: int, total: int) -> int:
    """Return the steps between evaluations: an epoch, or more if there would be too many."""
    return max(steps_per_epoch, math.ceil(total / MAX_EVALUATIONS))


@dataclass(eq=False)
class TrainingLoop:
    """One run in memory: what never changes, and ``position``.  It has not begun."""

    engine: TrainingEngine  # computes steps and logits, and holds what is trained
    data: TaskData  # the rows as text; its labels and where they are from
    rows: Mapping[str, Encoded]  # the same rows as tokens, by part: train, eval, test
    options: TrainingLoopOptions  # epochs or steps, warm-up, seed, metric, steps between checkpoints
    _: KW_ONLY
    batch_size: int  # rows of a step; the last of an epoch may have fewer
    folder: Path  # of the checkpoints
    asked: Mapping[str, Any]  # what makes the run what it is; a resumed run must have the same
    remedy: str  # what to do about a run that diverges, as sentences
    scores_start: bool = False  # whether the start is a candidate for the best tensors
    watch: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False  # called after every step: whether to write a checkpoint and end

    def __post_init__(self) -> None:
        data, options, batch_size = self.data, self.options, self.batch_size
        self.kind = data.task_kind
        self.metric = self.kind.metric_or_default(options.metric)
        self.kind.check_batch(batch_size, data.train)
        train = self.rows["train"]
        self.ignorant = self.kind.constant_loss(train.targets, train.writing.words if train.writing else 0)
        self.per_epoch = math.ceil(len(data.train) / batch_size)
        self.total = options.total_steps(self.per_epoch)
        self.interval = evaluation_interval(self.per_epoch, self.total)
        self.warmup = warmup_steps(self.total, options.warmup)
        self.position = Position()
        self.loss: float | None = None
        self.pools: dict[str, float] = {}

    def resume(self, checkpoint: Path) -> None:
        """Go on where a checkpoint was written."""
        self.position, state = load_checkpoint(checkpoint, self.asked)
        self.engine.load_state(state)

    def run(self) -> TrainingLoopResult:
        """Run every step that is left, with its evaluations and checkpoints; then score the best tensors on test."""
        if not self.over:
            self.engine.prepare(self._prepared)
        if not self.position.step:
            if self.scores_start or not self.total:
                self.evaluate()
            self.save()
        for chosen in self.batches():
            self.step(chosen)
        return self.result()

    def batches(self) -> Iterator[list[int]]:
        """Yield the rows of each step that is left, in order; ``position`` moves between one and the next."""
        while not self.over:
            epoch, first = divmod(self.position.step, self.per_epoch)
            lengths = self.rows["train"].lengths
            for chosen in epoch_batches(lengths, self.batch_size, self.options.seed, epoch)[first:]:
                if self.over:
                    break
                yield chosen

    @property
    def over(self) -> bool:
        """True if no step is left, or the last evaluations brought nothing."""
        later = [entry for entry in self.position.history if entry["step"] > self.position.best_step]
        patience = self.options.patience
        return self.position.step == self.total or (patience is not None and len(later) >= patience)

    def step(self, chosen: list[int]) -> None:
        """Update, and do what is due after it."""
        self.update(chosen)
        position = self.position
        self.report("train", position.step, self.total)
        evaluating = position.step % self.interval == 0 or position.step == self.total
        if evaluating:
            self.evaluate()
        stopping = self.stop()
        good = self.loss is None or self.loss <= position.most_loss(self.ignorant)
        if stopping or (good and (evaluating or position.step % self.options.save_every == 0)):
            self.save()
        if stopping:
            raise self._interrupted()

    def update(self, chosen: list[int]) -> None:
        """Update by AdamW on these rows; refuse a loss or gradients that diverge."""
        step, seed = self.position.step, self.options.seed
        factor = rate_factor(step, self.warmup, self.total)
        self.loss, norm, odd = self.engine.step(chosen, factor, partial(dropout_mask, seed, step))
        if not (math.isfinite(self.loss) and math.isfinite(norm)):
            what = "the gradients are not finite" if math.isfinite(self.loss) else f"the loss became {self.loss}"
            raise self._diverged(what, odd if len(odd) < len(chosen) else ())
        self.position.record(self.loss)
        if rise := self.position.risen(self.ignorant):
            raise self._diverged(rise)
        self.position.step += 1

    def evaluate(self) -> None:
        """Score the evaluation rows; keep the tensors if they are the best so far (of equal scores, the lower loss)."""
        position, scored = self.position, self.score("eval")
        position.history.append({"step": position.step, "score": scored.score, "loss": scored.loss})
        if position.best is None or (scored.score, -scored.loss) > position.best:
            position.best, position.best_step = (scored.score, -scored.loss), position.step
            position.best_tensors = self.engine.tensors()
        self.report("train", position.step, self.total)

    def score(self, part: str) -> Scored:
        """Score the tensors as they are on the rows of a part."""
        done, rows = 0, self.rows[part]

        def advance(n: int) -> None:
            nonlocal done
            done += n
            self.report(part, done, len(rows.targets))

        return self.engine.scored(part, rows, self.kind, self.metric, advance)

    def save(self) -> None:
        """Write where the run stands."""
        save_checkpoint(self.folder, self.position, self.engine.state(), self.asked)

    def report(self, phase: str, done: int, total: int) -> None:
        """Call the watcher."""
        history, best = self.position.history, self.position.best
        score = history[-1]["score"] if history else None
        self.watch(Progress(phase, done, total, self.loss, score, best[0] if best else None))

    def _prepared(self, done: int, total: int) -> None:
        self.report("prefix", done, total)
        if self.stop():
            self.save()
            raise self._interrupted()

    def _interrupted(self) -> Interrupted:
        return Interrupted(f"stopped after step {self.position.step} of {self.total}")

    def _diverged(self, what: str, odd: Sequence[int] = ()) -> Diverged:
        rows = first_of([self.data.train[i].where for i in odd], between=" and ")
        why = f"by itself, only {rows} gives that; correct or remove it" if odd else "the training diverged"
        return Diverged(f"{what} in step {self.position.step + 1}: {why}. {self.remedy}")

    def result(self) -> TrainingLoopResult:
        """Score the best tensors so far on the test rows, after an evaluation.  No step can follow."""
        position, data = self.position, self.data
        assert position.best is not None
        self.engine.finish(position.best_tensors)
        evaluation = self._chosen()
        test, rows = self.score("test"), self.rows["test"]
        known = rows.references or rows.targets  # what answers are scored by
        metrics = {
            "metric": self.metric,
            "eval": position.best[0],
            "test": test.score,
            "headline": headline(self.kind, known, test.outputs, self.options.metric),
            "baselines": self._baselines(test),
            "n_train": len(data.train),
            "n_eval": len(data.eval),
            "n_test": len(data.test),
            "split": data.split,
        }
        training: dict[str, Any] = {"steps": position.step, "best_step": position.best_step, "data": data.sha256}
        if per_text := [counts for part in self.rows.values() for counts in part.per_text or ()]:
            training["windows"] = Spread.of(np.concatenate(per_text))._asdict()
            training["windows"] |= {"pools": self.pools} if self.pools else {}
        return TrainingLoopResult(
            position.best_tensors,
            metrics,
            training,
            position.history,
            truncated=sum(part.truncated for part in self.rows.values()),
            errors=self._errors(test, known),
            cut=sum(part.cut for part in self.rows.values()),
            chosen=dict(self.kind.chosen),
            evaluation=evaluation,
            tested={"targets": rows.targets, "outputs": test.outputs},
        )

    def _chosen(self) -> Arrays:
        """Have the kind choose on the evaluation rows, and calibrate; return what is kept of these rows."""
        if not (self.kind.chooses or self.kind.calibrates or len(self.kind.pool_candidates()) > 1):
            return {}
        scored, targets = self.score("eval"), self.rows["eval"].targets
        self.kind, self.pools = scored.kind, dict(scored.pools)
        if scored.logits is None:
            return {}
        self.kind = self.kind.calibrated(targets, scored.logits)
        return {"logits": scored.logits, "targets": targets}

    def _errors(self, test: Scored, known: Any) -> dict[str, Any]:
        kind, rows, targets = self.kind, self.data.test, self.rows["test"].targets
        expected, answers = map(kind.expected, rows), kind.plain_answers(rows, targets, test.outputs)
        more: Any = [{}] * len(rows) if test.logits is None else kind.probabilities(targets, test.logits)
        shown = [*map(shown_row, rows, expected, answers, test.losses.tolist(), more)]
        found = {**kind.errors(known, test.outputs), "worst": worst_of(shown)}
        if test.logits is None:
            return found
        doubted = kind.doubted(targets, test.logits)
        return {**found, **kind.calibration(targets, test.logits), **mislabelled(doubted, shown.__getitem__)}

    def _baselines(self, test: Scored) -> dict[str, Any]:
        if not self.kind.has_baselines:
            return {}
        return compare_with_baselines(
            self.engine,
            self.rows,
            test,
            kind=self.kind,
            metric=self.metric,
            beside=headline_metrics(self.kind, self.rows["test"].targets, self.options.metric),
            head_alone=all(name.startswith("head/") for name in self.position.best_tensors),
            advance=partial(self.report, "baselines"),
        )
