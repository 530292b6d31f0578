"""A model's work, a batch a step: logits, text, a peer's answer, a profiled pass, fine-tuning, requests.

A step that writes makes ``new_tokens`` of every row of its batch; no token ends a text.  One of fine-tuning is forward,
backward and AdamW, of a delta or of everything.  Requests come as a program makes them: to one open runtime, or each to
a new process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.text import BEFORE
from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.common.errors import EdgepeftError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone
    from edgepeft.bundle.delta import Delta

    Logits = Callable[[dict[str, Tensor]], Tensor]

FRESH_DELTA = "PyTorch ran a fresh delta of this method and shape: a bundle holds no PyTorch modules"
_LEARNING_RATE = 1e-6  # of both engines; the figure is time: weights should stay where activations are ordinary
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def infer_onnxruntime(job: Job) -> Prepared:
    """As ``edgepeft run``: a step is one batch to the task's logits, or to the bare backbone's last hidden state."""
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    runtime.prepare(job.task)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        if job.task is None:
            runtime.last_hidden_state(inputs)
        else:
            runtime.logits(job.task, inputs)

    return Prepared(step)


def profiled(job: Job) -> Prepared:
    """A batch through ONNX Runtime's profiler: step 0 is a run, step 1 leaves the profile at ``settings["trace"]``."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.inputs import passes
    from edgepeft.runtime.session import open_session, session_options

    bundle, target = Bundle(Path(job.bundle)), Path(job.settings["trace"])
    prompt = bundle.entry(job.task).prompt_length if job.task else 0
    options = session_options(job.threads)
    options.enable_profiling = True
    options.profile_file_prefix = str(target)
    model = bundle.graph(job.task)
    session = open_session(model, bundle.folder, options=options, external_data=bundle.external_data(model))
    read = {value.name for value in session.get_inputs()}

    def step(batch: int) -> None:
        if batch:
            shutil.move(session.end_profiling(), target)
            return
        inputs = job.batch(0)
        for _, part in passes({name: inputs[name] for name in read}, prompt=prompt):
            session.run(None, part)

    return Prepared(step)


def peer(job: Job) -> Prepared:
    """Another encoder as an ONNX file, as its publisher's users open it: default optimisations, the same threads."""
    from edgepeft.runtime.session import plain_session

    try:
        session = plain_session(str(job.model), job.threads)
    except Exception as error:  # ONNX Runtime's exceptions have no common public base
        raise UsageError(f"--peer {job.model}: ONNX Runtime cannot open it: {error}") from error
    names = [node.name for node in session.get_inputs()]
    unknown = sorted(set(names) - set(_INPUTS))
    if unknown:
        raise UsageError(
            f"--peer {job.model} asks for the inputs {', '.join(unknown)}; a peer may have {', '.join(_INPUTS)} only."
        )

    def step(batch: int) -> None:
        values = job.batch(batch)
        session.run(None, {name: values[name] for name in names})

    return Prepared(step)


def infer_pytorch(job: Job) -> Prepared:
    """transformers on PyTorch CPU, bare or with a delta's hooks: a step is one forward pass without gradients."""
    import torch

    backbone, model = load(job)
    delta = None if job.task is None else job_delta(job, backbone).eval()

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        with torch.inference_mode():
            model(**inputs) if delta is None else delta.logits(model, inputs)

    return Prepared(step, () if delta is None else (FRESH_DELTA,))


def write_onnxruntime(job: Job) -> Prepared:
    """Greedily, by ``task``, by the next of ``settings["tasks"]`` in each step, or by the bare backbone."""
    from edgepeft.runtime.decoding import Decoding
    from edgepeft.runtime.runtime import Runtime

    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    tasks = job.settings.get("tasks", [job.task])
    runtime.generator.session(tasks[0])
    decoding = Decoding(max_new_tokens=job.new_tokens, ends=False)

    def step(batch: int) -> None:
        inputs = {name: job.batch(batch % len(job.batches))[name] for name in runtime.bundle.architecture.inputs}
        runtime.generator.write(tasks[batch % len(tasks)], inputs, decoding)

    return Prepared(step)


def write_pytorch(job: Job) -> Prepared:
    """By transformers' ``generate``; its cache of keys and values is on, as by default."""
    import torch

    from edgepeft.training.text_engine import generated, greedy

    backbone, model = load(job)
    delta = None if job.task is None else job_delta(job, backbone).eval()
    generate: Any = model.generate

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        with torch.inference_mode():
            if delta is None:
                generate(**inputs, **greedy(backbone.architecture, job.new_tokens, ends=False))
            else:
                generated(delta, model, inputs, job.new_tokens, ends=False)

    return Prepared(step, () if delta is None else (FRESH_DELTA,))


def load(job: Job) -> tuple[Backbone, nn.Module]:
    """The bundle's backbone in transformers (SDPA attention), on ``job.threads`` threads."""
    import torch

    from edgepeft.backbones.hooks import load_model
    from edgepeft.backbones.source import open_backbone

    torch.set_num_threads(job.threads)
    torch.manual_seed(job.seed)
    backbone = open_backbone(job.bundle)
    return backbone, load_model(backbone)


def job_delta(job: Job, backbone: Backbone) -> Delta:
    """A delta of the job's method and settings; its speed is that of the trained one."""
    from edgepeft.bundle.delta import new_delta
    from edgepeft.methods.base import method_named

    method = method_named(job.method or "").from_settings(job.settings)
    kind = job.task_kind()
    return new_delta(backbone, method, job.task or "bench", kind.labels, head=kind.head, kind=kind.name)


def batch_tensors(job: Job, index: int) -> dict[str, Tensor]:
    """Ids and mask of batch ``index`` as tensors, both [batch, longest]; nothing is copied."""
    import torch

    inputs = job.batch(index)
    return {name: torch.from_numpy(inputs[name]) for name in ("input_ids", "attention_mask")}


def finetune_onnxruntime(job: Job) -> Prepared:
    """As ``edgepeft tune`` does it: the task's training graph on the bundle's weights, and AdamW in NumPy."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.graph.gradient.training import training_facts
    from edgepeft.graph.half import widen
    from edgepeft.tuning.activation_cache import training_graph
    from edgepeft.tuning.step import AdamW, Expansion, StepRows, TrainingStep, targets_at_once
    from edgepeft.tuning.target import deployed_graph

    bundle = Bundle(Path(job.bundle))
    architecture = bundle.architecture
    bundle.entry(job.task or "").require_tunable(job.task or "")
    delta = bundle.delta_graph(job.task or "")
    widen(delta.graph)
    facts = training_facts(delta)
    facts = replace(facts, kind=facts.kind.in_one_window())
    deployed = deployed_graph(delta, facts, bundle)
    graph, _ = training_graph(deployed, facts, bundle.checkpoint, prefix_cache=False)
    training = TrainingStep(graph, facts, bundle.folder, job.threads)
    tensors, expansion = facts.tensors(delta), Expansion(delta, facts, bundle.checkpoint, job.threads)
    optimizer = AdamW(dict.fromkeys(tensors, _LEARNING_RATE))
    most = targets_at_once(job.new_tokens, architecture.vocab_size) if job.new_tokens else None
    kind, source = job.task_kind(), np.random.default_rng(job.seed)

    def step(batch: int) -> None:
        inputs = job.batch(batch)
        rows = len(inputs["input_ids"])
        masks = [
            ((source.random((rows, width), np.float32) >= p) / np.float32(1 - p)).astype(np.float32)
            for p, width in facts.dropouts
        ]
        labels, beside = _targets(job, inputs["attention_mask"], architecture)
        shares = np.full(len(labels), 1 / kind.terms(labels).sum(), np.float32)
        counts = kind.synthetic_per_row(rows)
        per_row = None if counts is None else np.array(counts)
        read = inputs["attention_mask"] != 0 if kind.passages else None

        def states(rows: Sequence[int]) -> dict[str, NDArray[Any]]:
            return {name: values[list(rows)] for name, values in beside.items()}

        asked = StepRows(inputs, labels, masks, shares, most, per_row, read, states=states)
        result = training(expansion.inputs(tensors), asked)
        optimizer.update(tensors, expansion.gradients(tensors, result.gradients))

    return Prepared(step)


def _targets(
    job: Job, mask: NDArray[np.int64], architecture: Architecture
) -> tuple[NDArray[Any], dict[str, NDArray[np.int64]]]:
    """Make a step's targets [rows, ...], and what a decoder reads to write them."""
    if not job.new_tokens:
        return job.task_kind().synthetic_targets(mask), {}
    assert architecture.decoder is not None, "what writes has a decoder"
    targets = job.task_kind().synthetic_targets(np.ones((len(mask), job.new_tokens), np.int64))
    start = np.full((len(targets), 1), architecture.decoder.start_token_id or 0)
    return targets, {BEFORE: np.concatenate([start, targets[:, :-1]], axis=1)}


def finetune_pytorch(job: Job, wrap: Callable[[Logits], Logits] = lambda logits: logits) -> Prepared:
    """Load the model with an optimiser for what is trained; ``wrap`` makes of the forward pass what runs."""
    import torch

    from edgepeft.data.row_grouping import places_of, token_places
    from edgepeft.methods.base import method_named
    from edgepeft.training.engine import loss_of

    backbone, model = load(job)
    everything = method_named(job.method or "").trains_everything
    if everything:
        logits, trained = _everything(job, backbone, model)
    else:  # the model stays frozen, without dropout, as ``edgepeft train`` has it
        delta = job_delta(job, backbone).train()
        logits, trained = (lambda inputs: delta.logits(model, inputs)), delta.parameters()
    logits = wrap(logits)
    optimizer, kind = torch.optim.AdamW(trained, lr=_LEARNING_RATE), job.task_kind()

    def step(batch: int) -> None:
        inputs = batch_tensors(job, batch)
        targets, beside = _targets(job, inputs["attention_mask"].numpy(), backbone.architecture)
        given = {name: torch.from_numpy(values) for name, values in beside.items()}
        counts = kind.synthetic_per_row(len(inputs["input_ids"]))
        places = None if counts is None else places_of(counts)
        places = token_places(inputs["attention_mask"].numpy() != 0) if kind.passages else places
        found = logits({**inputs, **given})
        torch.autograd.backward(loss_of(kind, found, torch.from_numpy(targets), places=places))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Prepared(step, () if everything else (FRESH_DELTA,))


def _everything(job: Job, backbone: Backbone, model: nn.Module) -> tuple[Logits, Iterable[nn.Parameter]]:
    """The ordinary way, as transformers' Trainer does it: the model's own weights and a linear head, dropout on.

    Not a delta of method ``full``: that would hold a second copy of the weights, a worse peer than
    people have.
    """
    from torch import nn

    from edgepeft.backbones.hooks import states_of

    model.train().requires_grad_(True)
    if job.new_tokens:
        return lambda inputs: model(**inputs).logits, model.parameters()
    head, per_token = nn.Linear(backbone.architecture.hidden_size, job.n_labels), job.task_kind().per_token

    def logits(inputs: dict[str, Tensor]) -> Tensor:
        states = states_of(model, inputs)
        outputs: Tensor = head(states if per_token else states[:, 0])
        return outputs

    return logits, [*model.parameters(), *head.parameters()]


_ANSWER = """
import json, sys
from edgepeft.runtime.runtime import Runtime
asked = json.loads(sys.argv[1])
with Runtime(asked["bundle"], threads=asked["threads"], cache=asked["cache"]) as runtime:
    if asked["task"] is None:
        runtime.predict_mixed([None], asked["texts"])
    else:
        kind = runtime.bundle.entry(asked["task"]).task_kind
        runtime.predict(asked["task"], [kind.readable(pairs=False, text=text) for text in asked["texts"]])
"""


def requests(job: Job) -> Prepared:
    """Open the bundle, no task yet, for a step is request number i of ``settings["requests"]``.

    Each is ``{"how": ..., "tasks": [...], "tokens": [...]}``, texts of so many tokens, which a row of a task's kind is
    made around; a task of None is the bare backbone.  With ``settings["one_pool"]`` sessions share threads, as those of
    ``edgepeft serve`` do.

    | how | |
    |---|---|
    | ``one``, ``all`` | every text by the task, or by every task: task after task, or all tasks on one input |
    | ``each``, ``mixed`` | an equal block of the texts for each task: task after task, or in one mixed batch |
    """
    from edgepeft.bench.planning.target import texts_of
    from edgepeft.runtime.runtime import Runtime
    from edgepeft.runtime.session import share_threads

    if job.settings.get("one_pool"):
        share_threads(job.threads)
    runtime = Runtime(Path(job.bundle), threads=job.threads, cache=job.cache)
    asked: list[dict[str, Any]] = job.settings["requests"]
    made = [texts_of(request["tokens"], seed=job.seed + number) for number, request in enumerate(asked)]

    def read(task: str | None, texts: Sequence[str]) -> list[Any]:
        """The texts as the task reads them, beside a word where its rows have more."""
        kind = None if task is None else runtime.bundle.entry(task).task_kind
        return [kind.readable(pairs=False, text=text) if kind else text for text in texts]

    def step(batch: int) -> None:
        how, tasks, texts = asked[batch]["how"], asked[batch]["tasks"], made[batch]
        size = len(texts) // len(tasks)
        blocks = [(task, texts if how == "one" else texts[n * size :][:size]) for n, task in enumerate(tasks)]
        if how == "all":
            runtime.predict_all(tasks, texts)
        elif how == "mixed":
            rows = [row for task, block in blocks for row in read(task, block)]
            runtime.predict_mixed([task for task in tasks for _ in range(size)], rows)
        elif how in ("one", "each"):
            for task, rows in ((task, read(task, block)) for task, block in blocks):
                runtime.predict_mixed([None] * len(rows), rows) if task is None else runtime.predict(task, rows)
        else:
            raise ValueError(f"no request is put {how!r}")

    return Prepared(step)


def cold_start(job: Job) -> Prepared:
    """A step is a new process that opens the bundle and answers one text; a child, so that limits hold for it too."""
    from edgepeft.bench.planning.target import texts_of

    texts = texts_of(job.batches[0], seed=job.seed)
    asked = {"bundle": job.bundle, "task": job.task, "threads": job.threads, "cache": job.cache, "texts": texts}
    command = [sys.executable, "-P", "-c", _ANSWER, json.dumps(asked)]

    def step(batch: int) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            raise EdgepeftError(f"the new process failed: {last[:300]}")

    return Prepared(step)
