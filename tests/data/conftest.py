"""A small file of labelled texts."""

import json

import pytest
from moods import texts


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "moods.jsonl"
    path.write_text("".join(json.dumps({"sentence1": t, "label": label}) + "\n" for t, label, _ in texts(60)))
    return path
