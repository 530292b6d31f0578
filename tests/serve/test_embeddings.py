"""``/v1/embeddings`` as OpenAI's clients ask: their fields, their errors, the runtime's vectors."""

from __future__ import annotations

import base64

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from deltas import TEXTS, random_delta, saved
from served import serving

from edgepeft.backbones.source import open_backbone
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

PATH, ASKED = "/v1/embeddings", ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14", "w20 w21", "w5"]


@pytest.fixture(scope="module")
def bundle(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    backbone = open_backbone(str(tiny("bert", mean=True)))
    kinds = {"near": {"kind": "embedding"}, "found": {"kind": "embedding", "seed": 1}, "mood": {}}
    deltas = [
        saved(random_delta(backbone, "bitfit", name, None if more else ("no", "yes"), **more), folder / name)
        for name, more in kinds.items()
    ]
    export_bundle(backbone, deltas, folder / "bundle", texts=TEXTS[:9])
    return folder / "bundle"


@pytest.fixture(scope="module")
def service(bundle, tmp_path_factory):
    with serving(bundle, tmp_path_factory.mktemp("serve"), "--no-cache") as running:
        yield running


@pytest.fixture(scope="module")
def offline(bundle):
    with Runtime(bundle, cache=False) as runtime:
        yield {task: np.stack([a.vector for a in runtime.predict(task, ASKED)]) for task in ("near", "found")}


@pytest.mark.parametrize("task", ["near", "found"])
def test_a_list_has_the_runtimes_vectors_in_openais_form(service, offline, task):
    status, _, document = service.post(PATH, {"model": task, "input": ASKED})
    assert (status, document["object"], document["model"]) == (200, "list", task)
    assert [(each["object"], each["index"]) for each in document["data"]] == [("embedding", i) for i in range(5)]
    np.testing.assert_allclose([each["embedding"] for each in document["data"]], offline[task], atol=1e-4)
    words = sum(len(text.split()) for text in ASKED)
    assert document["usage"] == {"prompt_tokens": words + 2 * 5, "total_tokens": words + 2 * 5}  # and [CLS], [SEP]


def test_one_text_in_base64_and_fewer_dimensions(service, offline):
    body = {"model": "near", "input": ASKED[0], "encoding_format": "base64", "dimensions": 8, "user": "u"}
    (found,) = service.post(PATH, body)[2]["data"]
    vector = np.frombuffer(base64.b64decode(found["embedding"]), "<f4")
    expected = offline["near"][0, :8] / np.linalg.norm(offline["near"][0, :8])
    np.testing.assert_allclose(vector, expected, atol=1e-4)


REFUSED = [
    ({"model": "moot", "input": "a"}, 404, "model_not_found", "model"),
    ({"model": "mood", "input": "a"}, 400, "no_embedding", "model"),
    ({"model": "near", "input": ["a", " "]}, 400, "empty_text", "input"),
    ({"model": "near", "input": []}, 422, "invalid", "input"),
    ({"model": "near", "input": [[5, 6]]}, 422, "invalid", "input"),
    ({"model": "near", "input": "a", "dimensions": 33}, 400, "invalid", "dimensions"),
    ({"model": "near", "input": "a", "dimensions": 0}, 422, "invalid", "dimensions"),
    ({"model": "near", "input": "a", "encoding_format": "int8"}, 422, "invalid", "encoding_format"),
    ({"input": "a"}, 422, "invalid", "model"),
]


@pytest.mark.parametrize(("body", "status", "code", "param"), REFUSED)
def test_errors_have_openais_form(service, body, status, code, param):
    found, _, document = service.post(PATH, body)
    assert found == status
    error = document["error"]
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert error["param"] == param and error["message"]


def test_rows_of_several_tasks_share_a_batch(service, offline):
    rows = [{"text": text, "task": task} for text in ASKED for task in ("near", "found", "mood")]
    answers = service.post("/v1/predict", {"rows": rows})[2]["answers"]
    for i, task in enumerate(("near", "found")):
        vectors = [answer["prediction"]["vector"] for answer in answers[i::3]]
        np.testing.assert_allclose(vectors, offline[task], atol=1e-4)
    pair = service.predict("near", {"text": ASKED[0], "second": ASKED[1]})[2]["predictions"][0]
    assert pair["cosine"] == pytest.approx(float(offline["near"][0] @ offline["near"][1]), abs=1e-4)
    listed = {each["name"]: each["kind"] for each in service.get("/v1/tasks")[2]["tasks"]}
    assert listed == {"near": "embedding", "found": "embedding", "mood": "classification"}
