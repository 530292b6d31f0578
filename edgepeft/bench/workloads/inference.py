"""Answers by both engines, on one batch a step: logits, text that is written, a peer's, a profiled pass.

A step that writes makes ``new_tokens`` of every row of its batch; no token ends a text.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepeft.bench.planning.job import Job, Prepared
from edgepeft.common.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from edgepeft.backbones.source import Backbone
    from edgepeft.bundle.delta import Delta

FRESH_DELTA = "PyTorch ran a fresh delta of this method and shape: a bundle holds no PyTorch modules"
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
    """One batch through ONNX Runtime's profiler, which begins with the first run.

    Batch 0 is a run; batch 1 ends profiling and leaves the profile at ``settings["trace"]``.
    """
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.runtime.passes import passes
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
