"""PyTorch as people use it: PEFT's adapter, ``torch.compile``, transformers' ``generate``, and its own ONNX export."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.peers._writing import generating
from edgepeft.bench.planning.job import Job, Prepared

_ROWS, _TOKENS = 2, 16  # of the exporter's example; both stay open


def infer_peft(job: Job) -> Prepared:
    """Attach a fresh LoRA adapter of ``settings``, not merged; a step is one forward pass and a linear head."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn

    from edgepeft.bench.workloads.models import batch_tensors, load

    backbone, model = load(job)
    config = LoraConfig(r=int(job.settings["rank"]), target_modules=["query", "value"], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    head = nn.Linear(backbone.architecture.hidden_size, job.n_labels)

    def step(batch: int) -> None:
        with torch.inference_mode():
            head(adapted(**batch_tensors(job, batch)).last_hidden_state[:, 0])

    return Prepared(step)


def infer_compiled(job: Job) -> Prepared:
    """Compile the bare model (Inductor's C++ code); the first step, a warm-up, generates the code."""
    import torch

    from edgepeft.bench.workloads.models import batch_tensors, load

    _, model = load(job)
    compiled = torch.compile(model, dynamic=_is_ragged(job))

    def step(batch: int) -> None:
        with torch.inference_mode():
            compiled(**batch_tensors(job, batch))

    step(0)
    return Prepared(step)


def finetune_compiled(job: Job) -> Prepared:
    """Compile a step's forward and backward pass; the first step, a warm-up, generates the code."""
    import torch

    from edgepeft.bench.workloads.models import finetune_pytorch

    prepared = finetune_pytorch(job, wrap=partial(torch.compile, dynamic=_is_ragged(job)))
    prepared.step(0)
    return prepared


def _is_ragged(job: Job) -> bool:
    return len({max(batch) for batch in job.batches}) > 1


def write(job: Job) -> Prepared:
    """Load the model in ``job.model``; its cache of keys and values is on, as by default."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(job.threads)
    return generating(AutoModelForSeq2SeqLM.from_pretrained(str(job.model)).eval(), job)


def export_onnx(folder: Path, out: Path) -> None:
    """Write ``out/model.onnx`` by ``torch.onnx.export``, what is left where optimum knows no such model.

    Its inputs are ids and mask, token types are all zero.
    """
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    model.config.use_cache = model.config.return_dict = False
    inputs = {name: torch.ones(_ROWS, _TOKENS, dtype=torch.int64) for name in ("input_ids", "attention_mask")}
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    out.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        model,
        kwargs=inputs,
        f=str(out / "model.onnx"),
        dynamo=True,
        dynamic_shapes=dict.fromkeys(inputs, axes),
        output_names=["last_hidden_state"],
        external_data=True,
        verbose=False,
    )
