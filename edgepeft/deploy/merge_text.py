"""A task that writes text as optimum's ``ORTModelForSeq2SeqLM`` loads it: two graphs over one copy of the weights."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.backbones.text import LOGITS
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.files import expect_hash
from edgepeft.bundle.manifest import Verification
from edgepeft.bundle.versions import CHECK, WEIGHTS
from edgepeft.common.atomic import write_json
from edgepeft.deploy.text_check import TextCheck
from edgepeft.graph.external_data import store_outside
from edgepeft.graph.seq2seq import optimum_decoder, optimum_encoder
from edgepeft.runtime.decoding import GREEDY
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.session import failing_as, plain_session

__all__ = ["DECODER_FILE", "ENCODER_FILE", "write_text_model"]

ENCODER_FILE, DECODER_FILE = "encoder_model.onnx", "decoder_model_merged.onnx"


def write_text_model(bundle: Bundle, task: str, folder: Path) -> Verification:
    """Write the two graphs, the unchanged weights file that both read, and ``generation_config.json``.

    The task's tensors are in ``<task>.weights.safetensors`` where they are more than a protobuf can hold.

    Greedy decoding is the default there, of as many tokens as ``Runtime.write`` takes.  The task's check file is
    replayed on the files that were written.

    Raises:
        BundleError: a file is damaged; ONNX Runtime does not open what was written.
    """
    encoder, decoder = bundle.text_graphs_of(task)
    architecture, width = bundle.architecture, bundle.architecture.hidden_size
    shutil.copyfile(bundle.weights, folder / bundle.weights.name)
    if own := [*bundle.tensors_outside(encoder), *bundle.tensors_outside(decoder)]:
        known = {tensor.name for tensor in bundle.tensors_outside(encoder)}  # both read the table of words
        further = (pair for pair in bundle.outside(decoder) if pair[0] not in known)
        store_outside(own, chain(bundle.outside(encoder), further), folder / f"{task}{WEIGHTS}")
    onnx.save_model(optimum_encoder(encoder, width), folder / ENCODER_FILE)
    onnx.save_model(optimum_decoder(encoder, decoder, width), folder / DECODER_FILE)
    assert architecture.decoder is not None, "it has a graph"
    start, end = architecture.decoder.start_token_id, architecture.decoder.end_token_id
    tokens = {"decoder_start_token_id": start, "eos_token_id": end, "pad_token_id": architecture.pad_token_id}
    manner = {"max_new_tokens": GREEDY.max_new_tokens, "num_beams": 1, "do_sample": False}
    write_json(folder / "generation_config.json", {**tokens, **manner})
    where = bundle.current(task, CHECK)
    expect_hash(where, bundle.entry(task).check_sha256)
    check = TextCheck.read(where.read_bytes(), str(where), architecture.vocab_size)
    with failing_as("cannot open the merged model"):
        first, then = (plain_session(folder / name) for name in (ENCODER_FILE, DECODER_FILE))
    return check.compare(lambda inputs: _State(first, then, inputs), start, bundle.allowed(task))


class _State:
    """What optimum keeps of a batch between two steps."""

    def __init__(self, encoder: ort.InferenceSession, decoder: ort.InferenceSession, inputs: Inputs) -> None:
        self._decoder, self._mask = decoder, inputs["attention_mask"]
        given = {value.name: inputs[value.name] for value in encoder.get_inputs()}
        with failing_as(f"stops in the merged encoder, with rows of {self._mask.shape[1]} tokens"):
            self._hidden = encoder.run(["last_hidden_state"], given)[0]
        caches = [value for value in decoder.get_inputs() if value.name.startswith("past_key_values.")]
        none = {value.name: np.zeros((len(self._mask), value.shape[1], 0, 1), np.float32) for value in caches}
        self._past: dict[str, NDArray[np.float32]] = none
        self._begun = False

    def step(self, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [N, v] of the tokens that follow."""
        given: dict[str, NDArray[Any]] = {name: values[order] for name, values in self._past.items()}
        given |= {"input_ids": ids[:, None], "encoder_hidden_states": self._hidden[order]}
        given |= {"encoder_attention_mask": self._mask[order], "use_cache_branch": np.array([self._begun])}
        made = [name.replace("past_key_values", "present") for name in self._past]
        with failing_as(f"stops in the merged decoder, with {len(ids)} texts"):
            logits, *present = self._decoder.run([LOGITS, *made], given)
        self._past, self._begun = dict(zip(self._past, present, strict=True)), True
        found: NDArray[np.float32] = logits[:, 0]
        return found
