"""One task as one plain model, in the layout that optimum loads: nothing of edgepeft is needed to run it.

A task that writes text is two graphs over one file of weights: ``edgepeft.runtime.merge_text``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import onnx
from onnx.external_data_helper import load_external_data_for_model
from tokenizers import Tokenizer

from edgepeft.backbones.config import read_config
from edgepeft.errors import UsageError
from edgepeft.graph.names import LOGITS
from edgepeft.graph.rows import logits_as_rows
from edgepeft.resources import new_folder, write_json
from edgepeft.runtime.bundle import Bundle, expect_hash
from edgepeft.runtime.manifest import TaskEntry, Verification
from edgepeft.runtime.merge_text import write_text_model
from edgepeft.runtime.session import failing_as, plain_session, run_session
from edgepeft.runtime.verify import read_check, replay, require_passed
from edgepeft.runtime.versions import CHECK

__all__ = ["MODEL_FILE", "merge_task"]

MODEL_FILE = "model.onnx"
_TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json")
_MOST_INLINE = 1_900_000_000  # protobuf ends at 2 GiB; above, the weights lie beside the graph


def merge_task(bundle: Bundle, task: str, out: Path, *, force: bool = False) -> Verification:
    """Write ``model.onnx`` with all weights in it, the config with the task's labels, and the tokenizer.

    Inputs are the backbone's, ``logits`` [batch, outputs], or [batch, length, outputs], the only output.  The
    task's check file is replayed on the file that was written.  A task that writes text: as ``write_text_model``.

    Raises:
        UnknownName: no such task.
        UsageError: ``out`` exists, and ``force`` is not given; or such a kind of task is no model of transformers'.
        BundleError: a file is damaged.
        VerificationFailed: the written model does not give PyTorch's logits; nothing is left.
    """
    entry, config = bundle.entry(task), read_config(bundle.folder / "config.json")
    if (obstacle := entry.task_kind.unmerged) is not None:
        raise UsageError(f"task {task} is {entry.task_kind.title}, which cannot be merged: {obstacle}.")
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
    model = logits_as_rows(bundle.graph(task))
    load_external_data_for_model(model, str(bundle.folder))
    inline = sum(len(tensor.raw_data) for tensor in model.graph.initializer) < _MOST_INLINE
    onnx.save_model(model, folder / MODEL_FILE, save_as_external_data=not inline, location=f"{MODEL_FILE}_data")
    return _verified(bundle, task, folder / MODEL_FILE)


def _config(config: dict[str, Any], entry: TaskEntry) -> dict[str, Any]:
    """The backbone's config as that of a model for the task's kind."""
    labels = entry.labels or ("LABEL_0",)
    classes = {name: re.sub(r"(Model|For[A-Z]\w*)$", "", name) for name in config.get("architectures") or ()}
    return {
        **config,
        "architectures": [f"{name}{entry.task_kind.model}" for name in classes.values()],
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        "problem_type": entry.task_kind.problem_type,
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
    expect_hash(where, bundle.entry(task).check_sha256)
    inputs, reference = read_check(where.read_bytes(), str(where))
    with failing_as("cannot open the merged model"):
        session = plain_session(path)
    compare = bundle.entry(task).task_kind.agreement
    return replay(lambda group: run_session(session, LOGITS, group), inputs, reference, bundle.allowed(task), compare)
