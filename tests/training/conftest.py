"""A tiny random BERT on disk, and a task that it can learn in seconds: which of two sets of words a text is from."""

import json

import pytest
import torch
import transformers
from moods import BAD, FILLER, GOOD, SPECIAL, texts
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from edgepeft.backbones.source import open_backbone


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """What is compared bit for bit is computed on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL + GOOD + BAD + FILLER),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.05,
    )
    transformers.BertModel(config).save_pretrained(folder)
    vocabulary = {word: i for i, word in enumerate(SPECIAL + GOOD + BAD + FILLER)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="session")
def backbone(backbone_folder):
    return open_backbone(str(backbone_folder))


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "moods.jsonl"
    path.write_text("".join(json.dumps({"sentence1": t, "label": label}) + "\n" for t, label, _ in texts(60)))
    return path
