"""What sentence-transformers does with texts and is not done here, by a folder's files: it is said, not left out in
silence.

modules.json lists the modules that make a text's vector, sentence_bert_config.json may lower-case texts before the
tokenizer sees them, and config_sentence_transformers.json may have a prompt that ``encode`` puts before each text.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.resources import json_at

MODULES_FILE, _PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
# As sentence-transformers looks for it, in this order.
_TEXT_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE_FILES = (MODULES_FILE, _PROMPTS_FILE, *_TEXT_FILES)

_DONE_HERE = ("Transformer", "Pooling", "Normalize", "Dropout")
_LETTERS = " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def warn_of_what_is_not_read(folder: Path, encoder: Callable[[], TextEncoder]) -> None:
    """Say what sentence-transformers does with a text, and is not done here."""
    for told in (*_modules(folder), *_lower_case(folder, encoder), *_prompt(folder)):
        warnings.warn(told, stacklevel=3)


def _modules(folder: Path) -> Iterator[str]:
    kinds: list[str] = []
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # none, or no list of modules
        kinds = [str(each["type"]).rpartition(".")[2] for each in json_at(folder / MODULES_FILE)]
    if odd := [kind for kind in dict.fromkeys(kinds) if kind not in _DONE_HERE]:
        yield (
            f"{folder / MODULES_FILE} has {' and '.join(odd)}, which is left out here: a text's vector is the pooled "
            "one, not what sentence-transformers gives."
        )


def _lower_case(folder: Path, encoder: Callable[[], TextEncoder]) -> Iterator[str]:
    path = next((folder / name for name in _TEXT_FILES if (folder / name).is_file()), None)
    if path is None or _said(path).get("do_lower_case") is not True:
        return
    try:
        known = encoder()
    except EdgepeftError:  # who needs the tokenizer is told
        return
    if known.plain_ids(_LETTERS) != known.plain_ids(_LETTERS.lower()):
        yield (
            f"{path} has do_lower_case, which is not read here, and the tokenizer keeps capitals: give texts in lower "
            "case, or put a normalizer Lowercase into tokenizer.json, to read them as sentence-transformers does."
        )


def _prompt(folder: Path) -> Iterator[str]:
    said = _said(folder / _PROMPTS_FILE)
    name, prompts = said.get("default_prompt_name"), said.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, Mapping) and isinstance(name, str) else None
    if isinstance(prompt, str) and prompt:
        yield (
            f"{folder / _PROMPTS_FILE} has the prompt {prompt!r} ({name}), which sentence-transformers puts before "
            "each text, and which is not read here: write it into the texts, of training and of questions alike, "
            "where it is wanted."
        )


def _said(path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json_at(path)
        return found if isinstance(found, Mapping) else {}
    return {}
