"""How a folder of sentence-transformers pools, and what it does with texts that is not done here, which is said.

modules.json lists the modules that make a text's vector, sentence_bert_config.json may lower-case texts before the
tokenizer sees them, and config_sentence_transformers.json may have a prompt that ``encode`` puts before each text.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgepeft.backbones.config import read_config
from edgepeft.backbones.pooling import EMBEDDINGS, Pooling
from edgepeft.backbones.tokens import TextEncoder
from edgepeft.common.atomic import write_json
from edgepeft.common.errors import EdgepeftError
from edgepeft.common.resources import json_at

POOLING_FILE = "1_Pooling/config.json"
MODULES_FILE, _PROMPTS_FILE = "modules.json", "config_sentence_transformers.json"
# As sentence-transformers looks for it, in this order.
_TEXT_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SENTENCE_FILES = (MODULES_FILE, _PROMPTS_FILE, *_TEXT_FILES)

_DONE_HERE = ("Transformer", "Pooling", "Normalize", "Dropout")
_LETTERS = " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def pooling_of(folder: Path, usual: Pooling, encoder: Callable[[], TextEncoder]) -> Pooling:
    """How a folder's texts are pooled, with a note of what else sentence-transformers does; ``usual`` in others."""
    path, modules = folder / POOLING_FILE, _modules(folder)
    if not path.is_file():
        if place := modules.get("Pooling"):
            warnings.warn(
                f"{folder / MODULES_FILE} has a Pooling in {place}, and {path}, where it is read, is not there: texts "
                f"are pooled as {usual} here. Put its config.json there.",
                stacklevel=2,
            )
        return usual
    config = read_config(path)
    for told in (*_left_out(folder, modules), *_lower_case(folder, encoder), *_prompt(folder)):
        warnings.warn(told, stacklevel=2)
    if (given := config.get("pooling_mode")) is not None:
        modes = {given} if isinstance(given, str) else {str(mode) for mode in given}
    else:  # before version 6 of sentence-transformers there is a switch for each
        start, known = "pooling_mode_", {pooling.switch: pooling.mode for pooling in EMBEDDINGS}
        on = (name.removeprefix(start) for name in config if name.startswith(start) and config[name] is True)
        modes = {known.get(name, name) for name in on}
    by_mode = {pooling.mode: pooling for pooling in reversed(EMBEDDINGS)}
    chosen = next((by_mode[mode] for mode in by_mode if mode in modes), usual)
    if not modes <= {*by_mode} or len(modes) > 1:
        warnings.warn(
            f"{path} pools by {' and '.join(sorted(modes))}; here texts are pooled as {chosen}, for "
            f"{' or '.join(by_mode)} alone is known.",
            stacklevel=2,
        )
    return chosen


def write_pooling(folder: Path, pooling: Pooling, hidden_size: int) -> None:
    """Note, as sentence-transformers does, how a text's vector is made of its tokens'."""
    (folder / POOLING_FILE).parent.mkdir()
    modes = {f"pooling_mode_{each.switch}": each is pooling for each in EMBEDDINGS}
    write_json(folder / POOLING_FILE, {"word_embedding_dimension": hidden_size, **modes})


def _modules(folder: Path) -> dict[str, str]:
    """Kind of a module -> its folder."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # none, or no list of modules
        listed = json_at(folder / MODULES_FILE)
        return {str(each["type"]).rpartition(".")[2]: str(each.get("path", "")) for each in listed}
    return {}


def _left_out(folder: Path, modules: Iterable[str]) -> Iterator[str]:
    if odd := [kind for kind in modules if kind not in _DONE_HERE]:
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
