"""A task that cannot be opened, whatever is wrong with it: it is named, and every other task is answered."""

from __future__ import annotations

import json
import shutil

import pytest
from cards import restated

pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")

from bad_tasks import BAD, hung, spoil
from served import serving

from edgepeft.common.errors import BundleError
from edgepeft.deploy.verify import read_check
from edgepeft.runtime.runtime import Runtime
from edgepeft.tasks._answers import Prediction


@pytest.mark.parametrize("name", BAD)
def test_a_malformed_task_is_an_error_of_its_own_and_the_others_answer(bundle, name):
    spoil(bundle, BAD[name])
    with Runtime(bundle, cache=False, threads=1) as runtime:
        with pytest.raises(BundleError):
            runtime.predict("mood", ["w5"])
        assert isinstance(runtime.predict("pair", ["w5"])[0], Prediction)
        found = runtime.predict_mixed(["mood", "pair"], ["w5", "w6"], strict=False)
        assert [type(each) for each in found] == [BundleError, Prediction]


def test_a_malformed_task_is_marked_at_the_start_and_later_and_changes_are_still_taken_over(bundle, tmp_path, exported):
    spoil(bundle, BAD["a placeholder id of thirty digits"])
    with serving(bundle, tmp_path, "--no-cache") as own:
        assert own.get("/readyz")[2]["unavailable"] == ["mood"]
        listed = {task["name"]: task["available"] for task in own.get("/v1/tasks")[2]["tasks"]}
        assert listed == {"mood": False, "pair": True, "score": True}
        assert own.predict("mood", {"text": "w5"})[0] == 503
        assert own.predict("pair", {"text": "w5"})[0] == 200
        assert "task mood cannot be run" in own.log
        answers = own.post("/v1/predict", {"rows": [{"text": "w5", "task": t} for t in ("mood", "pair")]})[2]["answers"]
        assert [list(answer) for answer in answers] == [["error"], ["prediction"]]
        for file in ("tasks/mood.onnx", "edgepeft.json"):
            shutil.copy(exported / file, bundle / f"{file}.fresh")
            (bundle / f"{file}.fresh").replace(bundle / file)
        own.wait_for(lambda: own.get("/readyz")[2]["unavailable"] == [])
        assert own.predict("mood", {"text": "w5"})[0] == 200
        spoil(bundle, BAD["nodes without inputs"], "score")
        own.wait_for(lambda: own.get("/readyz")[2]["unavailable"] == ["score"])
        assert own.predict("mood", {"text": "w5"})[0] == 200


def test_without_its_tokenizer_no_task_counts_as_available(bundle, tmp_path):
    (bundle / "tokenizer.json").unlink()
    with serving(bundle, tmp_path, "--no-cache") as own:  # with the cache tasks that answered elsewhere are not tried
        assert own.get("/readyz")[2]["unavailable"] == ["mood", "pair", "score"]
        assert "tokenizer.json cannot be read" in own.log


def test_a_task_whose_probabilities_are_none_fails_alone_and_the_service_stays_ready(bundle, tmp_path):
    restated(bundle, "mood", chosen={"temperature": 1e-320})
    with serving(bundle, tmp_path, "--no-cache") as own:
        rows = [{"text": "w5", "task": task} for task in ("mood", "pair", "mood", "score")]
        status, _, answer = own.post("/v1/predict", {"rows": [*rows, "w6"]})
        kinds = ["error", "prediction", "error", "prediction", "embedding"]
        assert (status, [[*each] for each in answer["answers"]]) == (200, [[kind] for kind in kinds])
        assert answer["answers"][0]["error"]["code"] == "task_unavailable"
        assert own.predict("mood", {"text": "w5"})[0] == 503
        assert own.get("/readyz")[0] == 200
        assert "Traceback" not in own.log and "task mood gives NaN or an infinite number" in own.log


def test_names_of_tasks_are_kept_from_whoever_has_no_token(bundle, tmp_path):
    spoil(bundle, BAD["no nodes"])
    (tmp_path / "token").write_text("0123456789abcdef0123")
    (tmp_path / "token").chmod(0o400)
    with serving(bundle, tmp_path, "--no-cache", "--token-file", tmp_path / "token") as own:
        assert own.get("/readyz")[2] == {"status": "ok", "unavailable_tasks": 1}
        own.token = "0123456789abcdef0123"
        assert own.get("/readyz")[2]["unavailable"] == ["mood"]


def test_sigterm_ends_the_service_while_a_native_call_hangs(exported, tmp_path):
    outcome = hung(exported, tmp_path)
    assert outcome["answer"] == 504
    assert outcome["exit_code"] == 1
    assert "Timeout" in (tmp_path / "hung.log").read_text()  # with what each thread was doing


def test_a_check_file_of_a_type_that_numpy_lacks_is_refused_by_name():
    header = json.dumps({"logits": {"dtype": "BF16", "shape": [1, 1], "data_offsets": [0, 2]}}).encode()
    with pytest.raises(BundleError, match=r"mood\.check"):
        read_check(len(header).to_bytes(8, "little") + header + b"\0\0", "mood.check")
