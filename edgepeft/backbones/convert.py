"""Checkpoints in other forms (half precision, sharded, pickled, no fast tokenizer), converted once, into the cache.

A ``.bin`` of PyTorch's is read by torch's restricted unpickler, which runs no code; and no more than it holds.  Three
things in such a file can ask for more memory than its bytes: an archive that is compressed, a pickle of many tiny
objects, and a tensor whose strides read one number many times.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from edgepeft.backbones.checkpoint import NUMPY_TYPES, Checkpoint, Layout, write_safetensors
from edgepeft.backbones.config import read_config
from edgepeft.backbones.emit import BUNDLE_FILES, BUNDLE_MANIFEST, WEIGHTS_FILE, WEIGHTS_FILES
from edgepeft.backbones.sentence_files import SENTENCE_FILES
from edgepeft.common.atomic import new_folder
from edgepeft.common.errors import BundleError, EdgepeftError, MissingPackage, UsageError, requiring
from edgepeft.common.messages import reason
from edgepeft.common.resources import (
    cache_folder,
    package_data,
    pointer_note,
    private_folder,
    sha256_of,
    whole,
    write_checksums,
)

if TYPE_CHECKING:
    import torch

# Vocabularies of slow tokenizers, which tokenizer.json is made of where it is missing.
_SLOW = ("vocab.txt", "vocab.json", "sentencepiece.bpe.model", "sentencepiece.model", "spiece.model", "spm.model")
COMPANIONS = (*BUNDLE_FILES, *_SLOW, "merges.txt", "added_tokens.json", *SENTENCE_FILES)
PICKLED_FILE = "pytorch_model.bin"
_OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx")
_FLOATS = {"F64", "F32", "F16", "BF16"}
_PLAIN_DTYPES = {"F32", "I64", "I32", "U8", "BOOL", "I8", "I16"}
_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
_AS_IT_IS = "PreTrainedTokenizerFast"  # the class that has no normalisation of its own


class _Source(NamedTuple):
    """A tensor of a checkpoint: how it is stored, and its values when they are wanted."""

    layout: Layout
    read: Callable[[], NDArray[Any]]

    @classmethod
    def all_of(cls, path: Path) -> dict[str, Self]:
        if path.suffix == ".bin":
            return {name: cls.of_torch(tensor, path) for name, tensor in read_pickled(path).items()}
        sources = {}
        for stored in Checkpoint.open(path).tensors.values():
            if stored.dtype not in NUMPY_TYPES:
                known = ", ".join(sorted(NUMPY_TYPES))
                raise BundleError(f"{path}: tensor {stored.name} is {stored.dtype}; what can be converted: {known}.")
            sources[stored.name] = cls(Layout(stored.dtype, stored.shape), partial(stored.read, path))
        return sources

    @classmethod
    def of_torch(cls, tensor: torch.Tensor, where: Path) -> Self:
        shape = tuple(tensor.shape)
        if tensor.is_floating_point():
            return cls(Layout("F32", shape), lambda: tensor.float().numpy())
        values = tensor.numpy()
        dtype = next((name for name, known in NUMPY_TYPES.items() if np.dtype(known) == values.dtype), None)
        if dtype is None:
            known = ", ".join(NUMPY_TYPES)
            raise BundleError(f"{where} has a tensor of {tensor.dtype}; what can be converted: {known}.")
        return cls(Layout(dtype, shape), lambda: values)

    def rows(self, first: int, end: int) -> Self:
        dtype, (_, *rest) = self.layout
        return type(self)(Layout(dtype, (end - first, *rest)), lambda: self.read()[first:end])


def plain_folder(folder: Path, names: Callable[[str], tuple[str, ...]] = lambda name: (name,)) -> Path:
    """The folder itself when its weights are float32 safetensors and its tokenizer is fast, else a converted copy.

    ``names`` gives what a stored tensor is called in transformers' modules, which the weights are to be called, too.
    """
    plain, pickled = folder / WEIGHTS_FILE, folder / PICKLED_FILE
    known = [plain, folder / f"{WEIGHTS_FILE}.index.json", pickled, folder / f"{PICKLED_FILE}.index.json"]
    origin = next((path for path in known if path.is_file()), None)
    if origin is None and any((folder / name).is_file() for name in WEIGHTS_FILES.values()):
        raise UsageError(
            f"{folder} is a bundle of 8-bit or 4-bit weights, which can be run but not trained or exported; give the "
            "float32 checkpoint that it was made of."
        )
    if origin is None:
        other = sorted(path.name for path in folder.iterdir() if path.suffix in _OTHER_WEIGHTS)
        found = f" Found {', '.join(other)}: save the model by transformers' save_pretrained." if other else ""
        raise UsageError(f"{folder} has neither {WEIGHTS_FILE} nor {PICKLED_FILE}; it is not a backbone.{found}")
    as_is = origin == plain and all(
        t.dtype in _PLAIN_DTYPES and names(t.name) == (t.name,) for t in Checkpoint.open(plain).tensors.values()
    )
    has_slow = any((folder / name).is_file() for name in _SLOW) or _reads_bytes(folder)
    fast = (folder / "tokenizer.json").is_file()
    remade = _is_overridden(folder) if fast else has_slow
    if as_is and not remade:
        return folder
    parts, companions = _parts(origin), [name for name in COMPANIONS if (folder / name).is_file()]

    def write(new: Path) -> None:
        for companion in companions:
            (new / companion).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / companion, new / companion)
        if as_is:
            shutil.copyfile(plain, new / WEIGHTS_FILE)
        else:
            _write_float32(parts, names, new / WEIGHTS_FILE)
        if remade:
            _convert_tokenizer(folder, new)

    # Of all files of a copy: shards of two models may share one index, and models their weights.
    return cached_copy(folder, [*parts, *(folder / name for name in companions)], write)


def cached_copy(source: Path, made_of: Sequence[Path], write: Callable[[Path], None]) -> Path:
    """What ``write`` makes of a folder's files, or of a single one, in the cache: made where it is not there whole."""
    try:
        listing = "\n".join(f"{path.relative_to(source)} {sha256_of(path)}" for path in made_of)
        target = private_folder(cache_folder() / "converted") / hashlib.sha256(listing.encode()).hexdigest()
    except OSError as error:
        raise EdgepeftError(f"the converted copy of {source} cannot be kept: {error.strerror}.") from error
    if not whole(target):
        if target.is_dir():
            warnings.warn(
                f"the converted copy of {source} in {target} is not what was written there, and is made again.",
                RuntimeWarning,
                stacklevel=3,
            )
        with new_folder(target, force=True) as new:
            write(new)
            write_checksums(new)
    return target


def _reads_bytes(folder: Path) -> bool:
    """Whether its tokens are bytes, for which there is no vocabulary."""
    path = folder / "tokenizer_config.json"
    return path.is_file() and read_config(path).get("tokenizer_class") == TOKENIZER_CLASS


def _convert_tokenizer(folder: Path, target: Path) -> None:
    if _reads_bytes(folder):
        byte_tokenizer().save(str(target / "tokenizer.json"))
        return
    made = _of_transformers(folder)
    texts = package_data("verify_texts.txt").read_text(encoding="utf-8").splitlines()
    expected = made(texts)["input_ids"]
    made.save_pretrained(str(target))
    saved = Tokenizer.from_file(str(target / "tokenizer.json")) if made.is_fast else None
    if saved is None or any(saved.encode(text).ids != ids for text, ids in zip(texts, expected, strict=True)):
        raise UsageError(
            f"the tokenizer of {folder}, a {type(made).__name__}, reads texts in ways that a tokenizer.json cannot "
            "say; this backbone cannot be used."
        )


def _of_transformers(folder: Path) -> Any:
    with requiring("train", f"converting the tokenizer of {folder}"):
        from transformers import AutoTokenizer
    try:
        return AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)  # type: ignore[no-untyped-call]
    except Exception as error:  # of many kinds: a library is missing, or the vocabulary is damaged
        raise EdgepeftError(
            f"the tokenizer of {folder} has to be converted, and transformers cannot do that ({reason(error)}). Where "
            "it asks for a library (sentencepiece, protobuf): install it, and repeat."
        ) from error


def _is_overridden(folder: Path) -> bool:
    """Whether transformers reads texts by something else than ``tokenizer.json``; a bundle's is what it runs with."""
    try:
        if (folder / BUNDLE_MANIFEST).is_file() or not _may_be_overridden(folder):
            return False
    except (BundleError, AttributeError, TypeError, ValueError):  # damaged files: the encoder says why
        return False
    try:
        theirs = _of_transformers(folder)
    except MissingPackage:
        raise
    except EdgepeftError:  # transformers knows no tokenizer of these files: nothing is overridden
        return False
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for each in (own, theirs.backend_tokenizer) if theirs.is_fast else ():
        each.no_truncation()
        each.no_padding()
    return not theirs.is_fast or bool(own.to_str() != theirs.backend_tokenizer.to_str())


def _may_be_overridden(folder: Path) -> bool:
    """Whether transformers may read texts by something else than the folder's ``tokenizer.json``.

    That file is what runs on a board.  ``tokenizer_config.json`` may have other normalisation (``do_lower_case``,
    ``strip_accents``, ``tokenize_chinese_chars``), ``add_prefix_space``, tokens at the ends of texts
    (``add_bos_token``) and added tokens, the last also in an old ``added_tokens.json``.
    """
    document = read_config(folder / "tokenizer.json")
    said = read_config(path) if (path := folder / "tokenizer_config.json").is_file() else {}
    normal, before = (document.get(name) or {} for name in ("normalizer", "pre_tokenizer"))
    wanted = dict[str, Any]()
    if "lowercase" in normal and said.get("tokenizer_class") != _AS_IT_IS:
        wanted = {
            "lowercase": said.get("do_lower_case", True),
            "strip_accents": said.get("strip_accents"),
            "handle_chinese_chars": said.get("tokenize_chinese_chars", True),
        }
    prefix, asked = said.get("add_prefix_space", False), said.get("add_prefix_space") is not None
    own = {token.get("id"): [token.get(flag) for flag in _FLAGS] for token in document.get("added_tokens") or ()}
    if (
        any(normal.get(name, value) != value for name, value in wanted.items())
        or before.get("add_prefix_space", prefix) != prefix
        or (asked and "add_prefix_space" not in before)  # T5's is then made anew of its vocabulary
        or not said.keys().isdisjoint(("add_bos_token", "add_eos_token"))
    ):
        return True
    added = list[tuple[int, list[Any]]]()  # beside the file: a number, what it is and, where that is there, its flags
    if isinstance(decoder := said.get("added_tokens_decoder"), Mapping):
        added = [(int(i), [token.get(flag) for flag in _FLAGS]) for i, token in decoder.items()]
    elif (old := folder / "added_tokens.json").is_file():
        added = [(i, [content]) for content, i in read_config(old).items()]
    return any(own.get(i, [])[: len(flags)] != flags for i, flags in added)


def _parts(origin: Path) -> list[Path]:
    """The files that hold the weights: one, or the shards that an index names."""
    if origin.suffix != ".json":
        return [origin]
    shards = read_config(origin).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise BundleError(f"{origin} has no weight_map from tensors to files; fetch it again.")
    parts = sorted({origin.parent / Path(name).name for name in shards.values()})
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise BundleError(f"{origin} names {missing[0]}, which is not beside it; fetch it again.")
    return parts


def _write_float32(parts: Sequence[Path], names: Callable[[str], tuple[str, ...]], path: Path) -> None:
    """Write tensors as transformers names them, one after the other: the whole may be larger than memory."""
    sources: dict[str, _Source] = {}
    for name, one in (source for part in parts for source in _Source.all_of(part).items()):
        modules = names(name)
        rows = one.layout.shape[0] // len(modules) if len(modules) > 1 else 0  # a fused one is divided by these
        for i, module in enumerate(modules):
            sources[module] = one.rows(i * rows, (i + 1) * rows) if rows else one
    layout = {name: one.layout for name, one in sources.items()}
    layout |= {name: each._replace(dtype="F32") for name, each in layout.items() if each.dtype in _FLOATS}
    plain = {name: np.dtype(NUMPY_TYPES[dtype]) for name, (dtype, _) in layout.items()}
    values = ((name, np.asarray(one.read(), plain[name])) for name, one in sources.items())
    write_safetensors(path, layout, values, {"format": "pt"})


_PICKLE_BYTES = 2 << 20  # of the names and shapes of ten thousand tensors; a byte may make a list of 64
_TAR = (257, b"ustar")  # where torch before 0.1.10 has an archive, which torch would unpack


def read_pickled(path: Path) -> dict[str, torch.Tensor]:
    """The tensors by name, each no larger than what is stored of it; equal ones are one."""
    with requiring("train", f"reading {path}, a PyTorch file,"):
        import torch
    try:
        with path.open("rb", buffering=0) as raw, _Counted(raw) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle's versions; what cannot be read is an error below
            archive = zipfile.is_zipfile(path)
            _refuse_growing(file, path, archive)
            # Mapped where it can be: the format before PyTorch 1.6 cannot.
            state = torch.load(path if archive else file, map_location="cpu", weights_only=True, mmap=archive)
            size = os.fstat(raw.fileno()).st_size
    except BundleError:
        raise
    except Exception as error:  # pickle, zip and attribute errors: all mean that it is no state dict
        raise BundleError(
            f"{path} is no plain dictionary of tensors, and code in it is never run ({reason(error)}). Save it as "
            f"safetensors.{pointer_note(path)}"
        ) from error
    if not isinstance(state, dict):
        raise BundleError(f"{path} holds {type(state).__name__}; a dictionary of tensors was expected: save it again.")
    odd = [str(name) for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if odd:
        inner = next((name for name, value in state.items() if isinstance(value, dict) and value), None)
        instead = "Save it without these" if inner is None else f"Save what is in it as {inner} alone, a state_dict"
        raise BundleError(f"{path} holds what is no tensor: {', '.join(odd[:3])}. {instead}.")
    return _as_stored({str(name): tensor for name, tensor in state.items()}, size, path)


class _Counted(io.BufferedReader):
    """A file of which a pickle is read: the unpickler reads once for each object at least."""

    left = _PICKLE_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as the base does, a limited number of times."""
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"its pickle has more than {_PICKLE_BYTES:,} parts")
        return super().read(size)


def _refuse_growing(file: io.BufferedReader, path: Path, archive: bool) -> None:
    """See that an archive holds its tensors as they are, as PyTorch writes them, and that its pickle is small."""
    if not archive:
        at, mark = _TAR
        start = file.peek(at + len(mark))
        if start[at : at + len(mark)] == mark:
            raise BundleError(f"{path} is a tar archive, which PyTorch has not written since 2017. Save it anew.")
        return
    with zipfile.ZipFile(file) as opened:
        members = opened.infolist()
    file.seek(0)
    stored = all(one.compress_type == zipfile.ZIP_STORED for one in members)
    if not stored or sum(one.file_size for one in members) > os.fstat(file.fileno()).st_size:
        raise BundleError(f"{path} is compressed inside, which PyTorch never writes. Do not use it.")
    if any(one.file_size > _PICKLE_BYTES for one in members if one.filename.endswith(".pkl")):
        raise BundleError(
            f"{path} has a pickle of more than {_PICKLE_BYTES:,} bytes beside its tensors. Do not use it."
        )


def _as_stored(state: dict[str, torch.Tensor], most: int, path: Path) -> dict[str, torch.Tensor]:
    """Make tied tensors one object; refuse more than ``most`` bytes together."""
    import torch

    known: dict[object, torch.Tensor] = {}
    for name, tensor in state.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise BundleError(f"{path}: {name} is no dense tensor of plain numbers. Save it as safetensors.")
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        state[name] = known.setdefault(place, tensor.detach())
    asked = sum(one.numel() * one.element_size() for one in known.values())
    if asked > most:
        raise BundleError(
            f"{path} has {most:,} bytes, and its tensors ask for {asked:,}: some read the same numbers again. Save "
            "them contiguous."
        )
    return state


TOKENIZER_CLASS = "ByT5Tokenizer"  # in a ``tokenizer_config.json``
_SPECIAL = ("<pad>", "</s>", "<unk>")
_EXTRA = 125  # what pre-training puts in place of spans, behind the bytes
_BYTES = 256


def byte_tokenizer() -> Tokenizer:
    """byT5's (Xue et al., 2022, arXiv:2105.13626): a text's UTF-8 bytes, each by a number 3 above its value.

    transformers has it in Python alone.  Here it is a ``tokenizer.json``: bytes as characters, and pairs that never
    merge.  Each text of a pair ends with ``</s>``.
    """
    first = len(_SPECIAL)
    vocabulary = {token: i for i, token in enumerate(_SPECIAL)}
    # The character of each byte, as GPT-2 writes them: visible ones as they are, the others from 256 on.
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    unseen = [byte for byte in range(_BYTES) if byte not in seen]
    vocabulary |= {chr(byte if byte in seen else _BYTES + unseen.index(byte)): first + byte for byte in range(_BYTES)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = _SPECIAL[1]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, vocabulary[end])]
    )
    tokenizer.add_special_tokens([AddedToken(token, lstrip=True, rstrip=True) for token in _SPECIAL])
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>") for i in range(_EXTRA)])
    return tokenizer
