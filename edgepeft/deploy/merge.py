"""One task as one plain model, in the layout that optimum loads: nothing of edgepeft is needed to run it.

Its outputs are those of transformers' class for the kind of task.  One that writes text is two graphs over one copy of
the weights, as ``ORTModelForSeq2SeqLM`` loads them; of a decoder one, as ``ORTModelForCausalLM`` does.
"""

import re
import shutil
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from edgepeft.backbones import emit
from edgepeft.backbones.config import read_config
from edgepeft.backbones.sentence_files import write_pooling
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import TaskEntry, Verification
from edgepeft.common.atomic import new_folder, write_json
from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import WEIGHTS
from edgepeft.deploy.verify import TextCheck, read_check, replay, require_passed, widen_tolerance
from edgepeft.graph.external_data import external_values, load_external, store_external
from edgepeft.graph.names import END, LOGITS, START, STATES
from edgepeft.graph.optimum import INPUT_IDS, MASK, PLACES, optimum_causal, optimum_decoder, optimum_encoder
from edgepeft.graph.protos import external_tensors
from edgepeft.graph.shapes import Spec
from edgepeft.graph.splice import splice_states
from edgepeft.graph.standalone import as_choices, as_starts_and_ends, fold_linear, logits_as_rows, own_states
from edgepeft.runtime.decoding import GREEDY
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.session import failing_as, plain_session

_MODEL_FILE = "model.onnx"
_ENCODER_FILE, _DECODER_FILE = "encoder_model.onnx", "decoder_model_merged.onnx"
_TOKENIZER_FILES = ("tokenizer.json", "special_tokens_map.json")
Values = NDArray[Any]


def merge_task(
    bundle: Bundle, task: str, out: Path, *, force: bool = False, accept_error: bool = False
) -> Verification:
    """Write ``model.onnx`` with all weights in it, or beside it if a protobuf cannot hold them, config and tokenizer.

    Inputs and outputs are those of transformers' class for the kind of task: ``logits`` alone, but for what
    ``_FORMS`` has, and ``_write_text_model`` for text.  The task's check file is replayed on what was written, whose
    8-bit products round in other groups than the bundle's: ``accept_error`` takes it however far that moves it.
    """
    entry, config = bundle.entry(task), read_config(bundle.folder / "config.json")
    with new_folder(out, force=force, read=[bundle.folder]) as folder:
        write_json(folder / "config.json", config if entry.writes else _config(config, entry))
        if (path := bundle.folder / "tokenizer_config.json").is_file():
            known = read_config(path)
        else:  # what transformers needs beside a tokenizer.json that came alone
            words = Tokenizer.from_file(str(bundle.folder / "tokenizer.json"))
            pad = words.id_to_token(bundle.architecture.pad_token_id)
            known = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad}
        # ``truncation=True`` then cuts where the task was trained to.
        write_json(folder / "tokenizer_config.json", {**known, "model_max_length": entry.max_length})
        for name in _TOKENIZER_FILES:
            if (bundle.folder / name).is_file():
                shutil.copyfile(bundle.folder / name, folder / name)
        result = (_write_text_model if entry.writes else _write_model)(bundle, task, folder)
        result = widen_tolerance(result) if accept_error else result
        require_passed(task, result)
    return result


def _write_model(bundle: Bundle, task: str, folder: Path) -> Verification:
    """Write the model, and replay the task's check on the file, opened by its path alone as users will."""
    entry = bundle.entry(task)
    form = _FORMS.get(entry.task_kind.model, _Form())
    model = form.graph(bundle, task)
    if entry.task_kind.gives_vectors:
        write_pooling(folder, entry.pooling, bundle.architecture.hidden_size)
    session = _opened(_stored(bundle, model, folder))
    names = [output.name for output in session.get_outputs()]

    def run(rows: Inputs) -> NDArray[np.float32]:
        given = form.inputs(rows)
        with failing_as("stops in the merged model"):
            found = session.run(names, {value.name: given[value.name] for value in session.get_inputs()})
        logits: NDArray[np.float32] = form.logits(dict(zip(names, found, strict=True)), rows, entry)
        return logits

    return replay(run, *read_check(*bundle.check(task)), bundle.allowed(task), entry.task_kind.agreement)


def _opened(path: Path) -> ort.InferenceSession:
    with failing_as("cannot open the merged model"):
        return plain_session(path)


def _stored(bundle: Bundle, model: onnx.ModelProto, folder: Path) -> Path:
    """The file that has the model, with its weights in it or beside it."""
    tensors, path = [*external_tensors(model.graph)], folder / _MODEL_FILE
    values = external_values(model, tensors, bundle.checkpoint)
    sizes = (Spec(tensor.data_type, tuple(tensor.dims)).n_bytes for tensor in model.graph.initializer)
    if sum(sizes) >= emit.MAX_INLINE_BYTES:
        store_external(tensors, values, folder / f"{_MODEL_FILE}_data")
    else:
        load_external(model, values)
        fold_linear(model)
    path.write_bytes(model.SerializeToString())
    return path


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


class _Form:
    """``logits`` [batch, outputs], or [batch, length, outputs] of tokens, as the task's own graph gives them."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        """The model; weights stay in their file."""
        return logits_as_rows(bundle.graph(task))

    def inputs(self, rows: Inputs) -> Inputs:
        """Token rows [batch, length] as the model takes them."""
        return rows

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        """Make of the model's outputs what the check holds."""
        return outputs[LOGITS]


class _Answers(_Form):
    """``start_logits`` and ``end_logits``, less the threshold of no answer at the first token's start."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        return as_starts_and_ends(super().graph(bundle, task), _threshold(bundle.entry(task)))

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        both = np.stack([outputs[START], outputs[END]], -1)
        both[:, 0, 0] += np.float32(_threshold(entry))
        return both


class _Choices(_Form):
    """``logits`` [batch, choices] of token rows [batch, choices, length]."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        return as_choices(super().graph(bundle, task))

    def inputs(self, rows: Inputs) -> Inputs:
        """One choice a row."""
        return {name: values[:, None] for name, values in rows.items()}


class _States(_Form):
    """``last_hidden_state`` [batch, length, d]; ``1_Pooling/config.json`` says how a text's vector is made of it."""

    def graph(self, bundle: Bundle, task: str) -> onnx.ModelProto:
        sites = bundle.manifest.backbone.sites
        return own_states(splice_states(bundle.backbone_graph, bundle.delta_graph(task), sites, bundle.checkpoint))

    def logits(self, outputs: Mapping[str, Values], rows: Inputs, entry: TaskEntry) -> Values:
        """Pooled, and of length 1."""
        states, real = outputs[STATES], (rows["attention_mask"] != 0)[..., None].astype(np.float32)
        pooled = entry.pooling.of_arrays(states, real)
        unit: Values = pooled / np.sqrt((pooled * pooled).sum(1, keepdims=True) + np.float32(1e-24))
        return unit


def _threshold(entry: TaskEntry) -> float:
    return float(entry.chosen.get("threshold", 0.0))


# By the end of the name of the class that transformers has for a kind of task.
_FORMS: Mapping[str, _Form] = {"ForQuestionAnswering": _Answers(), "ForMultipleChoice": _Choices(), "Model": _States()}


def _write_text_model(bundle: Bundle, task: str, folder: Path) -> Verification:
    """Write the two graphs, the unchanged weights file that both read, and ``generation_config.json``.

    The task's tensors are in ``<task>.weights.safetensors`` where they are more than a protobuf can hold.  Greedy
    decoding is the default there, of as many tokens as ``Runtime.write`` takes.
    """
    architecture, width = bundle.architecture, bundle.architecture.hidden_size
    assert architecture.decoder is not None, "it has a graph"
    manner = {"max_new_tokens": GREEDY.max_new_tokens, "num_beams": 1, "do_sample": False}
    tokens: dict[str, int | None] = {
        "eos_token_id": architecture.decoder.end_token_id,
        "pad_token_id": architecture.pad_token_id,
    }
    check = TextCheck.read(*bundle.check(task), architecture.vocab_size)
    if architecture.decoder_only:
        if n := bundle.prompt_length(task):
            raise UsageError(
                f"task {task} puts {n} places of its own in front of each text ({bundle.entry(task).method}), which "
                "users of such a model do not count. Give the trained delta to PEFT instead (edgepeft export "
                "--to-peft)."
            )
        write_json(folder / "generation_config.json", {**tokens, **manner})
        session = _opened(_stored(bundle, optimum_causal(bundle.text_graphs_of(task).decoder), folder))
        return check.replay(lambda rows: _CausalState(session, rows).step, architecture.decoder, bundle.allowed(task))
    tokens["decoder_start_token_id"] = architecture.decoder.start_token_id
    encoder, decoder = bundle.text_graphs_of(task)
    shutil.copyfile(bundle.weights, folder / bundle.weights.name)
    if own := [*bundle.external_tensors(encoder), *bundle.external_tensors(decoder)]:
        known = {tensor.name for tensor in bundle.external_tensors(encoder)}  # both read the table of words
        further = (pair for pair in bundle.external_data(decoder) if pair[0] not in known)
        store_external(own, chain(bundle.external_data(encoder), further), folder / f"{task}{WEIGHTS}")
    onnx.save_model(optimum_encoder(encoder, width), folder / _ENCODER_FILE)
    onnx.save_model(optimum_decoder(encoder, decoder, width), folder / _DECODER_FILE)
    write_json(folder / "generation_config.json", {**tokens, **manner})
    first, then = (_opened(folder / name) for name in (_ENCODER_FILE, _DECODER_FILE))
    return check.replay(lambda inputs: _State(first, then, inputs).step, architecture.decoder, bundle.allowed(task))


class _Steps:
    """A batch between two steps, as optimum keeps it: keys and values by their inputs' names, at first of no token."""

    def __init__(self, decoder: ort.InferenceSession, n_rows: int) -> None:
        self._decoder, self._past = decoder, dict[str, Values]()
        for value in decoder.get_inputs():
            if value.name.startswith("past_key_values."):
                _, heads, _, width = value.shape
                width = width if isinstance(width, int) else 1  # any will do: there is nothing in it
                self._past[value.name] = np.zeros((n_rows, heads, 0, width), np.float32)

    def logits(self, order: NDArray[np.int64], given: Inputs) -> NDArray[np.float32]:
        """[N, S, v] of the texts that go on in that order."""
        past = {name: values[order] for name, values in self._past.items()}
        made = [name.replace("past_key_values", "present") for name in past]
        with failing_as(f"stops in the merged decoder, with {len(order)} texts"):
            logits, *present = self._decoder.run([LOGITS, *made], {**past, **given})
        self._past = dict(zip(past, present, strict=True))
        found: NDArray[np.float32] = logits
        return found


class _State(_Steps):
    """Of an encoder and a decoder."""

    def __init__(self, encoder: ort.InferenceSession, decoder: ort.InferenceSession, inputs: Inputs) -> None:
        self._mask, self._begun = inputs["attention_mask"], False
        super().__init__(decoder, len(self._mask))
        given = {value.name: inputs[value.name] for value in encoder.get_inputs()}
        with failing_as(f"stops in the merged encoder, with rows of {self._mask.shape[1]} tokens"):
            self._hidden = encoder.run(["last_hidden_state"], given)[0]

    def step(self, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [N, v] of the tokens that follow."""
        given: dict[str, Values] = {INPUT_IDS: ids[:, None], "encoder_hidden_states": self._hidden[order]}
        given |= {"encoder_attention_mask": self._mask[order], "use_cache_branch": np.array([self._begun])}
        self._begun = True
        return self.logits(order, given)[:, 0]


class _CausalState(_Steps):
    """Of a decoder alone: rows that end together."""

    def __init__(self, decoder: ort.InferenceSession, inputs: Inputs) -> None:
        real = inputs[MASK] != 0
        super().__init__(decoder, len(real))
        places = np.argsort(real, axis=1, kind="stable")
        self._unread: NDArray[np.int64] | None = np.take_along_axis(inputs[INPUT_IDS], places, 1)
        self._mask = np.take_along_axis(real, places, 1).astype(np.int64)

    def step(self, ids: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [N, v] of the tokens that follow."""
        if self._unread is None:
            read, self._mask = ids[:, None], np.pad(self._mask[order], ((0, 0), (0, 1)), constant_values=1)
        else:
            read, self._unread = self._unread, None  # whose last tokens are ``ids``
        places = np.maximum(self._mask.cumsum(1) - 1, 0)[:, -read.shape[1] :]
        return self.logits(order, {INPUT_IDS: read, MASK: self._mask, PLACES: places})[:, -1]
