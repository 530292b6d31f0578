"""Inference of a LoRA task as PEFT users have it: their adapter on transformers' model, not merged."""

from __future__ import annotations

from edgepeft.bench.planning.job import Job, Prepared


def prepare(job: Job) -> Prepared:
    """Attach a fresh LoRA adapter of ``settings``; a step is one forward pass and a linear head."""
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
