"""CTranslate2's encoder of BERT and RoBERTa, to hidden states: ``settings["compute_type"]`` float32 or int8."""

from __future__ import annotations

from pathlib import Path

from bench.peers import text_ctranslate2
from edgepeft.bench.planning.job import Job, Prepared

MODULE = "ctranslate2"
RESULT = "model.bin"


def export(folder: Path, out: Path) -> None:
    """Convert the checkpoint, in float32; 8 bits are made of it when it is loaded."""
    text_ctranslate2.export(folder, out)


def prepare(job: Job) -> Prepared:
    """Load the model for one stream of ``job.threads`` threads."""
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(Path(str(job.model)).parent),
        compute_type=job.settings["compute_type"],
        inter_threads=1,
        intra_threads=job.threads,
    )

    def step(batch: int) -> None:
        values = job.batch(batch)
        pairs = zip(values["input_ids"], values["attention_mask"], strict=True)
        encoder.forward_batch([ids[mask == 1].tolist() for ids, mask in pairs])

    return Prepared(step)
