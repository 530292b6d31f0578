"""Finding a backbone: a folder, GGUF file or Hub name becomes a folder with config, float32 weights and tokenizer."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgepeft.backbones.base import Architecture, family_of
from edgepeft.backbones.checkpoint import Checkpoint
from edgepeft.backbones.config import read_config
from edgepeft.backbones.convert import COMPANIONS, plain_folder
from edgepeft.backbones.emit import WEIGHTS_FILE
from edgepeft.backbones.gguf_file import folder_of_gguf
from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.sentence_files import MODULES_FILE, pooling_of
from edgepeft.backbones.tokens import TextEncoder, text_encoder
from edgepeft.backbones.trie import Trie, trie_of
from edgepeft.common.errors import UsageError, requiring
from edgepeft.common.resources import sha256_of


@dataclass(frozen=True)
class Backbone:
    """A backbone on disk: ``source`` is its Hub name or its folder's, ``folder`` holds its files."""

    source: str
    folder: Path
    config: Mapping[str, Any]

    @cached_property
    def architecture(self) -> Architecture:
        """Its sizes, tensors and sites."""
        return family_of(self.config).architecture(self.config)

    @property
    def weights(self) -> Path:
        """The ``model.safetensors``."""
        return self.folder / WEIGHTS_FILE

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights: a delta belongs to exactly these."""
        return sha256_of(self.weights)

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The index of the weights, by the base model's parameter names."""
        return self.architecture.open_checkpoint(self.weights)

    @cached_property
    def pooling(self) -> Pooling:
        """What a sentence-transformers folder says, if it is one, else what the model's own config says."""
        return pooling_of(self.folder, self.architecture.pooling, self.encoder)

    @cached_property
    def head(self) -> str:
        """The head kind that this model's authors put on it; linear over a mean, or without a pooler."""
        if self.architecture.decoder is not None:
            return self.architecture.head
        if self.pooling is Pooling.MEAN:
            return "linear"
        has_pooler = all(self.checkpoint.has(name) for name in self.architecture.pooler)
        return self.architecture.head if has_pooler else "linear"

    def encoder(self) -> TextEncoder:
        """Its tokenizer; refused where it gives ids that the backbone has no embedding of."""
        if not (self.folder / "tokenizer.json").is_file():
            raise UsageError(
                f"{self.folder} has no tokenizer.json, and no vocabulary that one can be made of. Copy the tokenizer's "
                "files of the model that it was trained from into it."
            )
        found = text_encoder(self.folder / "tokenizer.json", self.architecture)
        if (beyond := found.beyond(self.architecture.vocab_size)) is not None:
            raise UsageError(
                f"tokenizer.json of {self.source} has {beyond}, whose id has no embedding: there are "
                f"{self.architecture.vocab_size:,}. Resize the embeddings (resize_token_embeddings), or "
                "take the token out."
            )
        return found

    def trie(self, labels: Sequence[str]) -> Trie:
        """The labels as this model's decoder writes them."""
        decoder = self.architecture.decoder
        if decoder is None:
            raise UsageError(f"{self.source} has no decoder to score labels with; leave --head labels out.")
        return trie_of(labels, self.encoder(), decoder)


def open_backbone(source: Backbone | str | os.PathLike[str]) -> Backbone:
    """Open a folder in HF layout (a bundle is one) or a GGUF file, or download a Hub name; an open one is returned.

    GGUF files and half-precision, sharded and ``pytorch_model.bin`` checkpoints are converted once, into the cache.
    """
    if isinstance(source, Backbone):
        return source
    source, folder = str(source), Path(source)
    name = folder.resolve().name if folder.exists() else source  # a path is the machine's own business
    name = name.encode(errors="replace").decode()  # it goes into documents and graphs, which are UTF-8
    if folder.is_file():
        folder = folder_of_gguf(folder)
    elif not folder.is_dir():
        folder = _download(source)
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} has no config.json; a backbone is a folder in Hugging Face layout.{_found_instead(folder)}"
        )
    config = read_config(folder / "config.json")
    family = family_of(config)  # before a conversion that may take minutes
    if (quantised := config.get("quantization_config")) is not None:
        how = quantised.get("quant_method") if isinstance(quantised, Mapping) else quantised
        raise UsageError(
            f"{folder} holds weights in fewer bits (its config's quantization_config is {how}); give the checkpoint "
            "that they were made of."
        )
    folder = plain_folder(folder, family.modules_of_stored)
    return Backbone(name, folder, read_config(folder / "config.json"))


def _found_instead(folder: Path) -> str:
    """What a folder without a config is, as far as it is seen, and what to give."""
    if (folder / "adapter_config.json").is_file():
        return " This one is an adapter: edgepeft import FOLDER --backbone ITS_BASE_MODEL --out DELTA."
    if not (inner := [path.parent for path in folder.glob("*/config.json") if any(path.parent.glob("*model.*"))]):
        return ""
    if (folder / MODULES_FILE).is_file():  # of sentence-transformers before version 2.2
        return f" Its model lies in {inner[0].name}: move those files up, beside {MODULES_FILE}."
    return f" There is a model in {max(inner, key=lambda path: path.stat().st_mtime)}: give that folder."


def _download(source: str) -> Path:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) or source.startswith("."):
        raise UsageError(f"there is no folder {source}, and it cannot be a Hub name; give one of the two.")
    with requiring("train", f"there is no folder {source}; downloading a Hub name"):
        from huggingface_hub import constants, snapshot_download
    try:
        folder = Path(snapshot_download(source, allow_patterns=[*COMPANIONS, "model*.safetensors*"]))
        if not any(folder.glob("model*.safetensors")):
            folder = Path(snapshot_download(source, allow_patterns=[*COMPANIONS, "pytorch_model*.bin*"]))
    except Exception as error:  # the library's many kinds all mean: not here, not reachable
        raise UsageError(
            f"there is no folder {source}, and the Hub gave no model of that name ({type(error).__name__}: offline, or "
            f"no such model); nor is it in the cache {constants.HF_HUB_CACHE}. "
            "Give a folder, or fetch it where there is a network."
        ) from error
    return folder
