"""The options of the verbs: what each is asked, its defaults, checks and help, by the command line and by Python."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from typer import Argument, Option

from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import check_new_name
from edgepeft.options import base

METHOD = "lora"  # of a task that names none: as good as full fine-tuning in docs/methods.md, and PEFT has it too
NO_BUNDLE = (
    "--to-peft and --to-adapterhub write one delta for these, no bundle: with --backbone, one --delta and --force."
)
_Names = Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(dict.fromkeys(given)))]  # each once


class TrainInputs(base.LearningOptions):
    """The backbone, the method, and the rows with what is read of them."""

    backbone: Annotated[base.Folder, Option(help="Folder in Hugging Face layout, bundle, GGUF file or Hub name.")]
    format: Annotated[
        str | None, Option(help="Sources and targets by name: glue:mrpc, superglue:cb, squad, compacter:mrpc, ...")
    ] = None
    source: Annotated[str | None, Option(help='What is read of a row: "summarize: {text}".', metavar="PATTERN")] = None
    target: Annotated[str | None, Option(help='What is written: "{summary}".', metavar="PATTERN")] = None
    json_schema: Annotated[
        base.Folder | dict[str, Any] | None, Option(help="A file with the JSON schema that written texts keep to.")
    ] = None
    field: Annotated[
        Mapping[str, str],
        BeforeValidator(partial(base.settings_of, option="--field", example="premise=sentence1")),
        Option(help="The column of a field: premise=sentence1; may repeat.", metavar="FIELD=COLUMN"),
    ] = Field(default_factory=dict)
    method: Annotated[str | None, Option(help=f"A PE method; `edgepeft methods` lists them. Default: {METHOD}.")] = None
    set: base.MethodSettings = Field(default_factory=dict)


class TrainSettings(base.TrainingLoopOptions):
    """A training loop's numbers, and what a new delta needs; its card keeps them."""

    task: Annotated[str, AfterValidator(partial(check_new_name, beside=())), Option(help="The task's name.")]
    kind: base.TaskKind = None
    lr: Annotated[base.LearningRate, Option(help="Learning rate of the delta. Default: the method's.")] = None
    head_lr: Annotated[base.HeadRate, Option(help="The head's. Default: 0.02 on a mean of tokens, else --lr.")] = None
    batch_size: Annotated[int, base.at_least(1), Option(help="Rows of a step.")] = 16
    max_length: Annotated[  # a token between two special ones
        int | None, base.at_least(3), Option(help="Tokens kept of a text or pair. Default: 128.")
    ] = None
    long: Annotated[
        Literal["cut", "windows"] | None,
        Option(help="Longer texts lose their ends, or are read in windows that overlap. Default: cut."),
    ] = None
    stride: Annotated[base.Count, Option(help="Tokens two windows share. Default: a third of --max-length.")] = None
    max_target_length: Annotated[  # a token and the end
        int | None, base.at_least(2), Option(help="Tokens of a written text, its end included. Default: 128.")
    ] = None
    regression: Annotated[bool, Option("--regression", help="Short for --kind regression.")] = False
    head: Annotated[str | None, Option(help="Kind of head. Default: the backbone's own.")] = None
    curve: Annotated[bool, Option("--curve", help="Train on 10, 20, 40 and 70 % of the rows too.")] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Option(help="Where to compute; auto: a GPU where there is one.")
    ] = "auto"
    bf16: Annotated[bool, Option("--bf16", help="A step's forward in bfloat16; what is trained is not.")] = False

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked, but for what may differ."""
        kept = {*TrainSettings.model_fields} - {"curve", "device", "few_shot"}  # the card has the rows' own few_shot
        return self.model_dump(include=kept, by_alias=True)


class TrainRequest(TrainSettings, TrainInputs):
    """What makes a run what it is; a sweep's cells have the same."""


class TrainOptions(TrainRequest):
    """A run, and where its delta goes."""

    threads: base.TorchThreads = None
    out: Annotated[base.Folder, Option(help="The delta's folder, new.")]
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted run in --out.")] = False
    force: Annotated[bool, Option("--force", help="Replace a delta or an interrupted run in --out.")] = False


class TuneInputs(base.LearningOptions):
    """A task of a bundle, or a template to start one from, and rows."""

    bundle: Annotated[base.Folder, Argument(help="The bundle's folder.")]
    task: Annotated[str, Option(help="The task to go on with; with --template, the new task's name.")]
    template: Annotated[str | None, Option(help="Start a new task from this template of the bundle.")] = None


class TuneSettings(base.TrainingLoopOptions):
    """A training loop's numbers on a board; None means what the task or the metric says.

    ``prefix_cache`` and ``micro_batch`` (None: what fits ``memory`` and the ``profile``'s) change how a step is
    computed, and its result in the last digits only.  ``coverage`` or ``risk`` is what is guaranteed of a
    classification's answers; None keeps what the task has.
    """

    lr: Annotated[base.LearningRate, Option(help="Learning rate of the delta. Default: as it was trained.")] = None
    head_lr: Annotated[base.HeadRate, Option(help="That of the head. Default: as it was trained.")] = None
    weight_decay: Annotated[float, base.at_least(0), Option(help="AdamW's, of every trained tensor.")] = 0.0
    batch_size: Annotated[base.Count, Option(help="Rows of a step. Default: 16, or all if fewer.")] = None
    dropout: Annotated[bool, Option("--dropout/--no-dropout", help="The head's, as it was exported.")] = True
    coverage: base.Coverage = None
    risk: base.Risk = None
    micro_batch: Annotated[base.Count, Option(help="Rows computed at once. Default: what memory allows.")] = None
    prefix_cache: Annotated[
        bool, Option("--prefix-cache/--no-prefix-cache", help="Compute what lies below the trained modules once.")
    ] = True
    backward: Annotated[Literal["int8", "fp32"], Option(help="How gradients pass a backbone's 8-bit weights.")] = "int8"
    profile: Annotated[str | None, Option(help="A device whose memory the run must fit.")] = None
    memory: Annotated[str | None, Option(help="Memory the run must fit, such as 800MB or 1.5GiB.")] = None
    save_every: Annotated[int, base.at_least(1), Option(help="Steps between checkpoints.")] = 20

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        left_out = {"profile", "memory", *(name for name in ("coverage", "risk") if getattr(self, name) is None)}
        return self.model_dump(include={*TuneSettings.model_fields} - left_out, by_alias=True)


class TuneOptions(TuneSettings, TuneInputs):
    """A run, and what becomes of an interrupted one."""

    threads: base.Threads = None
    resume: Annotated[bool, Option("--resume", help="Continue an interrupted run of the task.")] = False
    force: Annotated[bool, Option("--force", help="Start anew in place of an interrupted run.")] = False


class ExportOptions(base.Options):
    """A backbone, its deltas, and the bundle or another library's folder that is written of them."""

    backbone: Annotated[base.Folder, Option(help="Folder in Hugging Face layout, GGUF file or Hub name.")]
    delta: Annotated[base.Folders, Option(help="Folder that `edgepeft train` wrote; may repeat.")] = ()
    out: Annotated[base.Folder | None, Option(help="The bundle's folder.")] = None
    verify_data: base.VerifyRows = None
    text_column: base.TextColumn = None
    pair_column: base.PairColumn = None
    label_column: base.LabelColumn = None
    trainable: base.Trainable = False
    template: Annotated[
        str | Sequence[str],
        Option(metavar="METHOD[:NAME=VALUE,...]", help="An untrained delta to start tasks from; may repeat."),
    ] = ()
    to_peft: Annotated[base.Folder | None, Option(help="Instead of a bundle, one delta as PEFT's folder.")] = None
    to_adapterhub: Annotated[
        base.Folder | None,
        Option(help="Instead of a bundle, one delta as AdapterHub's folder."),
    ] = None
    weights: Annotated[
        Literal["fp32", "int8", "int4"] | None,
        Option(help="How the backbone is stored and multiplied. Default: int8 of decoders alone, else fp32."),
    ] = None
    delta_weights: base.DeltaWeights = "fp32"
    accept_error: base.AcceptError = False
    coverage: base.Coverage = None
    risk: base.Risk = None
    profile: Annotated[str | None, Option(help="A device it is for: what smaller weights cost there is said.")] = None
    force: base.Replace = False

    def require_bundle(self) -> base.Folder:
        """Return the bundle's folder; refuse options that name none, or nothing to put into it."""
        if self.out is None:
            raise UsageError("give --out, the bundle's folder, or --to-peft or --to-adapterhub, a folder for these.")
        if not self.delta and not self.template:
            raise UsageError(
                "give --delta, a folder that `edgepeft train` wrote, or --template, a method to start from."
            )
        return self.out


class EvalOptions(base.ColumnOptions):
    """A task of a bundle, and the labelled rows that it is scored on."""

    bundle: Annotated[base.Folder, Argument(help="The bundle's folder.")]
    data: Annotated[base.GivenRows, Option(help=f"Labelled rows: {base.ROWS_HELP}.")]
    task: Annotated[str, Option(help="The task to score.")]
    metric: Annotated[
        str | None,
        Option(
            help="accuracy, macro_f1, f1, matthews, pearson, ...; "
            "of text f1, exact_match, rouge_1, rouge_2, rouge_l, bleu, chrf."
        ),
    ] = None
    by: Annotated[
        str | None,
        Option(metavar="NAME", help="A column: its values' rows are scored each, as MNLI's matched and mismatched."),
    ] = None
    question: Annotated[
        str | None,
        Option(
            metavar="NAME[,NAME]",
            help="Columns that say which question a row answers: the share of questions whose rows are all right is "
            "shown too. Default: idx, where it numbers paragraph, question and answer (MultiRC).",
        ),
    ] = None
    out: Annotated[
        base.Folder | None,
        Option(help="A folder for the confusion matrix, whole: confusion.csv, and with matplotlib a picture."),
    ] = None
    batch_size: Annotated[int, base.at_least(1), Option(help="Rows that run together.")] = 32
    threads: base.Threads = None
    no_cache: base.NoCache = False


class BenchOptions(base.Options):
    """None stands for the scenario's value, an empty tuple for everything there is."""

    bundle: Annotated[
        Path | None, Argument(help="A bundle; without one, random weights of --backbone.", show_default=False)
    ] = None
    profile: Annotated[str, Option(help="The device whose cores and memory are in force.")]
    mode: base.Mode = "limits"
    engines: Annotated[_Names, Option("--engine", help="onnxruntime or pytorch; may repeat. Default: both.")] = ()
    workloads: Annotated[_Names, Option("--workload", help="infer or finetune; may repeat. Default: both.")] = ()
    tasks: Annotated[tuple[str, ...], Option("--task", help="A task of the bundle; may repeat. Default: all.")] = ()
    methods: Annotated[
        tuple[str, ...], Option("--method", help="Tasks of that method; without a bundle, a fresh delta of it.")
    ] = ()
    settings: Annotated[
        Mapping[str, Any],
        BeforeValidator(base.settings_of),
        Option("--set", help="memory=2GB of the profile, or --method's name=value; may repeat."),
    ] = Field(default_factory=dict)
    backbone: Annotated[str | None, Option(help="An architecture, with random weights. Default: roberta-base.")] = None
    batch_size: Annotated[base.Count, Option(help="Texts in a batch. Default: the scenario's 32.")] = None
    length: Annotated[base.Count, Option(help="Every text has this many tokens. Default: 128.")] = None
    new_tokens: Annotated[base.Count, Option(help="Tokens that tasks write of each text. Default: 32.")] = None
    lengths: Annotated[str | None, Option(help="Real lengths: sst2, mrpc, rte, a file of integers or TOML.")] = None
    peers: Annotated[tuple[Path, ...], Option("--peer", help="An ONNX encoder in the same rounds; may repeat.")] = ()
    rounds: Annotated[base.Count, Option(help="Samples of each. Default: 30.")] = None
    max_seconds: base.MaxSeconds = None
    seed: Annotated[int, base.at_least(0), Option(help="Of token ids, weights and the order within rounds.")] = 0
    scenario: str = "offline"  # the command line may name several
    cache: Annotated[
        bool,
        Option(
            " /--no-cache",
            help="A copy of the weights for each task; nothing is kept on disk.",
            show_default=False,
        ),
    ] = True
    timed: Annotated[
        bool,
        Option(
            " /--deterministic", help="Count nodes, operations and bytes only; nothing is timed.", show_default=False
        ),
    ] = True
    counted: bool = False  # also the figures that need no clock, as the command line always has them
    instructions: Annotated[
        bool, Option("--instructions", help="Also count instructions on an emulated Cortex-A72 (needs QEMU).")
    ] = False
    profile_ops: Annotated[bool, Option("--profile-ops", help="Inference's time by operator and layer, too.")] = False


class SweepOptions(base.Options):
    """A plan, the sweep's folder, and how its runs are computed and kept."""

    plan: Annotated[Path, Argument(help="A plan in TOML; docs/sweeps.md shows one.", metavar="PLAN.toml")]
    out: Annotated[Path, Option(help="The sweep's folder; one that is there goes on.")]
    workers: Annotated[
        base.Count,
        Option(help="Runs at once; small models can share a GPU. Default: one a GPU, or as --threads allows."),
    ] = None
    threads: Annotated[int, base.at_least(1), Option(help="Of each run; results are equal to the bit with one.")] = 1
    halve: Annotated[bool, Option("--halve", help="Drop the worse half of a method's rates at 1/4 and 1/2.")] = False
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="A cluster of Ray that computes the runs, or auto.")] = (
        None
    )
    keep: Annotated[
        Literal["deltas", "cards", "results"],
        Option(help="What stays of a run: its delta, its card and answers, or a line of results.jsonl."),
    ] = "deltas"
    dry_run: Annotated[bool, Option("--dry-run", help="List the runs, and compute none.")] = False
