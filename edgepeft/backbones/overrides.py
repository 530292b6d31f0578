"""What a folder says of its ``tokenizer.json`` beside it, which transformers applies when it loads the tokenizer.

The file itself is what runs on a board.  ``tokenizer_config.json`` may have other normalisation (``do_lower_case``,
``strip_accents``, ``tokenize_chinese_chars``), ``add_prefix_space`` and added tokens, the last also in an old
``added_tokens.json``; then transformers makes the file that a bundle gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepeft.backbones.config import read_config
from edgepeft.common.errors import BundleError

__all__ = ["may_be_overridden"]

_FLAGS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
_AS_IT_IS = "PreTrainedTokenizerFast"  # the class that has no normalisation of its own


def may_be_overridden(folder: Path) -> bool:
    """Whether transformers may read texts by something else than the folder's ``tokenizer.json``."""
    try:
        return _may_be(folder)
    except (BundleError, AttributeError, TypeError, ValueError):  # damaged files: the encoder says why
        return False


def _may_be(folder: Path) -> bool:
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
    return (
        any(normal.get(name, value) != value for name, value in wanted.items())
        or before.get("add_prefix_space", prefix) != prefix
        or (asked and "add_prefix_space" not in before)  # T5's is then made anew of its vocabulary
        or any(own.get(i, [])[: len(flags)] != flags for i, flags in _added(folder, said))
    )


def _added(folder: Path, said: Mapping[str, Any]) -> Iterator[tuple[int, list[Any]]]:
    """The added tokens beside the file: the number of each, what it is and, where that is there, its flags."""
    if isinstance(decoder := said.get("added_tokens_decoder"), Mapping):
        yield from ((int(i), [token.get(flag) for flag in _FLAGS]) for i, token in decoder.items())
    elif (old := folder / "added_tokens.json").is_file():
        yield from ((i, [content]) for content, i in read_config(old).items())
