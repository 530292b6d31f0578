"""Text by OpenVINO, as optimum-intel exports and runs it, in float32 as ours is."""

from __future__ import annotations

from pathlib import Path

from bench.peers._writing import generating
from bench.peers.openvino import settings
from edgepeft.bench.planning.job import Job, Prepared

MODULE = "optimum.intel.openvino"
RESULT = "openvino_decoder_model.xml"


def export(folder: Path, out: Path) -> None:
    """Write the encoder and the decoder, which keeps its cache."""
    from optimum.intel.openvino import OVModelForSeq2SeqLM

    model = OVModelForSeq2SeqLM.from_pretrained(folder, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(out)


def prepare(job: Job) -> Prepared:
    """Compile both for the processor."""
    from optimum.intel.openvino import OVModelForSeq2SeqLM

    model = OVModelForSeq2SeqLM.from_pretrained(Path(str(job.model)).parent, ov_config=settings(job))
    return generating(model, job)
