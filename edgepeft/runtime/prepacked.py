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
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from edgepeft.backbones.base import Role
from edgepeft.backbones.emit import external_tensor
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.store import Held, Store
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import EdgepeftError, UsageError, VerificationFailed
from edgepeft.common.resources import cache_folder, whole, write_checksums
from edgepeft.device.machine import cpu_model, isa_flags, saturates_in_8_bits
from edgepeft.graph.joined_row import add_joined
from edgepeft.graph.one_row import for_one_row
from edgepeft.graph.protos import ancestors, copied, external_tensors, floats, place_of, writers
from edgepeft.runtime.placing import Places, place, side_by_side
from edgepeft.runtime.session import drop_pages, open_session, session_options

CACHE_LIMIT = "EDGEPEFT_CACHE_GIB"
_DEFAULT_GIB = 8.0  # ten models of roberta-base's size
_FORMAT = 12
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


class Prepacked:
    """A held cache entry; graphs are placed on its ``tensors`` (``placing``)."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.folder = held.folder
        self.tensors: Places = json.loads((held.folder / _PLACES_FILE).read_bytes())
        self.one_row: bool = json.loads((held.folder / _TRIED_FILE).read_bytes())["one_row"]

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
    model = _with_pooler(bundle)
    if bundle.architecture.decoder_only and bundle.manifest.backbone.text is not None:
        from edgepeft.graph.in_place import in_place
        from edgepeft.graph.joined import attention_matrices, join_products

        _with_output(model, bundle.text_graphs.decoder)
        if (lowered := in_place(bundle.text_graphs.decoder)) is not None:
            groups = [*attention_matrices(lowered.model.graph)]
            join_products(model.graph, groups, partial(side_by_side, bundle))
    row, quantised = copied(bundle.backbone_graph), bundle.manifest.backbone.weights_dtype != "fp32"
    joined = list[str]()
    if not (quantised and saturates_in_8_bits()) and for_one_row(row):
        joined = add_joined(model, row, partial(side_by_side, bundle))
    # Each tensor, and its packed copy, as written and as laid out; of those joined, a quarter, as much again.
    needed = int((5.2 if joined else 4.2) * bundle.weights.stat().st_size)
    if shutil.disk_usage(folder).free < needed:  # ONNX Runtime reports no error when the disk is full
        raise OSError(errno.ENOSPC, f"{needed >> 20} MB are needed")
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
    place(model, bundle, tensors)
    given = _answer(open_session(model, folder))
    for name, values in expected.items():  # packing changes nothing but the last digits, which fusing moves
        if not np.allclose(values, given[name], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise EdgepeftError(f"the prepacked weights give another {name} than the weights themselves.")
    tried = _tried(bundle, folder, separate, tensors)
    if not tried["joined"]:
        os.truncate(packed, without_joined)
    write_json(folder / _PLACES_FILE, tensors if tried["joined"] else separate)
    write_json(folder / _TRIED_FILE, tried)
    write_checksums(folder)


def _tried(bundle: Bundle, folder: Path, separate: Places, tensors: Places) -> dict[str, Any]:
    """Time a row alone on the bare backbone: packed, by ``for_one_row``, and with ``join_attention`` too.

    Says whether the later forms are clearly quicker than the one before, and the times.  The forms are those of
    ``_build`` and ``Runtime._session_of_one_row``; two at a time, for each session maps the file anew.
    """
    if not for_one_row(row := copied(bundle.backbone_graph)):
        return {"one_row": True, "joined": False, "ms": {}}
    found = _raced(bundle, folder, {"packed": (bundle.backbone_graph, separate), "one_row": (row, separate)})
    joined = False
    if separate != tensors:
        again = _raced(bundle, folder, {"one_row": (row, separate), "joined": (row, tensors)})
        found = {**found, "one_row": min(found["one_row"], again["one_row"]), "joined": again["joined"]}
        joined = found["joined"] < _CLEARLY * found["one_row"]
    slower = found["packed"] < _CLEARLY * found["joined" if joined else "one_row"]
    milliseconds = {form: round(1000 * s, 3) for form, s in found.items()}
    return {"one_row": not slower, "joined": joined and not slower, "ms": milliseconds}


def _raced(bundle: Bundle, folder: Path, forms: Mapping[str, tuple[onnx.ModelProto, Places]]) -> dict[str, float]:
    """The least seconds of a row by each graph, by turns."""
    sessions = {}
    for form, (graph, tensors) in forms.items():
        place(model := copied(graph), bundle, tensors)
        options = session_options()  # no form's threads spin for work while another's run
        options.add_session_config_entry("session.force_spinning_stop", "1")
        sessions[form] = open_session(model, folder, options=options, one_row=form != "packed")
    times: dict[str, list[float]] = {form: [] for form in sessions}
    until, n = perf_counter() + _TRIAL_S, 0
    while n < _LEAST_ROUNDS or (perf_counter() < until and n < _MOST_ROUNDS):
        for form, session in sessions.items():
            begin = perf_counter()
            _answer(session, min(_TRIAL_TOKENS, bundle.architecture.max_length))
            times[form].append(perf_counter() - begin)
        n += 1
    # What else runs here only adds time, and may add it to one form alone: a median of few rounds kept the slower one.
    return {form: min(of_form) for form, of_form in times.items()}


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
    laid_out, ends = packed.with_name("laid_out.bin"), list[int]()
    with packed.open("rb", buffering=0) as source, laid_out.open("xb", buffering=0) as file:

        def moved(offset: str, length: str, large: int = _ALIGNED) -> str:
            source.seek(int(offset))
            file.seek(-file.tell() % (large if int(length) >= large else _ALIGNED), os.SEEK_CUR)
            begin = file.tell()
            while (left := begin + int(length) - file.tell()) > 0:
                part = source.read(min(left, _HUGE_PAGE - file.tell() % _HUGE_PAGE))
                while part:  # a system may take less than it is given
                    part = part[file.write(part) :]
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


def _answer(session: ort.InferenceSession, n_tokens: int = 8) -> Mapping[str, Any]:
    """Every output for one short row."""
    row = {value.name: np.ones((1, n_tokens), np.int64) for value in session.get_inputs()}
    return dict(zip((value.name for value in session.get_outputs()), session.run(None, row), strict=True))
