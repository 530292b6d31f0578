"""One task as one plain model, in the layout that optimum loads: nothing of edgepeft is needed to run it.

A task that writes text is two graphs over one file of weights: ``edgepeft.deploy.merge_text``.
"""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper
from tokenizers import Tokenizer

from edgepeft.backbones import emit
from edgepeft.backbones.config import read_config
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.files import expect_hash
from edgepeft.bundle.manifest import TaskEntry, Verification
from edgepeft.bundle.versions import CHECK
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.deploy.merge_forms import form_of
from edgepeft.deploy.merge_text import write_text_model
from edgepeft.deploy.verify import read_check, replay, require_passed
from edgepeft.graph.external_data import outside, outside_values, store_outside, within
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.session import failing_as, plain_session

__all__ = ["MODEL_FILE", "merge_task"]

MODEL_FILE = "model.onnx"
_TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json")


def merge_task(bundle: Bundle, task: str, out: Path, *, force: bool = False) -> Verification:
    """Write ``model.onnx`` with all weights in it, the config with the task's labels, and the tokenizer.

    Weights that are more than a protobuf can hold are in ``model.onnx_data`` beside it.

    Inputs and outputs are those of transformers' class for the kind of task: ``logits`` alone, but for what
    ``merge_forms`` has.  The task's check file is replayed on the file that was written.  A task that writes text: as
    ``write_text_model``.

    Raises:
        UnknownName: no such task.
        UsageError: ``out`` exists, and ``force`` is not given.
        BundleError: a file is damaged.
        VerificationFailed: the written model does not give PyTorch's logits; nothing is left.
    """
    entry, config = bundle.entry(task), read_config(bundle.folder / "config.json")
    with new_folder(out, force=force) as folder:
        write_json(folder / "config.json", config if entry.writes else _config(config, entry))
        write_json(folder / "tokenizer_config.json", _tokenizer_config(bundle, entry))
        for name in _TOKENIZER_FILES:
            if (bundle.folder / name).is_file():
                shutil.copyfile(bundle.folder / name, folder / name)
        result = (write_text_model if entry.writes else _write_model)(bundle, task, folder)
        require_passed(task, result)
    return result


def _write_model(bundle: Bundle, task: str, folder: Path) -> Verification:
    entry = bundle.entry(task)
    form = form_of(entry)
    model = form.graph(bundle, task)
    for name, content in form.notes(entry, bundle.architecture.hidden_size).items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_json(folder / name, content)
    tensors = [*outside(model.graph)]
    values = outside_values(model, tensors, bundle.checkpoint)
    if sum(map(_n_bytes, model.graph.initializer)) >= emit.MOST_INLINE_BYTES:
        store_outside(tensors, values, folder / f"{MODEL_FILE}_data")
    else:
        within(model, values)
    (folder / MODEL_FILE).write_bytes(model.SerializeToString())
    return _verified(bundle, task, folder / MODEL_FILE)


def _n_bytes(tensor: onnx.TensorProto) -> int:
    n_bytes: int = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * math.prod(tensor.dims)
    return n_bytes


def _config(config: dict[str, Any], entry: TaskEntry) -> dict[str, Any]:
    """The backbone's config as that of a model for the task's kind."""
    kind = entry.task_kind
    labels = entry.labels or [f"LABEL_{i}" for i in range(0 if kind.gives_vectors else entry.n_outputs)]
    classes = {name: re.sub(r"(Model|For[A-Z]\w*)$", "", name) for name in config.get("architectures") or ()}
    named, numbers = {str(i): label for i, label in enumerate(labels)}, {label: i for i, label in enumerate(labels)}
    return {
        **config,
        "architectures": [f"{name}{kind.model}" for name in classes.values()],
        **({"id2label": named, "label2id": numbers} if labels else {}),
        "problem_type": kind.problem_type,
    }


def _tokenizer_config(bundle: Bundle, entry: TaskEntry) -> dict[str, Any]:
    """The tokenizer's, with the length that the task was trained with: ``truncation=True`` then cuts there."""
    path = bundle.folder / "tokenizer_config.json"
    if path.is_file():
        known = read_config(path)
    else:  # what transformers needs beside a tokenizer.json that came alone
        pad = Tokenizer.from_file(str(bundle.folder / "tokenizer.json")).id_to_token(bundle.architecture.pad_token_id)
        known = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad}
    return {**known, "model_max_length": entry.max_length}


def _verified(bundle: Bundle, task: str, path: Path) -> Verification:
    """Replay the task's check file on the written file, opened by its path alone as users will."""
    where = bundle.current(task, CHECK)
    entry = bundle.entry(task)
    expect_hash(where, entry.check_sha256)
    inputs, reference = read_check(where.read_bytes(), str(where))
    with failing_as("cannot open the merged model"):
        session = plain_session(path)
    form, names = form_of(entry), [output.name for output in session.get_outputs()]

    def run(rows: Inputs) -> NDArray[np.float32]:
        given = form.inputs(rows)
        with failing_as("stops in the merged model"):
            found = session.run(names, {value.name: given[value.name] for value in session.get_inputs()})
        logits: NDArray[np.float32] = form.logits(dict(zip(names, found, strict=True)), rows, entry)
        return logits

    return replay(run, inputs, reference, bundle.allowed(task), entry.task_kind.agreement)
