"""A small file of labelled texts."""

import pytest
from moods import write_texts


@pytest.fixture
def data_file(tmp_path):
    return write_texts(tmp_path / "moods.jsonl")
