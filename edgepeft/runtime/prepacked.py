"""The backbone's weights in the layout of this processor's kernels, in one file that all sessions of all processes map.

ONNX Runtime copies every matrix into its kernels' layout when a session opens, a private copy each time.  It can
also write these copies beside the weights (``session.save_external_prepacked_constant_initializers``), and a
graph that names such a file maps them.  The file is made once, from the bare backbone with every optimisation
off, so its initializers keep the names of ``backbone.onnx``: a task is spliced as ever, and then its
initializers point into this file instead of the bundle's.  It belongs to one processor, one build of
ONNX Runtime and one set of weights: a cache, never part of a bundle.

A process that maps the file reads it once before, unless another one did and all of it is in memory since, and compares
it with the checksum of what was written: a copy that a disk or a memory card has altered is made again.
"""

import contextlib
import errno
import hashlib
import json
import mmap
import os
import platform
import shutil
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from edgepeft.backbones.base import Role
from edgepeft.backbones.emit import external_tensor
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.store import Held, Store
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.common.resources import cache_folder, whole, write_checksums
from edgepeft.device.machine import cpu_model, isa_flags, saturates_in_8_bits
from edgepeft.graph.joined_row import FOR_ATTENTION, add_joined, join_attention
from edgepeft.graph.names import grouped_name, names_in
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import ancestors, copied, external_tensors, floats, place_of, writers
from edgepeft.runtime.session import drop_pages, open_session, session_options

CACHE_LIMIT = "EDGEPEFT_CACHE_GIB"
_DEFAULT_GIB = 8.0  # ten models of roberta-base's size
_FORMAT = 11
_PACKED_FILE = "prepacked.bin"
_PLACES_FILE = "entry.json"  # where each tensor lies in the packed one, as ONNX has external data
_SEEN_FILE = "seen.json"
_TRIED_FILE = "tried.json"  # how quick the forms of a graph were here
_MAX_SEEN = 64
# Smaller tensors stay in the graph, where folding and fusing see them; as external data they would not be seen.
_MIN_EXTERNAL_BYTES = 1024
_ALIGNED = 64  # bytes, of a line of the cache: the widest vector
_HUGE_PAGE = 2 << 20  # bytes, of Linux on x86-64, and on ARM64 with pages of 4 KiB
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14: reads pages as an access would, and fails where that would kill
_TRIAL_TOKENS, _TRIAL_S = 16, 0.5
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 100
_CLEARLY = 0.97  # a form of this share of the other's time is quicker beyond a host's noise
# ONNX Runtime looks packed copies up by their operator's type: integer products are fused before they are packed.
_FUSED = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
# What it computes beforehand would lie in the file too, in any size: a T5's table of distances has an odd one.
_FOLDING = ["ConstantFolding"]


Places = Mapping[str, Mapping[str, str]]


class Prepacked:
    """A held cache entry; graphs are placed on it."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.folder = held.folder
        self.tensors: Places = json.loads((held.folder / _PLACES_FILE).read_bytes())
        self.one_row: bool = json.loads((held.folder / _TRIED_FILE).read_bytes())["one_row"]

    def place(self, model: onnx.ModelProto, bundle: Bundle) -> None:
        """Point a graph's weights into the packed file, in place; tensors that it lacks are copied into the graph."""
        _place(model, bundle, self.tensors)

    def join(self, model: onnx.ModelProto, bundle: Bundle) -> None:
        """``join_attention``, where joined matrices are quicker here."""
        join_attention(model, partial(_known, bundle, self.tensors))

    def drop_scales(self) -> None:
        """Free the memory of what only opening a session reads: scales of groups, which packed copies have too."""
        places = [place for name, place in self.tensors.items() if name.endswith(":scale")]
        if parts := [(int(place["offset"]), int(place["length"])) for place in places]:
            drop_pages((self.folder / _PACKED_FILE).resolve(), parts)

    def seen(self) -> frozenset[str]:
        """Identities of files whose hash was checked before: they hold these weights."""
        try:
            return frozenset(json.loads((self.folder / _SEEN_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return frozenset()

    def remember(self, identities: frozenset[str]) -> None:
        """Keep such identities for the next process."""
        write_json(self.folder / _SEEN_FILE, [*sorted(self.seen() - identities), *sorted(identities)][-_MAX_SEEN:])

    def close(self) -> None:
        """Let the entry go; sessions that are open keep their mapping."""
        self._held.release()


def hold_prepacked(bundle: Bundle) -> Prepacked:
    """The bundle's entry in the user's cache, built first where there is none or no sound one."""
    limit = os.environ.get(CACHE_LIMIT, "") or str(_DEFAULT_GIB)
    try:
        limit_bytes = int(float(limit) * 2**30)
    except (ValueError, OverflowError):
        raise UsageError(f"{CACHE_LIMIT} is {limit!r}; a number of GiB was expected, such as 8.") from None
    store, key = Store(_root(), limit_bytes), prepacked_key(bundle)

    def build(folder: Path) -> None:
        if (store.root / key).exists():
            warnings.warn(
                f"the weights laid out for this processor, {store.root / key}, are not what was written there, and are "
                "made again. If this happens more than once, look at the disk or the memory card.",
                RuntimeWarning,
                stacklevel=2,
            )
        _build(bundle, folder)

    return Prepacked(store.hold(key, build, _read_whole))


def _read_whole(folder: Path) -> bool:
    """``whole``, which reads the file: packed copies in huge pages, where it does not lie in memory yet."""
    with (
        contextlib.suppress(OSError, ValueError, TypeError, AttributeError),
        (folder / _PACKED_FILE).open("rb") as file,
    ):
        tensors = json.loads((folder / _PLACES_FILE).read_bytes())
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            written = (text for where in tensors.values() for key, text in where.items() if key.startswith("prepacked"))
            for copy in (copy.split(";") for text in written for copy in text.split("|")[1:]):
                begin, end = int(copy[0]), int(copy[0]) + int(copy[1])
                for page in range(-(-begin // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE):
                    mapped.madvise(mmap.MADV_HUGEPAGE, page, _HUGE_PAGE)
                    mapped.madvise(_POPULATE_READ, page, mmap.PAGESIZE)
    return whole(folder)


def check_prepacked(bundle: Bundle) -> None:
    """See that the bundle's entry, where there is one, is what was written; else make it again, and raise."""
    folder = _root() / prepacked_key(bundle)
    if folder.exists() and not whole(folder):
        with warnings.catch_warnings(action="ignore"):
            hold_prepacked(bundle).close()
        raise VerificationFailed(
            f"the weights laid out for this processor, {folder}, were not what was written there: what was answered by "
            "them may be wrong. They are made again."
        )


def _root() -> Path:
    return cache_folder() / "prepacked"


def prepacked_key(bundle: Bundle) -> str:
    """The entry's name: everything that the file's bytes depend on."""
    facts = {
        "format": _FORMAT,
        "weights": bundle.manifest.backbone.sha256.weights,
        "graph": bundle.manifest.backbone.sha256.graph,
        "cpu": [platform.machine(), cpu_model(), *isa_flags()],
        "onnxruntime": [ort.__version__, ort.get_build_info()],
        "least_external_bytes": _MIN_EXTERNAL_BYTES,
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


def _build(bundle: Bundle, folder: Path) -> None:
    """Fill an entry's folder, and check that its session gives what one on the bundle's own file gives."""
    # Each tensor, and its packed copy, as written and as laid out; a quarter of them joined, and its packed copy.
    needed = int(5.2 * bundle.weights.stat().st_size)
    if shutil.disk_usage(folder).free < needed:  # ONNX Runtime reports no error when the disk is full
        raise OSError(errno.ENOSPC, f"{needed >> 20} MB are needed")
    model = _with_pooler(bundle)
    if bundle.architecture.decoder_only and bundle.manifest.backbone.text is not None:
        from edgepeft.graph.in_place import in_place
        from edgepeft.graph.joined import attention_matrices, join_products

        _with_output(model, bundle.text_graphs.decoder)
        if (lowered := in_place(bundle.text_graphs.decoder)) is not None:
            groups = [*attention_matrices(lowered.model.graph)]
            join_products(model.graph, groups, partial(_joined_tensor, bundle, {}))
    row, quantised = copied(bundle.backbone_graph), bundle.manifest.backbone.weights_dtype != "fp32"
    joined = list[str]()
    if not (quantised and saturates_in_8_bits()) and for_one_row(row):
        joined = add_joined(model, row, partial(_side_by_side, bundle))
    options, written = session_options(), folder / "backbone.onnx"
    options.graph_optimization_level = _FUSED if quantised else ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(written)
    for key, value in (
        ("optimized_model_external_initializers_file_name", _PACKED_FILE),
        ("optimized_model_external_initializers_min_size_in_bytes", str(_MIN_EXTERNAL_BYTES)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    expected = _answer(open_session(model, bundle.folder, options=options, without=_FOLDING))
    packed = folder / _PACKED_FILE
    packed.touch()  # nothing is written for a model whose tensors are all small
    graph = onnx.load(written, load_external_data=False).graph
    tensors = {tensor.name: place_of(tensor) for tensor in external_tensors(graph)}
    written.unlink()
    ends = [int(where["offset"]) + int(where["length"]) for where in tensors.values()]
    if packed.stat().st_size < max(ends, default=0):
        raise OSError(errno.EIO, "ONNX Runtime did not write the whole file")
    separate = {name: where for name, where in tensors.items() if name not in joined}
    without_joined, _ = _lay_out((separate, {name: tensors[name] for name in joined if name in tensors}), packed)
    _place(model, bundle, tensors)
    given = _answer(open_session(model, folder))
    for name, values in expected.items():  # packing changes nothing but the last digits, which fusing moves
        if not np.allclose(values, given[name], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise EdgepeftError(f"the prepacked weights give another {name} than the weights themselves.")
    tried = _tried(bundle, folder, {"packed": separate, "one_row": separate, "joined": tensors})
    if not tried["joined"]:
        os.truncate(packed, without_joined)
    write_json(folder / _PLACES_FILE, tensors if tried["joined"] else separate)
    write_json(folder / _TRIED_FILE, tried)
    write_checksums(folder)


def _tried(bundle: Bundle, folder: Path, forms: Mapping[str, Places]) -> dict[str, Any]:
    """Time a row alone on the bare backbone, by turns in three forms: packed, by ``for_one_row``, and with
    ``join_attention`` too.  Says whether the later forms are clearly quicker than the one before, and the times.

    The forms are those of ``_build`` and ``Runtime._session_of_one_row``.
    """
    sessions = {}
    for form, tensors in forms.items():
        model = copied(bundle.backbone_graph)
        if form != "packed" and not for_one_row(model):
            return {"one_row": True, "joined": False, "ms": {}}
        _place(model, bundle, tensors)
        if form != "joined" or tensors != forms["one_row"]:
            options = session_options()  # no form's threads spin for work while another's run
            options.add_session_config_entry("session.force_spinning_stop", "1")
            sessions[form] = open_session(model, folder, options=options)
    times: dict[str, list[float]] = {form: [] for form in sessions}
    until = perf_counter() + _TRIAL_S
    while (n := len(times["packed"])) < _LEAST_ROUNDS or (perf_counter() < until and n < _MOST_ROUNDS):
        for form, session in sessions.items():
            begin = perf_counter()
            _answer(session, min(_TRIAL_TOKENS, bundle.architecture.max_length))
            times[form].append(perf_counter() - begin)
    # What else runs here only adds time, and may add it to one form alone: a median of few rounds kept the slower one.
    found = {form: min(of_form) for form, of_form in times.items()}
    joined = found.get("joined", np.inf) < _CLEARLY * found["one_row"]
    slower = found["packed"] < _CLEARLY * (found["joined"] if joined else found["one_row"])
    return {
        "one_row": not slower,
        "joined": joined and not slower,
        "ms": {form: round(1000 * s, 3) for form, s in found.items()},
    }


def _lay_out(groups: Sequence[dict[str, dict[str, str]]], packed: Path) -> list[int]:
    """Move tensors and packed copies to where kernels read them, and read them fast, in the file and in ``groups``;
    returns where each group ends.

    ONNX Runtime writes one after the other, so a single one of an odd size, as a packed 4-bit matrix has, moves all
    that follow, and kernels stop the process.  A packed copy of at least 2 MB begins at a whole huge page and is
    written page by page: Linux then keeps these in one piece, and maps them so where the file system can (xfs, and
    ext4 since 6.16).  Gaps are holes, which take no room on the disk.
    """
    if not any(groups):
        return [0 for _ in groups]
    source, laid_out, ends = np.memmap(packed, np.uint8, "r").data, packed.with_name("laid_out.bin"), list[int]()
    with laid_out.open("xb", buffering=0) as file:

        def moved(offset: str, length: str, large: int = _ALIGNED) -> str:
            part = source[int(offset) : int(offset) + int(length)]
            file.seek(-file.tell() % (large if len(part) >= large else _ALIGNED), os.SEEK_CUR)
            begin = file.tell()
            while part:
                part = part[file.write(part[: _HUGE_PAGE - file.tell() % _HUGE_PAGE]) :]
            return str(begin)

        for tensors in groups:
            for where in tensors.values():
                for key in [key for key in where if key.startswith("prepacked")]:
                    name, *parts = where[key].split("|")
                    places = [part.split(";") for part in parts]
                    moves = [(moved(offset, length, _HUGE_PAGE), length, *rest) for offset, length, *rest in places]
                    where[key] = "|".join([name, *map(";".join, moves)])
            for where in tensors.values():
                where["offset"] = moved(where["offset"], where["length"])
            ends.append(file.tell())
    laid_out.replace(packed)
    return ends


def _with_pooler(bundle: Bundle) -> onnx.ModelProto:
    """The backbone with its pooler, which the heads of many tasks read."""
    model, checkpoint = copied(bundle.backbone_graph), bundle.checkpoint
    have = {initializer.name for initializer in model.graph.initializer}
    for name, shape in bundle.architecture.pooler.items():
        if not checkpoint.has(name) or checkpoint.find(name).name in have:
            continue
        stored = checkpoint.find(name)
        model.graph.initializer.append(external_tensor(stored))
        made = f"cache/{stored.name}"
        how: dict[str, Any] = {"transB": 1} if len(shape) == 2 else {}
        model.graph.node.append(
            helper.make_node("Gemm" if how else "Add", ["pooled.first", stored.name], [made], **how)
        )
        model.graph.output.append(floats(made, None))
    return model


def _with_output(model: onnx.ModelProto, decoder: onnx.ModelProto) -> None:
    """Add the product with a decoder's table of words, which its backbone's graph lacks."""
    have = {name for node in model.graph.node for name in node.output} | {each.name for each in model.graph.initializer}
    needed = [*ancestors([Role.POOLED_LABELS], writers(decoder.graph), {Role.STACK_OUTPUT})][::-1]
    model.graph.node.extend(node for node in needed if have.isdisjoint(node.output))
    read = {name for node in needed for name in node.input} - have
    model.graph.initializer.extend(each for each in decoder.graph.initializer if each.name in read)
    model.graph.output.append(floats(Role.POOLED_LABELS, None))


def _side_by_side(bundle: Bundle, parts: Sequence[onnx.TensorProto], axis: int, name: str) -> onnx.TensorProto:
    """Tensors of the bundle's weights as one."""
    dtype = helper.tensor_dtype_to_np_dtype(parts[0].data_type)
    values = [np.frombuffer(_stored_bytes(part, bundle), dtype).reshape(part.dims) for part in parts]
    return numpy_helper.from_array(np.concatenate(values, axis), name)


def _known(
    bundle: Bundle, tensors: Places, parts: Sequence[onnx.TensorProto], axis: int, name: str
) -> onnx.TensorProto | None:
    """A joined tensor: a matrix of the packed file, or none; of vectors, which may be too small for it, always."""
    if len(parts[0].dims) == 1 and name not in tensors:  # too small for the file
        return _side_by_side(bundle, parts, axis, name)
    whole = TensorProto(name=name, data_type=parts[0].data_type, dims=parts[0].dims)
    whole.dims[axis] *= len(parts)
    whole.data_location = TensorProto.EXTERNAL
    whole.external_data.add(key="location", value=bundle.weights.name)  # until it is placed
    return whole if name in tensors else None


def place_joined(model: onnx.ModelProto, bundle: Bundle, tensors: Places = MappingProxyType({})) -> None:
    """Point joined tensors into the packed file, or copy them into the graph where an entry lacks them or is gone."""
    stored = {each.name: each for each in bundle.backbone_graph.graph.initializer}
    for initializer in (i for i in model.graph.initializer if len(names_in(i.name)) > 1):
        if not _point_at(initializer, tensors) and not initializer.raw_data:
            parts = [stored[name] for name in names_in(initializer.name.removesuffix(FOR_ATTENTION))]
            axis = 1 if initializer.data_type == TensorProto.INT8 else 0
            initializer.CopyFrom(_side_by_side(bundle, parts, axis, initializer.name))


def _place(model: onnx.ModelProto, bundle: Bundle, tensors: Places) -> None:
    join_attention(model, partial(_known, bundle, tensors))
    place_joined(model, bundle, tensors)
    grouped = (name.removesuffix(grouped_name("")) for name in tensors if name.endswith(grouped_name("")))
    if groups := [group for name in grouped if len(group := names_in(name)) > 1]:  # of a decoder
        from edgepeft.graph.joined import join_products

        join_products(model.graph, groups, partial(_joined_tensor, bundle, tensors))
    for initializer in external_tensors(model.graph):
        if place_of(initializer)["location"] == bundle.weights.name and not _point_at(initializer, tensors):
            raw = _stored_bytes(initializer, bundle)
            del initializer.external_data[:]
            initializer.data_location, initializer.raw_data = TensorProto.DEFAULT, raw


def _point_at(initializer: onnx.TensorProto, tensors: Places) -> bool:
    """Have it lie in the packed file; False where that lacks it."""
    # A grouped matrix lies there by the name that its product reads, beside its packed copy.
    placed = tensors.get(grouped_name(initializer.name)) or tensors.get(initializer.name)
    if placed is None:
        return False
    del initializer.external_data[:]
    initializer.data_location = TensorProto.EXTERNAL
    for key, value in placed.items():
        initializer.external_data.add(key=key, value=value)
    return True


def _stored_bytes(initializer: onnx.TensorProto, bundle: Bundle) -> bytes:
    bundle.hash_weights()
    where = place_of(initializer)
    return np.memmap(bundle.weights, np.uint8, "r", int(where["offset"]), (int(where["length"]),)).tobytes()


def _joined_tensor(bundle: Bundle, tensors: Places, parts: Sequence[onnx.TensorProto], name: str) -> onnx.TensorProto:
    """Tensors of the bundle's weights as one, which lies in the packed file, or else in the graph."""
    joined = TensorProto(name=name, data_type=parts[0].data_type)
    joined.dims[:] = [sum(part.dims[0] for part in parts), *parts[0].dims[1:]]
    if not _point_at(joined, tensors):
        joined.raw_data = b"".join(_stored_bytes(part, bundle) for part in parts)
    return joined


def _answer(session: ort.InferenceSession, n_tokens: int = 8) -> Mapping[str, Any]:
    """Every output for one short row."""
    row = {value.name: np.ones((1, n_tokens), np.int64) for value in session.get_inputs()}
    return dict(zip((value.name for value in session.get_outputs()), session.run(None, row), strict=True))
