"""The backbone of a bundle: graphs, weights, tokenizer, config, and a manifest without tasks.

Activations of 8-bit products have fixed steps, which are measured here (SmoothQuant).  Channel c of what projections
read, x [T, in], is multiplied by v[c] before it is rounded, and their matrices' column c is divided by it (Xiao et al.,
2022, arXiv:2211.10438, eq. 3 and 4), so that one step of 1 serves every token:

    r[c] = max |x[:, c]|^a / max |W[:, c]|^(1 - a)        v[c] = 127 / (r[c] room max over k of (max |x[:, k]| / r[k]))

Texts of random words show each channel's range as well as real ones do: logits of linear heads on MiniLM and MPNet are
then off by less than with a step for each token.  A backbone whose products are off by more keeps a step for each row
(random weights: no channel stands out).

What attention gives lies between its values, so one v for all channels does: hidden states are off by 3 to 9 % more
than with a step for each token (MiniLM, MPNet), and a text takes 2 to 7 % less time (MiniLM).  A task that changes what
attention reads or gives has a step for each row there (``graph.quantise.free_steps``).  So have all products past
activations, whose rows differ too much: fixed steps would have logits off by 1.5 to 1.9 times as much.
"""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import save_file

from edgepeft import __version__
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.emit import BUNDLE_FILES, WEIGHTS_FILE, WEIGHTS_FILES
from edgepeft.backbones.packing import MERGED
from edgepeft.backbones.source import Backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import BACKBONE_FILE, DECODER_FILE, ENCODER_FILE
from edgepeft.bundle.manifest import BackboneEntry, Hashes, Manifest, TextHashes, WeightsDtype
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import sha256_of
from edgepeft.graph.protos import copied, floats, match_chain, replace, writers
from edgepeft.graph.quantise import projections, quantise, quantised_tensors
from edgepeft.graph.validate import check_standard
from edgepeft.runtime.session import open_session

_A = 0.75  # as the paper has it where activations stand out most
_ROOM = 1.5  # for what the texts do not show, and for tasks that move activations
_WORST = 1.1  # the error of products by fixed steps over that by a step a row, their geometric mean
_WORST_ATTENDED = 0.1  # that of a product past attention over half the tokens' root mean square, or more
_COMPARED = 256  # rows
_LENGTHS = (1, 4, 16, 40, 40, 40, 40, 120)  # in tokens
_TEXTS_EACH = 4


def write_backbone(backbone: Backbone, folder: Path, weights: WeightsDtype = "fp32") -> Manifest:
    """Graph, weights, tokenizer and config of a backbone, and a manifest without tasks."""
    if not (backbone.folder / "tokenizer.json").is_file():
        raise BundleError(f"{backbone.folder} has no tokenizer.json, and no vocabulary to make one of.")
    graphs = {BACKBONE_FILE: backbone.architecture.graph(backbone.checkpoint)}
    text = backbone.architecture.text_graphs(backbone.checkpoint)
    graphs |= {ENCODER_FILE: text.encoder, DECODER_FILE: text.decoder} if text else {}
    sha256 = write_weights([*graphs.values()], backbone, folder, weights)
    for name, graph in graphs.items():
        (folder / name).write_bytes(graph.SerializeToString(deterministic=True))
        check_standard(graph)
    files = {}
    for name in BUNDLE_FILES:
        if (backbone.folder / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(backbone.folder / name, folder / name)
            files[name] = sha256_of(folder / name)
    sha256_of_graph = {name: sha256_of(folder / name) for name in graphs}
    manifest = Manifest(
        backbone=BackboneEntry(
            family=backbone.architecture.family,
            model_type=backbone.architecture.model_type,
            source=backbone.source,
            sha256=Hashes(graph=sha256_of_graph[BACKBONE_FILE], weights=sha256),
            weights_dtype=weights,
            checkpoint_sha256=None if weights == "fp32" else backbone.sha256,
            sites=backbone.architecture.bindings,
            text=TextHashes(encoder=sha256_of_graph[ENCODER_FILE], decoder=sha256_of_graph[DECODER_FILE])
            if text
            else None,
        ),
        files=files,
        versions={
            "edgepeft": __version__,
            **{name: metadata.version(name) for name in ("torch", "transformers", "onnx", "onnxruntime")},
        },
    )
    manifest.write(folder)
    return manifest


def write_weights(graphs: Sequence[onnx.ModelProto], backbone: Backbone, folder: Path, dtype: WeightsDtype) -> str:
    """The weights file, whose SHA-256 is returned; ``graphs``, the backbone's own first, are changed to read it."""
    if dtype == "fp32":
        shutil.copyfile(backbone.weights, folder / WEIGHTS_FILE)
        return backbone.sha256
    decoder, decoder_only = backbone.architecture.decoder, backbone.architecture.decoder_only
    factors = {} if decoder or dtype == "int4" else column_factors(graphs[0], backbone)
    graph, *others = (each.graph for each in graphs)
    tensors = quantised_tensors(
        graph, backbone.checkpoint, factors, others=others, four_bits=dtype == "int4", groups=decoder_only
    )
    for name in backbone.architecture.pooler:  # no part of the graph, but read by heads
        if backbone.checkpoint.has(name):
            tensors[backbone.checkpoint.stored_name(name)] = backbone.checkpoint.read(name)
    path = folder / WEIGHTS_FILES[dtype]
    save_file(tensors, path, metadata={"format": f"edgepeft.{dtype}/1"})
    for graph in graphs:
        quantise(graph, Checkpoint.open(path))
    return sha256_of(path)


def column_factors(model: onnx.ModelProto, backbone: Backbone) -> dict[str, NDArray[np.float32]]:
    """v by the matrix's name, [in] behind a norm and [1] behind attention, the same for all that read one value; none
    for those that keep a step a row."""
    writer = writers(model.graph)
    readers = defaultdict[str, tuple[str, ...]](tuple)
    for node in projections(model.graph):
        readers[node.input[0]] += (node.input[1],)
    normed = {x for x in readers if match_chain(x, writer, "LayerNormalization")}
    values = _values(model, backbone, [x for x in readers if x in normed or match_chain(x, writer, *MERGED)])
    behind_norms: dict[str, NDArray[np.float32]] = {}
    behind_attention: dict[str, NDArray[np.float32]] = {}
    errors = []
    for matrices in dict.fromkeys(readers.values()):
        # Several where layers share their weights.
        sources = [x for x, read in readers.items() if not set(read).isdisjoint(matrices)]
        if any(readers[x] != matrices or x not in values for x in sources):
            continue
        rows = np.concatenate([values[x] for x in sources])
        weights: NDArray[np.float32] = np.concatenate([backbone.checkpoint.values(name) for name in matrices])
        if normed.isdisjoint(sources):
            factors = _few_bits(127 / (_ROOM * np.maximum(np.abs(rows).max(keepdims=True)[0], 1e-5)))
            far = _WORST_ATTENDED * np.median(np.sqrt(np.square(rows @ weights.T).mean(axis=1)))
            if _error(rows * factors, weights / factors, np.ones((len(rows), 1), np.float32)) <= far:
                behind_attention |= dict.fromkeys(matrices, factors)
            continue
        largest = np.maximum(np.abs(rows).max(axis=0), 1e-5)
        ranges = largest**_A / np.maximum(np.abs(weights).max(axis=0), 1e-5) ** (1 - _A)
        factors = _few_bits(127 / (ranges * _ROOM * (largest / ranges).max()))
        own_steps = (np.abs(rows).max(axis=1, keepdims=True) / 127).astype(np.float32)
        fixed = _error(rows * factors, weights / factors, np.ones_like(own_steps))
        errors.append(fixed / max(_error(rows, weights, own_steps), 1e-30))
        behind_norms |= dict.fromkeys(matrices, factors)
    found = behind_norms | behind_attention
    return found if behind_norms and np.exp(np.log(errors).mean()) <= _WORST else {}


def _few_bits(factors: NDArray[np.float32]) -> NDArray[np.float32]:
    """So that processors whose sums differ in the last one write the same file."""
    mantissa, exponent = np.frexp(factors)
    return np.ldexp(np.round(mantissa * 256) / 256, exponent).astype(np.float32)


def _error(rows: NDArray[np.float32], weights: NDArray[np.float32], steps: NDArray[np.float32]) -> float:
    """Root of the mean squared error of some rows' products in 8 bits; ``steps`` [T, 1]."""
    every = -(-len(rows) // _COMPARED)
    some, steps = rows[::every], np.maximum(steps[::every], np.float32(1e-30))
    scale = np.maximum(np.abs(weights).max(axis=1, keepdims=True) / np.float32(127), np.float32(1e-30))
    product = (np.rint(some / steps) * steps) @ (np.rint(weights / scale) * scale).T
    return float(np.sqrt(np.square(product - some @ weights.T).mean()))


def _values(model: onnx.ModelProto, backbone: Backbone, names: list[str]) -> dict[str, NDArray[np.float32]]:
    """The named values, [T, in], of texts of random words."""
    probe = copied(model)
    replace(probe.graph.output, [floats(name, None) for name in names])
    session = open_session(probe, backbone.folder)
    source, encoder, runs = np.random.default_rng(0), backbone.encoder(), []
    for length in _LENGTHS * _TEXTS_EACH:
        text = encoder.decode(source.integers(backbone.architecture.vocab_size, size=length).tolist())
        inputs = encoder.encode([Text(text)], min(128, backbone.architecture.max_length)).inputs
        runs.append(session.run(names, inputs))
    return {name: np.concatenate(parts) for name, parts in zip(names, zip(*runs, strict=True), strict=True)}
