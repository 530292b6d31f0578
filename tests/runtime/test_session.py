"""Sessions: threads that the host can keep busy, in one pool on demand, none that spins under a quota; bounded in number.

The least recently used goes, and comes back with the next request to it.
"""

import gc
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx
import pytest
from deltas import TEXTS, random_delta, saved
from method_examples import examples
from tolerance import require_alike

from edgepeft.backbones.source import open_backbone
from edgepeft.device import machine
from edgepeft.methods.base import methods
from edgepeft.runtime import session as session_module
from edgepeft.runtime import session_pool
from edgepeft.runtime.runtime import Runtime
from edgepeft.runtime.session import MAX_SESSIONS, SessionLru, most_sessions, open_session, session_options
from edgepeft.training.exporting.bundle import export_bundle

METHODS = ["bitfit", "layernorm", "lora", "spartan", "top-k", "prompt-t"]
UPPER = {"skip_layers": 1}  # these leave a layer to be shared
TASKS = [(name, name, asdict(examples(methods()[name])[0])) for name in METHODS] + [
    ("lora-2", "lora", asdict(examples(methods()["lora"])[0])),
    ("upper-lora", "lora", {"rank": 2, **UPPER}),
    ("upper-pfeiffer", "pfeiffer", {"bottleneck": 4, **UPPER}),
    ("upper-pfeiffer-2", "pfeiffer", {"bottleneck": 4, **UPPER}),
    ("upper-houlsby", "houlsby", {"bottleneck": 3, "norms": False, **UPPER}),
    ("upper-top-k", "top-k", {"layers": 1}),
]


@pytest.mark.parametrize(
    ("profile", "allowed", "quota", "threads"),
    [
        (None, (0, 1, 2, 3), None, 4),
        (2, (0, 1, 2, 3), None, 2),
        (8, (0, 1, 2, 3), None, 4),
        (None, (5,), None, 1),
        (None, (0, 1, 2, 3), 2.5, 2),
        (4, (0, 1, 2, 3), 0.5, 1),
        (1, (0, 1, 2, 3), 3.0, 1),
    ],
)
def test_threads_are_the_least_of_profile_affinity_and_quota(monkeypatch, profile, allowed, quota, threads):
    monkeypatch.setattr(machine, "affinity", lambda: allowed)
    for module in (machine, session_module):
        monkeypatch.setattr(module, "cpu_quota", lambda *_: quota)
    options = session_options(profile)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, 1)
    spins = "1" if quota is None else "0"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == spins


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
@pytest.mark.parametrize(("quota", "more"), [(None, [2, 0, 0]), (2.5, [1, 1, 1])])
def test_sessions_share_one_pool_where_they_shall_and_no_quota_holds(quota, more):
    code = f"""
import os, numpy as np
from onnx import TensorProto, helper
from edgepeft.device import machine
from edgepeft.runtime import session
machine.affinity, machine.cpu_quota, session.cpu_quota = lambda: (0, 1, 2), lambda *_: {quota}, lambda: {quota}
x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in "xy")
model = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "squared", [x], [y])
model = helper.make_model(model, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
kept, n = [], len(os.listdir("/proc/self/task"))
session.share_threads()
for _ in range(3):
    kept.append(session.plain_session(model))
    assert (kept[-1].run(None, {{"x": np.ones((4, 4), np.float32)}})[0] == 4).all()
    print(len(os.listdir("/proc/self/task")) - n)
    n = len(os.listdir("/proc/self/task"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [*map(int, done.stdout.split())] == more, done.stderr


class Session:
    pass


@pytest.fixture(scope="module")
def different(tiny, tmp_path_factory):
    """Tasks of more structures than may be open, and a second one of two of them."""
    folder = tmp_path_factory.mktemp("different")
    backbone = open_backbone(str(tiny("bert")))
    paths = [saved(random_delta(backbone, name, task, settings=s), folder / task) for task, name, s in TASKS]
    export_bundle(backbone, paths, folder / "bundle", texts=TEXTS)
    return folder / "bundle"


@pytest.fixture
def alive(monkeypatch):
    """The sessions on whole models that somebody still holds; at most four may be."""
    found = weakref.WeakSet()
    plain = session_pool.SessionPool._open

    def opened(self, *of):
        session = plain(self, *of)
        found.add(session)
        return session

    monkeypatch.setattr(session_pool.SessionPool, "_open", opened)
    monkeypatch.setattr(session_pool, "most_sessions", lambda n_tensors: 4)
    return found


@pytest.mark.parametrize(
    ("given", "reads", "kept", "left"),
    [
        (3, 3, True, 3),
        (3, 2, True, 3),
        (2, 1, True, 1),  # without what nothing reads
        (2, 2, False, 2),
        (1, 1, True, 1),
    ],
)
def test_a_row_alone_keeps_patterns_of_memory_where_its_inputs_tell_lengths_apart(given, reads, kept, left):
    """ONNX Runtime keys them by the exclusive or of all dimensions, which of two inputs [1, T] is 0 for every T."""
    inputs = ("input_ids", "token_type_ids", "attention_mask")[:given]
    sums = " ".join(f"r{i} = ReduceSum <keepdims = 0> ({inputs[i]}) a{i + 1} = Add (a{i}, r{i})" for i in range(reads))
    body = f"a0 = Constant <value = int64 {{0}}> () {sums} y = Identity (a{reads})"
    taken = ", ".join(f"int64[b, s] {name}" for name in inputs)
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> g ({taken}) => (int64 y) {{ {body} }}')
    for one_row, names in ((False, inputs), (True, inputs[:left])):
        session = open_session(model, Path(), 1, one_row=one_row)
        assert session.get_session_options().enable_mem_pattern == (one_row and kept)
        assert [value.name for value in session.get_inputs()] == [*names]
        for n in (2, 5, 3):
            assert session.run(None, {name: np.ones((1, n), np.int64) for name in names})[0] == n * reads


def test_the_least_recently_used_goes_and_never_the_one_just_used():
    gone = []
    kept = [Session() for _ in range(5)]
    sessions = SessionLru(3, gone.append)
    for session in kept[:3]:
        sessions.make_room()
        sessions.add(session)
    sessions.used(kept[0])
    for session in kept[3:]:
        sessions.make_room()
        sessions.add(session)
    assert gone == [kept[1], kept[2]] and len(sessions) == 3
    sessions.used(kept[1])
    assert len(sessions) == 3


def test_a_session_that_nobody_holds_takes_no_place():
    gone = []
    sessions = SessionLru(1, gone.append)
    sessions.add(Session())
    gc.collect()
    sessions.make_room()
    assert not gone and len(sessions) == 0


@pytest.mark.parametrize(
    ("allowed", "n_tensors", "expected"),
    [
        ("65530\n", 211, MAX_SESSIONS),
        ("65530\n", 400, 81),
        ("65530\n", 0, MAX_SESSIONS),
        ("100", 400, 4),
        ("?", 9, 128),
    ],
)
def test_sessions_take_at_most_half_of_the_mappings_that_the_system_allows(tmp_path, allowed, n_tensors, expected):
    (tmp_path / "max_map_count").write_text(allowed)
    assert most_sessions(n_tensors, tmp_path / "max_map_count") == expected
    assert most_sessions(n_tensors, tmp_path / "missing") == MAX_SESSIONS


def test_tasks_beyond_the_bound_answer_as_ever_and_no_more_sessions_stay_open(different, alive):
    with Runtime(different, threads=1, cache=False) as runtime:
        tasks = runtime.tasks
        inputs = runtime.bundle.encoder().encode(TEXTS[:5], 40).inputs
        for _ in range(2):
            for task in tasks:
                alone = Runtime(different, threads=1, cache=False)
                require_alike(runtime.logits(task, inputs), alone.logits(task, inputs), different)
                alone.close()
                gc.collect()
                assert len(alive) <= 4


def test_mixed_batches_and_all_tasks_on_one_input_stay_within_the_bound(different, alive):
    with Runtime(different, threads=1, cache=False) as runtime:
        tasks = list(runtime.tasks)
        alone = {task: runtime.predict(task, TEXTS[:3]) for task in tasks}
        for _ in range(2):
            found = runtime.predict_mixed([*tasks, None], TEXTS[:1] * (len(tasks) + 1))
            for task, answer in zip(tasks, found, strict=False):
                require_alike(answer.logits, alone[task][0].logits, different)
            for task, answers in runtime.predict_all(tasks, TEXTS[:3]).items():
                for answer, expected in zip(answers, alone[task], strict=True):
                    require_alike(answer.logits, expected.logits, different)
            gc.collect()
            assert len(alive) <= 4


def test_threads_that_take_each_others_place_get_their_answers(different, alive):
    with Runtime(different, threads=1, cache=False) as runtime, ThreadPoolExecutor(6) as pool:
        alone = {task: runtime.predict(task, TEXTS[:2]) for task in runtime.tasks}
        jobs = [(task, pool.submit(runtime.predict, task, TEXTS[:2])) for _ in range(3) for task in runtime.tasks]
        jobs_of_all = [pool.submit(runtime.predict_all, runtime.tasks, TEXTS[:2]) for _ in range(3)]
        found = [(task, job.result()) for task, job in jobs]
        found += [(task, answers) for job in jobs_of_all for task, answers in job.result().items()]
    for task, answers in found:
        for answer, expected in zip(answers, alone[task], strict=True):
            require_alike(answer.logits, expected.logits, different)
