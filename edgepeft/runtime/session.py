"""ONNX Runtime sessions: threads as the profile and the host allow, in one pool on demand; a limit on open ones."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before the import: 1.29 and later send it by default

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as _binding

from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.common.messages import reason
from edgepeft.device.machine import cpu_quota, lacks_dot_product, saturates_in_8_bits, thread_count
from edgepeft.graph.grouped import lower_groups
from edgepeft.graph.names import LOGITS
from edgepeft.graph.protos import copied, values_read
from edgepeft.graph.quantise import lower_integers
from edgepeft.runtime.inputs import unpack_tokens

if TYPE_CHECKING:
    from edgepeft.runtime.session_pool import TaskSession

_ERRORS_ONLY = 3
_pool: list[int] = []  # how many threads all sessions share, where they do
MAX_SESSIONS = 128  # tasks of one structure share one or two of them; each holds 8 to 20 MB and its threads
_LIMIT = Path("/proc/sys/vm/max_map_count")
# This one moves a bias from Add into Gemm, which writes it on one thread before the product; an Add runs on all
# threads and fuses with Gelu (roberta-base, 32 rows of 128 tokens, 2 threads: 1.04 times the throughput).
_SLOWER = ["GemmSumFusion"]


def session_options(threads: int | None = None) -> ort.SessionOptions:
    """Options for ``threads`` intra-op threads; None takes what affinity and quota allow."""
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _ERRORS_ONLY
    if _pool:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads, options.inter_op_num_threads = thread_count(threads), 1
    # Threads spin for work after a run, 38 ms on an EPYC: to wake them takes longer than a short text.  One that has
    # been throttled by a quota holds up all others (measured: 2x to 6x).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if cpu_quota() is not None else "1")
    if saturates_in_8_bits():  # this takes a slower, exact kernel where the matrix is a constant
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def share_threads(number: int | None = None) -> None:
    """Have one pool of threads for all sessions that this process opens from now on; not under a quota.

    A task's own threads, which spin after its run, keep the cores from the next task's.  ONNX Runtime then refuses
    sessions that ask for threads of their own, as those of others do: for a process whose sessions are all edgepeft's.
    """
    number = thread_count(number)
    if number > 1 and not _pool and cpu_quota() is None:
        ort.set_global_thread_pool_sizes(number, 1)
        _pool.append(number)


@cache
def _register_arena() -> None:
    """One arena for all sessions of the process: each of its own keeps what its largest batch took."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, _binding.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({}))


def open_session(
    model: onnx.ModelProto,
    folder: Path,
    threads: int | None = None,
    *,
    options: ort.SessionOptions | None = None,
    without: Sequence[str] = (),
    external_data: Iterable[tuple[str, NDArray[Any]]] = (),
    one_row: bool = False,
) -> ort.InferenceSession:
    """A session on a model whose weights lie in ``folder``; ``options`` are those of ``session_options`` unless given.

    ``without`` names optimisations of ONNX Runtime that are left out; ``external_data`` are the values of what lies
    elsewhere, as ``Bundle.external_data`` gives them.  ``one_row``: it runs the graph of ``for_one_row``.
    """
    _register_arena()
    options = options or session_options(threads)
    options.add_session_config_entry("session.use_env_allocators", "1")
    # A pattern takes one block for a whole run, and no hole of the shared arena is large enough: a task of another
    # structure then added 55 MB after 32 x 128 tokens, without patterns 8 MB, at the same speed.  Of a row alone the
    # block is small, and to take each value from the arena is 4 % of a short text's time (MiniLM, 8 bits); what is
    # kept of each length takes 24 KB.
    options.enable_mem_pattern = one_row and _tells_lengths_apart(model)
    # Planning which value takes which one's place compares each with all that are free, by the text of their types:
    # a third of the time to open a session (0.07 of 0.22 s), for nothing that the arena does not do in the run.
    options.enable_mem_reuse = False
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder.resolve()))
    if given := {name: ort.OrtValue.ortvalue_from_numpy(values) for name, values in external_data}:
        options.add_external_initializers(list(given), list(given.values()))  # as they lie, not copied
    if any(node.op_type in ("MatMulInteger", "DequantizeLinear") for node in model.graph.node):
        from edgepeft.graph.by_row import keep_texts

        model = copied(model)
        lower_integers(model)
        # Without a dot product there is no kernel of 8-bit activations, but one of float32 ones.
        lower_groups(model, accuracy_level=0 if lacks_dot_product() else 4)
        keep_texts(model.graph)
    if saturates_in_8_bits():
        model = _with_own_matrices(model)
    with failing_as(f"cannot open the model of {folder}"):
        return ort.InferenceSession(
            model.SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=[*_SLOWER, *without],
        )


def _tells_lengths_apart(model: onnx.ModelProto) -> bool:
    """Whether ONNX Runtime keeps patterns of memory by a row's length; an input that nothing reads is dropped for it.

    It keeps them by the exclusive or of all inputs' dimensions: of an even number of rows [1, T] that is 0 for each T.
    """
    read, graph = values_read(model.graph), model.graph
    rows = [value for value in graph.input if value.name in ("input_ids", "attention_mask", "token_type_ids")]
    if len(rows) % 2 == 0 and (unread := next((value for value in rows if not read[value.name]), None)) is not None:
        rows.remove(unread)
        graph.input.remove(unread)
    return len(rows) % 2 == 1


def _with_own_matrices(model: onnx.ModelProto) -> onnx.ModelProto:
    """Each int8 constant once for every node that reads it: the exact kernel's rewriting fails on a second reader."""
    shared = {each.name: each for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT8}
    readers = Counter(name for node in model.graph.node for name in node.input if name in shared)
    if max(readers.values(), default=0) < 2:
        return model
    apart = copied(model)
    for place, node in enumerate(apart.graph.node):
        for i, name in enumerate(node.input):
            if readers[name] > 1:
                own = apart.graph.initializer.add()
                own.CopyFrom(shared[name])
                own.name = node.input[i] = f"{name}/{place}.{i}"
    return apart


def plain_session(model: onnx.ModelProto | Path | str, threads: int | None = None) -> ort.InferenceSession:
    """A session on a whole model, or the file of one, that has nothing of a bundle's own."""
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(content, session_options(threads), providers=["CPUExecutionProvider"])


@contextlib.contextmanager
def failing_as(what: str) -> Iterator[None]:
    """Use ONNX Runtime within the block."""
    try:
        yield
    except EdgepeftError:
        raise
    except Exception as error:
        raise _failed(what, error) from error


def _failed(what: str, error: Exception) -> BundleError:
    """Wrap any exception: ONNX Runtime's share no base but Exception."""
    return BundleError(f"ONNX Runtime {what}: {reason(error)}")


# Of each session its inputs, and whether its logits are of packed tokens: to ask ONNX Runtime anew costs more than a
# short text's checks.
_signatures = weakref.WeakKeyDictionary[Any, tuple[tuple[str, ...], bool]]()


def run_session(
    session: ort.InferenceSession | TaskSession, output: str, inputs: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """One output for a batch; of ``inputs``, those that the model reads.  Logits of packed tokens come as rows,
    [batch, length, outputs].
    """
    if (signature := _signatures.get(session)) is None:
        packed = any(value.name == LOGITS and value.shape[0] == "tokens" for value in session.get_outputs())
        signature = _signatures[session] = tuple(value.name for value in session.get_inputs()), packed
    names, packed = signature
    try:
        values: NDArray[np.float32] = session.run([output], {name: inputs[name] for name in names})[0]
    except Exception as error:
        raise _failed(f"stops in the model, with rows of {inputs['input_ids'].shape[1]} tokens", error) from error
    return unpack_tokens(values, inputs["attention_mask"]) if output == LOGITS and packed else values


@contextlib.contextmanager
def opening(task: str | None) -> Iterator[None]:
    """Open a task within the block, or the bare backbone for None."""
    try:
        yield
    except EdgepeftError:
        raise
    except Exception as error:
        name = "the backbone" if task is None else f"task {task}"
        raise BundleError(f"{name} cannot be opened ({type(error).__name__}: {error}).") from error


def return_free_memory() -> None:
    """Return to the system what splicing graphs left free on the heap; glibc keeps up to 40 MB a session."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def drop_pages(file: Path, parts: Sequence[tuple[int, int]]) -> None:
    """Take whole pages of a mapped file out of this process's memory; they come back from the file when they are read.

    ``parts`` are offsets and lengths in it, in bytes, of what nobody writes to.  Nothing happens but on Linux.
    """
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        bounds, _, at, _, _, *path = line.split(maxsplit=5)
        if path != [str(file)]:
            continue
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        shift = begin - int(at, 16)  # from a place in the file to its address
        for offset, length in parts:
            first = max(begin, -(-(offset + shift) // mmap.PAGESIZE) * mmap.PAGESIZE)
            whole = (min(end, offset + length + shift) - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if whole > 0:
                address = ctypes.c_void_p(first), ctypes.c_size_t(whole)
                ctypes.CDLL(None).madvise(*address, mmap.MADV_DONTNEED)


def most_sessions(n_tensors: int, limit: Path = _LIMIT) -> int:
    """How many sessions of ``n_tensors`` tensors each fit into half of the mappings that a process may have."""
    try:
        allowed = int(limit.read_text())
    except (OSError, ValueError):  # not Linux
        return MAX_SESSIONS
    return max(4, min(MAX_SESSIONS, allowed // 2 // max(1, n_tensors)))


class SessionLru:
    """The open sessions by last use; ``forget`` is called with one that their owner must drop.

    Each session maps the weights tensor by tensor (roberta-base: 150 to 200 mappings), and Linux gives a process 65,530
    mappings in all; beyond some 350 sessions ONNX Runtime opens no more, and the process gets no more memory either.

    A session that is running when it is forgotten runs to its end.
    """

    def __init__(self, most: int, forget: Callable[[Any], object]) -> None:
        self.most, self._forget = most, forget
        self._open: OrderedDict[int, weakref.ref[Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def make_room(self) -> None:
        """Close the least recently used sessions until one more may open."""
        while len(self._open) >= self.most:
            _, reference = self._open.popitem(last=False)
            session = reference()
            if session is not None:
                self._forget(session)

    def add(self, session: Any) -> None:
        """Count a session that was just opened, until it is garbage collected."""
        key = id(session)
        self._open[key] = weakref.ref(session, lambda _: self._open.pop(key, None))

    def used(self, session: Any) -> None:
        """Note a session as the most recently used one; from any thread."""
        try:  # noqa: SIM105 - each text passes here, and with cold caches suppress() costs it 5 microseconds
            self._open.move_to_end(id(session))
        except KeyError:  # closed meanwhile
            pass
