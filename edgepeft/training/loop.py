"""``edgepeft train``: from a backbone, a method and data to a delta's folder, by a training loop in PyTorch."""

import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor, nn

from edgepeft import __version__
from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.bundle.card import CARD_FILE, CHECKPOINTS, ERRORS, EVALUATION_FILE, TENSORS_FILE
from edgepeft.bundle.delta import Delta, new_delta
from edgepeft.common.atomic import check_replaceable, check_target, new_folder
from edgepeft.common.errors import UsageError
from edgepeft.data.batches import Writing, encode_parts
from edgepeft.data.by_class import FILES, MAX_SHOWN, score_text, without_texts, write_confusion
from edgepeft.data.parts import TaskData, complete_from_rows, load_data
from edgepeft.data.training_loop.checkpoint import Diverged, latest
from edgepeft.data.training_loop.run import Progress, TrainingLoop, TrainingLoopResult, resumable, shown_run
from edgepeft.methods.base import Method, method_of
from edgepeft.options.base import Folder, function_of
from edgepeft.options.verbs import TrainOptions, TrainSettings
from edgepeft.runtime.decoding import Grammars
from edgepeft.training import devices
from edgepeft.training.curve import CURVE, draw_curve, point_of, smaller
from edgepeft.training.engine import PyTorchEngine, SharedStates
from edgepeft.training.settings import resolve_request, run_identity, with_data_defaults
from edgepeft.training.text_engine import TextEngine, require_kept

_ALONE = threading.Lock()  # what a run sets is the process's: PyTorch's generator, threads and way to multiply


@dataclass(frozen=True, kw_only=True)
class TrainResult(TrainingLoopResult):
    """What the training loop gave, and the delta that was written."""

    delta: Delta


def train_delta(
    backbone: Backbone | Folder,
    method: Method | str,
    data: TaskData | Folder,
    options: TrainSettings,
    out: Path | str,
    *,
    resume: bool = False,
    force: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
    start: Mapping[str, Tensor] | None = None,
    shared: Path | None = None,
) -> TrainResult:
    """Train and write the delta's folder, where checkpoints lie until then; torch's generator is left as it was.

    Of a file of rows two tenths are held out, to choose and to report.  ``stop`` is called after every step and says
    whether to write a checkpoint and end; ``start`` has every tensor of the delta, to begin there; ``shared`` is a
    folder of hidden states that runs on the same rows of the same backbone leave each other.
    """
    checkpoint = prepare_output(out := Path(out), resume=resume, force=force)
    backbone, method = open_backbone(backbone), method_of(method)
    if not isinstance(data, TaskData):
        kind, regression, few, seed = options.kind, options.regression, options.few_shot, options.seed
        data = load_data(Path(data), kind=kind, regression=regression, few_shot=few, seed=seed)
    device = devices.device_of(options.device)
    devices.check_memory(device, method, backbone.architecture)
    data, options = with_data_defaults(backbone, method, data, options)
    with devices.float32_by_onednn(device) as by_onednn, devices.fitting(device, options):
        attention = devices.attention_for(by_onednn, options.max_length or 0)
        run = _Run(backbone, method, options, device, attention, start, shared, watch, stop)
        engine = run.engine(data)
        loop = run.loop(engine, data, out / CHECKPOINTS)
        if checkpoint is not None:
            loop.resume(checkpoint)
        result, diverged = _outcome(loop)
        if options.curve and diverged is None:
            result = run.with_curve(result, data, engine.model, out / CHECKPOINTS, resume=resume)
    result = replace(result, training={**run.account(data), **result.training})
    metrics = {**result.metrics, ERRORS: without_texts(result.errors)}
    update = {"metrics": metrics, "training": result.training, "chosen": {**engine.kind.chosen, **result.chosen}}
    delta = engine.delta.cpu()
    packages = {name: version(name) for name in ("torch", "transformers")}
    update["versions"] = {"edgepeft": __version__, "python": platform.python_version(), **packages}
    delta.card = delta.card.model_copy(update=update)
    with new_folder(out, force=True) as new:  # the checkpoints go with the old folder
        delta.write(new)
        if result.evaluation:
            save_file(result.evaluation, new / EVALUATION_FILE, metadata={"format": "pt"})
    confusion = result.errors.get("confusion", {})
    if len(confusion) > MAX_SHOWN:
        write_confusion(confusion, f"{options.task}: {method.name} on {backbone.source}", out)
    if CURVE in result.metrics:
        draw_curve(result.metrics, f"{options.task}: {method.name} on {backbone.source}", out)
    if diverged is not None:
        best = f"of step {result.training['best_step']} ({result.metric} {score_text(result.metrics['eval'])}"
        raise Diverged(f"{diverged} {out} holds its best tensors, {best} on the eval rows).") from diverged
    return TrainResult(**vars(result), delta=delta)


@dataclass(frozen=True)
class _Run:
    """What a run on all training rows and those of its learning curve have in common."""

    backbone: Backbone
    method: Method
    options: TrainSettings
    device: torch.device
    attention: str | None
    start: Mapping[str, Tensor] | None
    shared: Path | None
    watch: Callable[[Progress], None]
    stop: Callable[[], bool]

    def engine(self, data: TaskData, model: nn.Module | None = None) -> PyTorchEngine:
        """A fresh delta on the frozen model, with the rows as tokens."""
        backbone, options = self.backbone, self.options
        longest = options.max_length or 0
        template = {name: getattr(data, name) for name in ("source", "target", "targets", "step", "json_schema")}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            delta = new_delta(
                backbone,
                self.method,
                options.task,
                data.labels,
                pairs=data.pairs,
                head=options.head,
                max_length=longest,
                template={**template, "max_target_length": options.max_target_length},
                kind=data.task_kind.name,
                stride=data.stride,
            )
            model = model or load_model(backbone, self.attention)  # transformers draws what the checkpoint lacks
        if self.start is not None:
            delta.read(self.start, "the start")
        encoder, pad = backbone.encoder(), backbone.architecture.pad_token_id
        writing = Writing.by(backbone.architecture, delta.card.max_target_length)
        rows = encode_parts(data, encoder, longest, pad, writing=writing)
        rates = options.lr or 0.0, options.head_lr or 0.0
        known = data.class_weights
        weights = [known.get(label, 0.0) for label in data.labels or ()] if options.balanced else None
        shared = None if self.shared is None else SharedStates(self.shared, backbone.sha256, self.attention)
        how: dict[str, Any] = {"weights": weights, "device": self.device, "bf16": options.bf16, "shared": shared}
        if delta.card.task_kind.writes:
            grammars = Grammars.of(backbone.folder, backbone.architecture)
            require_kept(data, grammars, encoder)
            how |= {"decode": encoder.decode, "grammars": grammars}
            return TextEngine(delta, model, rows, rates, options.clip_norm, **how)
        return PyTorchEngine(delta, model, rows, rates, options.clip_norm, **how)

    def loop(self, engine: PyTorchEngine, data: TaskData, folder: Path, what: str = "") -> TrainingLoop:
        """Not begun; ``folder`` is of its checkpoints, ``what`` is said beside its phases."""
        options, rates = self.options, (self.options.lr, self.options.head_lr)
        return TrainingLoop(
            engine,
            data,
            engine.rows,
            options,
            batch_size=options.batch_size,
            folder=folder,
            asked=run_identity(self.backbone, self.method, data, options),
            remedy=f"Lower --lr ({rates[0]:g}) or --head-lr ({rates[1]:g}), and give --force.",
            watch=lambda progress: self.watch(progress._replace(phase=progress.phase + what)),
            stop=self.stop,
        )

    def with_curve(
        self, whole: TrainingLoopResult, data: TaskData, model: nn.Module, folder: Path, *, resume: bool
    ) -> TrainingLoopResult:
        """The result with the scores of runs on fewer training rows, each with a folder of checkpoints."""
        points = []
        for few in smaller(data, self.options.seed):
            n = len(few.train)
            own = folder / f"{CURVE}-{n}"
            loop = self.loop(self.engine(few, model), few, own, f" on {n} rows")
            checkpoint = latest(own) if resume else None
            if checkpoint is not None:
                loop.resume(checkpoint)
            try:
                points.append(point_of(few, _outcome(loop)[0]))
            except Diverged:
                points.append(point_of(few, None))
        return replace(whole, metrics={**whole.metrics, CURVE: [*points, point_of(data, whole)]})

    def account(self, data: TaskData) -> dict[str, Any]:
        """What the card says of the run beside its outcome."""
        facts = {**self.options.plain(), "few_shot": data.few_shot, "device": devices.device_named(self.device)}
        facts["precision"] = "bfloat16" if facts.pop("bf16") else "float32"
        return {**facts, "class_weights": data.class_weights} if self.options.balanced else facts


def _outcome(loop: TrainingLoop) -> tuple[TrainingLoopResult, Diverged | None]:
    """The result; of a run that diverged that of its best evaluation, and why it ended."""
    try:
        return loop.run(), None
    except Diverged as diverged:
        if loop.position.best is None:
            raise
        result = loop.result()
        return replace(result, training={**result.training, "diverged": str(diverged)}), diverged


def prepare_output(out: Path, *, resume: bool, force: bool) -> Path | None:
    """The checkpoint to continue from, or None for a new run; touches nothing."""
    if resume and force:
        raise UsageError("--resume and --force exclude each other: continue what is there, or replace it.")
    check_replaceable(out)
    check_target(out.resolve())  # as the folder is put in place, before hours of work
    names = sorted(path.name for path in out.iterdir() if not path.name.startswith(".")) if out.exists() else []
    checkpoint = latest(out / CHECKPOINTS)
    if resume:
        if checkpoint is None:
            holds = "a finished delta" if CARD_FILE in names else "no checkpoint"
            raise UsageError(f"there is nothing to resume: {out} holds {holds}. Leave --resume out to start a run.")
        return checkpoint
    pictures = {"curve.png", "curve.svg", *FILES}  # of a learning curve, and of errors by class
    ours = {CARD_FILE, TENSORS_FILE, EVALUATION_FILE, CHECKPOINTS, *pictures}
    if foreign := [name for name in names if name not in ours]:
        raise UsageError(f"{out} holds {foreign[0]}, which is no part of a delta; choose another folder.")
    if checkpoint is not None and not force:
        raise UsageError(f"{out} holds an interrupted run. Give --resume to continue it, or --force to start anew.")
    if set(names) - {CHECKPOINTS} and not force:  # an empty one: the disk was full before the first checkpoint
        raise UsageError(f"{out} exists already. Give --force to replace it, or choose another folder.")
    return None


def run(options: TrainOptions) -> TrainResult:
    """Train as the options say, with progress on standard error."""
    resolve_request(options)  # what is wrong with them, or with what lies there, is reported before files are read
    out, resume, force = Path(options.out), options.resume, options.force
    prepare_output(out, resume=resume, force=force)
    found = resolve_request(complete_from_rows(options))
    rows = found.rows()
    with _ALONE:
        threads = torch.get_num_threads()
        try:
            devices.use_threads(options.threads)
            with shown_run(options.task) as (watch, stop):
                how: dict[str, Any] = {"resume": resume, "force": force, "watch": watch, "stop": stop}
                return train_delta(options.backbone, found.method, rows, found.request, out, **how)
        finally:
            torch.set_num_threads(threads)


@function_of(TrainOptions)
def train(options: TrainOptions) -> TrainResult:
    """Train a task's delta on a frozen backbone, and write its folder ``out``.

    Returns the score on rows that neither trained nor chose the checkpoint, the baselines beside it, the errors by
    class and the delta.

    Raises:
        UsageError: options that are wrong or exclude each other; a file that is not there.
        DataError: rows that cannot be used.
        Interrupted: Ctrl-C; ``resume=True`` continues.
    """
    with resumable():
        return run(options)
