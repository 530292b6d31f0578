"""Whatever is sent: an answer or a refusal with a document, never a failure of the service (hypothesis)."""

from __future__ import annotations

import json
import shutil

import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from targets import request as request_target

WORDS = st.sampled_from(["rows", "text", "second", "task", "label", "mood", "pair", "score", "w5 w6", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | WORDS
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4)
)
PATHS = st.sampled_from(
    ["/v1/tasks/mood:predict", "/v1/tasks/pair:predict", "/v1/predict", "/v1/tasks/mood:tune", "/v1/tasks/:predict"]
) | st.text(max_size=30).map(lambda name: f"/v1/tasks/{name}:predict")


@pytest.fixture(scope="module")
def target(exported, tmp_path_factory):
    """Raises where the status is 500 or more, or the answer tells a path."""
    copy = shutil.copytree(exported, tmp_path_factory.mktemp("any") / "bundle")
    return request_target(copy)[1]


def sent(path, body):
    return b"POST " + path.replace("\n", " ").encode("utf-8", "surrogatepass") + b"\n" + body


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(PATHS, DOCUMENTS)
@example("/v1/predict", {"rows": [{"text": "w5", "task": "mood"}, {"text": "", "second": ""}]})
@example("/v1/tasks/mood:predict", {"rows": ["w5", {"text": "w6", "second": None}]})
def test_any_document_is_answered_or_refused(target, path, document):
    assert target(sent(path, json.dumps(document).encode())) in {"answered", "refused"}


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(PATHS, st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(target, path, body):
    assert target(sent(path, body)) in {"answered", "refused"}
