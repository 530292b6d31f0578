"""A tiny BERT, two deltas on it and their rows, the same on every machine and with every version of torch and NumPy.

Weights come from NumPy's RandomState, whose stream is frozen, so losses may be compared with numbers written down.
"""

from __future__ import annotations

import json

import numpy as np
import torch
import transformers
from moods import BAD, FILLER, GOOD, SPECIAL, texts
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.delta import new_delta
from edgepeft.methods.base import method_named

WORDS = SPECIAL + GOOD + BAD + FILLER
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES |= {"vocab_size": len(WORDS), "max_position_embeddings": 64}
METHODS = {
    "mood": method_named("pfeiffer").from_settings({"bottleneck": 4}),
    "score": method_named("layernorm").from_settings({}),
}
LABELS = {"mood": ("bad", "good"), "score": None}
RATES = {"learning_rate": 1e-3, "head_learning_rate": 1e-2}
ASKED = {"steps": 12, "batch_size": 8, "seed": 3, **RATES}
LENGTH = 32


def drawn(shape, source):
    """Weights keep the scale of what they read; vectors are small."""
    scale = shape[1] ** -0.5 if len(shape) == 2 else 0.1
    return torch.from_numpy((scale * source.standard_normal(shape)).astype(np.float32))


def write_backbone(folder, *, mean=True):
    source = np.random.RandomState(0)
    model = transformers.BertModel(transformers.BertConfig(**SIZES))
    for name, parameter in sorted(model.named_parameters()):
        norm = name.endswith("LayerNorm.weight")
        parameter.data = drawn(parameter.shape, source) + (1.0 if norm else 0.0)
    model.save_pretrained(folder)
    write_tokenizer(folder, mean=mean)
    return open_backbone(str(folder))


def write_tokenizer(folder, *, mean):
    """The words of the moods; ``mean``: the model's vectors are pooled over its tokens."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if mean:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')


def start_of(task, backbone, head=None):
    """A delta whose every tensor is drawn; ``head`` is the kind of its head."""
    delta = new_delta(backbone, METHODS[task], task, LABELS[task], head=head, max_length=LENGTH)
    source = np.random.RandomState(1)
    with torch.no_grad():
        for name, tensor in sorted(delta.tensors().items()):
            norm = name.endswith("LayerNorm.weight")
            tensor.copy_(drawn(tensor.shape, source) + (1.0 if norm else 0.0))
    return delta


def write_rows(path, task):
    labels = {"mood": lambda label, telling: label, "score": lambda label, telling: telling / 2}
    rows = [{"sentence1": text, "label": labels[task](label, telling)} for text, label, telling in texts(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
