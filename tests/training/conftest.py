"""A tiny random BERT on disk, and a task that it can learn in seconds: which of two sets of words a text is from."""

import pytest
import torch
import transformers
from moods import write_texts
from small import SIZES, write_backbone, write_tokenizer

from edgepeft.backbones.source import open_backbone


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """What is compared bit for bit is computed on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny-bert")
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**SIZES, initializer_range=0.05)).save_pretrained(folder)
    write_tokenizer(folder, mean=True)
    return folder


@pytest.fixture(scope="session")
def backbone(backbone_folder):
    return open_backbone(str(backbone_folder))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return write_backbone(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def data_file(tmp_path):
    return write_texts(tmp_path / "moods.jsonl")
