"""``edgepeft tune``: from a bundle, a task and data to the task's next version.

The training loop runs on the board: ONNX Runtime for PyTorch, NumPy for the optimizer.  The task in the bundle is
untouched until the end, and then replaced in one step.

Where text is written, teacher forcing trains, and greedy decoding of what will be stored answers.  Letters: B rows,
T tokens of the longest target, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft import __version__
from edgepeft.backbones.text import BEFORE
from edgepeft.bundle.bundle import TASKS_FOLDER, Bundle
from edgepeft.bundle.manifest import Manifest, TaskEntry
from edgepeft.common.errors import UsageError
from edgepeft.common.messages import counted
from edgepeft.common.progress import messages
from edgepeft.common.task_name import check_task_name
from edgepeft.data.batches import Encoded, Writing, encode_parts, sorted_batches
from edgepeft.data.columns import Columns
from edgepeft.data.parts import complete_from_rows, rows_or_share
from edgepeft.data.readers import source_of
from edgepeft.data.training_loop.checkpoint import claim, discard, latest
from edgepeft.data.training_loop.engine import BATCH, Scored
from edgepeft.data.training_loop.run import Progress, TrainingLoop, TrainingLoopResult, resumable, shown_run
from edgepeft.deploy.install import commit_tasks, prepare_task
from edgepeft.deploy.verify import CANDIDATES, STEPS, TextCheck, in_groups
from edgepeft.graph.names import LOGITS
from edgepeft.options.base import function_of
from edgepeft.options.verbs import TuneOptions, TuneSettings
from edgepeft.runtime.decoding import Decoding, log_probabilities
from edgepeft.runtime.inputs import passes
from edgepeft.runtime.session import open_session, run_session
from edgepeft.tasks._conformal import guarantee_of
from edgepeft.tasks.base import TaskType
from edgepeft.tuning.engine import OnnxRuntimeEngine
from edgepeft.tuning.memory import lay_out
from edgepeft.tuning.step import WRITTEN_ROWS, AdamW, targets_at_once
from edgepeft.tuning.target import Files, TuningTarget, from_task, from_template, with_values

if TYPE_CHECKING:
    from edgepeft.runtime.inputs import Inputs
    from edgepeft.runtime.session_pool import TaskSession


class WritingEngine(OnnxRuntimeEngine):
    """A step's graph reads what stands before each token of a target; the tokens are its labels."""

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """Score what greedy decoding writes; a row's loss is the mean over its target's tokens."""
        from edgepeft.runtime.generation import Generator, TextSession

        texts, losses = np.empty(len(rows.targets), object), np.empty(len(rows.targets))
        decode, decoding = self.bundle.encoder().decode, Decoding(max_new_tokens=self._writing.max_length)
        target = self.target
        delta = with_values(target.delta, target.as_stored(self.trained), target.half)
        session = TextSession.of(self.bundle.text_graphs_with(delta), self._open)
        generator = Generator(self.bundle, self._open)
        for chosen in sorted_batches(rows.lengths, WRITTEN_ROWS):
            inputs, targets = rows.batch(chosen)
            losses[chosen] = self._losses(inputs, targets, kind)
            written = generator.written(target.task, lambda: session, inputs, decoding, target.prompt_length)
            texts[chosen] = [decode(one.tokens) for one in written]
            advance(len(chosen))
        return Scored(kind.score(metric, rows.references, texts.tolist()), float(losses.mean()), texts, losses, kind)

    def check(self) -> bytes:
        """Record what the training graph goes on with greedily, and its likeliest tokens at each step."""
        self.finish(self.trained)
        inputs = self.target.check
        words = min(CANDIDATES, self._writing.words)
        shape = (len(inputs["input_ids"]), STEPS, words)
        candidates, likely = np.empty(shape, np.int64), np.empty(shape, np.float32)
        before = np.full((shape[0], STEPS), self._writing.start_token_id)
        for rows, group in in_groups(inputs):
            for step in range(STEPS):
                found = log_probabilities(self._taught(group, before[rows, : step + 1])[:, -1])
                best = np.argsort(-found, axis=-1, kind="stable")[:, :words]
                candidates[rows, step], likely[rows, step] = best, np.take_along_axis(found, best, axis=-1)
                before[rows, step + 1 : step + 2] = best[:, :1]
        return TextCheck(inputs, np.ascontiguousarray(candidates[..., 0]), candidates, likely).pack()

    @property
    def _writing(self) -> Writing:
        assert self.target.writing is not None, "the target writes text"
        return self.target.writing

    def _open(self, graph: onnx.ModelProto) -> TaskSession:
        from edgepeft.runtime.session_pool import TaskSession

        return TaskSession(open_session(graph, self.bundle.folder, self.threads), {}, None)

    def _beside(self, chosen: Sequence[int], labels: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """Inputs of a step besides tokens and labels: what stands before each token of the targets."""
        return {BEFORE: self._before(labels)}

    def _before(self, targets: NDArray[np.int64]) -> NDArray[np.int64]:
        """[B, T] -> [B, T]: the start, and all but the last token; any word past a target's end."""
        start = np.full((len(targets), 1), self._writing.start_token_id)
        before: NDArray[np.int64] = np.maximum(np.concatenate([start, targets[:, :-1]], axis=1), 0)
        return before

    def _losses(self, inputs: Inputs, targets: NDArray[np.int64], kind: TaskType) -> NDArray[np.float64]:
        """[B]: as many rows at once as a step has."""
        losses, before = np.empty(len(targets)), self._before(targets)
        most = targets_at_once(targets.shape[1], self._writing.words)
        for place, given in passes(inputs, prompt=self.target.prompt_length):
            for start in range(0, len(place), most):
                some = slice(start, start + most)
                rows = place[some]
                logits = self._taught({name: values[some] for name, values in given.items()}, before[rows])
                losses[rows] = kind.losses(logits, targets[rows])
        return losses

    def _taught(self, inputs: Inputs, before: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [B, T, v], by what is stored."""
        given = {name: np.ascontiguousarray(values) for name, values in {**inputs, BEFORE: before}.items()}
        return run_session(self._whole, LOGITS, {**self.given, **given})


@dataclass(frozen=True, kw_only=True)
class TuneResult(TrainingLoopResult):
    """What the training loop gave, and the task's entry now; None where no step beat what was there, which stays."""

    entry: TaskEntry | None


def tune_task(
    options: TuneOptions,
    *,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda _: None,
) -> TuneResult:
    """Tune a task, or start one from a template, and put the result in force in one step.

    Of a file of rows two tenths are held out, to choose and to report.  ``stop`` is called after every step and says
    whether to write a checkpoint and end (Interrupted), from which ``resume`` continues; ``note`` gets sentences for
    people about how steps are computed.
    """
    folder, task, template, kind = Path(options.bundle), options.task, options.template, options.kind
    held_out = rows_or_share("--eval", options.eval), rows_or_share("--test", options.test)
    files = Files(source_of(options.data), *held_out, Columns.of(options), skip_bad=options.skip_bad)
    check_task_name(task)
    guarantee_of(options.coverage, options.risk)
    if kind is not None and template is None:
        raise UsageError(f"--kind {kind} is of a task that is started; without --template, {task} is of its own kind.")
    Manifest.read(folder)  # that it is a bundle at all, before anything is made in it
    with claim(folder, task) as work:
        bundle = Bundle(folder)  # read under the lock: another run may just have replaced the task
        checkpoint = _checkpoint(work, options)
        target = (
            from_task(bundle, task, files, options)
            if template is None
            # A run that was killed after its result was in force finds a task of its own.
            else from_template(bundle, task, template, files, options, kind=kind, new=checkpoint is None)
        )
        run = TuningRun(bundle, target, options, work, threads=options.threads, watch=watch, stop=stop)
        for line in run.layout.notes:
            note(line)
        if checkpoint is not None:
            run.loop.resume(checkpoint)
        tuned = run.finish()
        check = run.engine.check()
        del run  # with its sessions
        entry = put_in_force(bundle, target, tuned, check, watch) if tuned.improved else None
        discard(work)
    return TuneResult(**vars(tuned), entry=entry)


def _checkpoint(work: Path, options: TuneOptions) -> Path | None:
    if options.resume and options.force:
        raise UsageError("--resume and --force exclude each other: continue the interrupted run, or start anew.")
    interrupted, run = latest(work), f"run of task {options.task}"
    if options.resume and interrupted is None:
        raise UsageError(f"there is nothing to resume: no {run} was interrupted. Leave --resume out.")
    if interrupted is not None and not (options.resume or options.force):
        raise UsageError(f"a {run} was interrupted. Give --resume to continue it, or --force to start anew.")
    if options.force:
        for path in work.glob("*.safetensors"):
            path.unlink()
        return None
    return interrupted


def put_in_force(
    bundle: Bundle,
    target: TuningTarget,
    tuned: TrainingLoopResult,
    check: bytes,
    watch: Callable[[Progress], None] = lambda _: None,
) -> TaskEntry:
    """Make a run's result the task's version, once it answers as ``check`` says; ``watch`` gets the phase commit."""
    account = {name: getattr(tuned, name) for name in ("metrics", "training")}
    kind = target.facts.kind
    begun = {name: kind.chosen[name] for name in kind.initial_choices(0) if name in kind.chosen}
    account["chosen"] = {**begun, **tuned.chosen}
    graph = with_values(target.delta, tuned.tensors, target.half, **account)
    where = bundle.folder / TASKS_FOLDER / f"{target.task}.onnx"
    content = graph.SerializeToString(deterministic=True)
    # Over 8-bit weights the two graphs round apart: what a step came to was scored by the one that answers.
    prepared = prepare_task(bundle, content, check, where, reference="training graph", accept_error=True)
    watch(Progress("commit", 0, 1))
    return commit_tasks(bundle, [prepared], replace=True).task(target.task)


@dataclass(eq=False)
class TuningRun:
    """A training loop with the engine and the layout that compute it; nothing is open yet."""

    bundle: Bundle
    target: TuningTarget
    options: TuneSettings
    work: Path  # the folder of checkpoints, and of hidden states that memory has no room for
    _: KW_ONLY
    threads: int | None = None
    keep: bool = False  # whether hidden states stay there for the next run on these rows
    watch: Callable[[Progress], None] = lambda _: None
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        bundle, target, options, data = self.bundle, self.target, self.options, self.target.data
        data.task_kind.metric_or_default(options.metric)  # a wrong one is refused before rows are tokenized
        asked, most = options.batch_size, len(data.train)
        if asked is not None and asked > most:
            raise UsageError(
                f"--batch-size {asked} is more than the {counted(most, 'row')} that can train; give at most {most}."
            )
        self.batch_size = asked or min(BATCH, most)
        rate, head_rate = usual = target.rates
        self.rates = {"learning_rate": options.lr or rate, "head_learning_rate": options.head_lr or head_rate}
        encoder, pad = bundle.encoder(), bundle.architecture.pad_token_id
        rows = encode_parts(data, encoder, target.max_length, pad, writing=target.writing)
        self.layout = lay_out(bundle, target, options, rows, self.batch_size)
        rate, head_rate = self.rates.values()
        lower, head_lower = min(rate / 10, usual[0]), min(head_rate / 10, usual[1])
        by_tensor = {name: head_rate if name.startswith("head/") else rate for name in target.facts.trained}
        optimizer = AdamW(by_tensor, weight_decay=options.weight_decay)
        engine = OnnxRuntimeEngine if target.writing is None else WritingEngine
        self.engine = engine(bundle, target, rows, self.layout, self.work, optimizer, options, self.threads, self.keep)
        entry = {"task": target.task, "template": target.template, "data": data.sha256}
        self.loop = TrainingLoop(
            self.engine,
            data,
            rows,
            options,
            batch_size=self.batch_size,
            folder=self.work,
            asked={**entry, **options.plain(), **self.layout.plain(), **self.rates},
            remedy="The task in the bundle is as it was. "
            f"Try --lr {lower:g} --head-lr {head_lower:g} with --force (these were {rate:g} and {head_rate:g}).",
            scores_start=True,
            watch=self.watch,
            stop=self.stop,
        )

    def finish(self) -> TrainingLoopResult:
        """Take the steps left; ``before`` is the score of the bundle's task on the rows that chose nothing."""
        result = self.loop.run()
        training = {
            **self.options.plain(),
            "engine": f"onnxruntime {version('onnxruntime')}, edgepeft {__version__}",
            "template": self.target.template,
            **self.rates,
            "batch_size": self.batch_size,
            **self.layout.plain(),
            **result.training,
        }
        if self.options.balanced:
            training["class_weights"] = self.target.data.class_weights
        before = {} if self.target.template else {"before": self._score_before(result)}
        return replace(result, training=training, metrics={**result.metrics, **before})

    def _score_before(self, result: TrainingLoopResult) -> float:
        """Score what the bundle holds on the test rows; last, for a session beside a step's would take memory."""
        there = self.target.tensors()
        said = self.target.card["metrics"].get("before")
        same = all(np.array_equal(there[name], after) for name, after in result.tensors.items())
        if result.improved and same and isinstance(said, float):
            return said  # the run was killed when this very result was in force already
        self.engine.finish(there)
        tuned, self.loop.kind = self.loop.kind, self.target.facts.kind  # with the thresholds that it had
        score = self.loop.score("test").score
        self.loop.kind = tuned
        self.engine.finish(result.tensors)
        return score


def run(options: TuneOptions) -> TuneResult:
    """Tune as the options say, with progress and notes on standard error."""
    if options.template is not None:  # a task that is there has its own kind
        options = complete_from_rows(options)
    with shown_run(options.task) as (watch, stop):
        return tune_task(options, watch=watch, stop=stop, note=lambda line: messages().print(f"note: {line}"))


@function_of(TuneOptions)
def tune(options: TuneOptions) -> TuneResult:
    """Fine-tune a task of a bundle with ONNX Runtime alone, and put the result in force in one step.

    Where no step beats what is there, the result's ``entry`` is None and the bundle stays as it is.

    Raises:
        UsageError: no such task or template, one that cannot be tuned, another run holds it or was interrupted.
        DataError: the rows cannot be used.
        Interrupted: Ctrl-C; ``resume=True`` continues.
    """
    with resumable():
        return run(options)
