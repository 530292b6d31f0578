"""Labels as words behind a prompt: log-probabilities that transformers gives each label's tokens, among its rivals'."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deltas import TEXTS, random_delta, saved
from tiny import write_model

from edgepeft.backbones.hooks import attached, load_model
from edgepeft.backbones.source import open_backbone
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import Unwritable, UsageError
from edgepeft.deploy.cost import bundle_cost
from edgepeft.runtime import label_words
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.label_words import decoding_in
from edgepeft.runtime.prediction import TextAnswer
from edgepeft.runtime.runtime import Runtime
from edgepeft.training.exporting.bundle import export_bundle

END = 3
INSTRUCTION = " ".join(f"w{10 + 3 * i % 40}" for i in range(12))
LABELS = ("one", "both", "long", "part")
WORDS = ("w6", "w6 w7", "w8 w9 w5", "w8 w9 w6")  # one begins another, two part at their third word
TOKENS = ((6, END), (6, 7, END), (8, 9, 5, END), (8, 9, 6, END))
WIDE = {"head_dim": 16, "eos_token_id": END}
KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", WIDE),
    ("mistral", WIDE),
    ("qwen2", WIDE),
    ("qwen3", WIDE),
    ("gemma3_text", WIDE | {"query_pre_attn_scalar": 16}),
    ("llama", {"eos_token_id": END}),  # as narrow heads as are not lowered
]


def scored(backbone: Any, task: str, method: str = "lora", seed: int = 0, **settings: Any) -> Any:
    template = {"source": f"{INSTRUCTION} {{text}}", "targets": WORDS}
    return random_delta(
        backbone, method, task, LABELS, head="labels", seed=seed, settings=settings, template=template, max_length=30
    )


def by_hand(model: Any, modules: Any, ids: list[int]) -> np.ndarray:
    """Each label's log-probability: at each token, among the tokens by which a label goes on."""
    scores = np.zeros(len(TOKENS))
    for i, target in enumerate(TOKENS):
        with torch.no_grad(), attached(model, modules):
            given = torch.tensor([[*ids, *target[:-1]]])
            logits = model(input_ids=given, attention_mask=torch.ones_like(given), use_cache=False).logits[0].double()
        for n, token in enumerate(target):
            rivals = sorted({other[n] for other in TOKENS if other[:n] == target[:n]})
            of = logits[len(ids) - 1 + n]
            scores[i] += float(of[token] - of[rivals].logsumexp(0))
    return scores


@pytest.mark.parametrize(("kind", "sizes"), KINDS, ids=[f"{kind}-{len(sizes)}" for kind, sizes in KINDS])
def test_labels_have_the_probabilities_that_transformers_gives_their_tokens(
    tmp_path: Path, kind: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    backbone = open_backbone(str(write_model(tmp_path / "model", kind, **sizes)))
    delta = scored(backbone, "t", rank=2)
    export_bundle(backbone, [saved(delta, tmp_path / "t")], tmp_path / "bundle", texts=TEXTS[:8], weights="fp32")
    model, texts = load_model(backbone, "eager"), [" ".join(text.first.split()[:9]) for text in TEXTS[:7]]
    modules = {backbone.architecture.site(name): module for name, module in delta.site_modules.items()}
    expected = []
    for text in texts:
        ids = [2, *backbone.encoder().plain_ids(f"{INSTRUCTION} {text}"), 3]  # [CLS] ... [SEP]
        expected.append(by_hand(model, modules, ids))
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        encoded = runtime.bundle.encoder().encode([runtime_text(text) for text in texts], 30).inputs
        given = {name: torch.from_numpy(values) for name, values in encoded.items()}
        with torch.no_grad():
            np.testing.assert_allclose(delta.logits(model, given).numpy(), expected, rtol=0, atol=1e-4)
        for at_once in (16, 1):  # branches of the trie
            monkeypatch.setattr(label_words, "_BRANCHES", at_once)
            np.testing.assert_allclose(runtime.logits("t", encoded), expected, rtol=0, atol=1e-4)
        answers = runtime.predict("t", texts)
        alone = [runtime.predict("t", text)[0] for text in texts]
    for answer, one, row in zip(answers, alone, expected, strict=True):
        assert answer.label == one.label == LABELS[int(row.argmax())]
        np.testing.assert_allclose([*answer.scores.values()], np.exp(row), rtol=0, atol=1e-4)
        np.testing.assert_allclose([*one.scores.values()], np.exp(row), rtol=0, atol=1e-4)


def runtime_text(text: str) -> Any:
    from edgepeft.backbones.tokens import Text

    return Text(f"{INSTRUCTION} {text}")


def test_label_words_and_texts_of_one_structure_are_answered_in_one_call(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama", **WIDE)))
    deltas = [scored(backbone, "a", rank=2), scored(backbone, "b", seed=1, rank=2), scored(backbone, "bias", "bitfit")]
    deltas += [random_delta(backbone, "lora", "text", None, head="text", seed=2, settings={"rank": 2})]
    deltas += [scored(backbone, "prompted", "prompt-r", length=3)]
    paths = [saved(delta, tmp_path / delta.card.task) for delta in deltas]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS[:8], weights="fp32")
    tasks, texts = ["a", "text", "b", "a", "bias", "prompted", "text"], ["w9 w5", "w7", "w8", "w5", "w6 w6", "w9", "w5"]
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        found = runtime.predict_mixed(tasks, texts, decoding=Decoding(4))
        for task, text, answer in zip(tasks, texts, found, strict=True):
            if task == "text":
                assert isinstance(answer, TextAnswer) and answer == runtime.write(task, [text], Decoding(4))[0]
                continue
            (alone,) = runtime.predict(task, [text])
            assert isinstance(answer, type(alone)) and answer.label == alone.label
            np.testing.assert_allclose([*answer.scores.values()], [*alone.scores.values()], rtol=0, atol=1e-5)
        assert {*runtime.predict_all(["a", "text"], ["w5"], Decoding(4))} == {"a", "text"}
        assert runtime.structure("a") is None
        with pytest.raises(UsageError, match="task a writes no text"):
            runtime.write("a", ["w5"])
        # Biases of the output, and prompts, move what PyTorch gives as they move ours.
        model = load_model(backbone, "eager")
        for delta in (deltas[2], deltas[4]):
            encoded = runtime.bundle.encoder().encode([runtime_text(text) for text in texts], 30).inputs
            with torch.no_grad():
                expected = delta.logits(model, {name: torch.from_numpy(values) for name, values in encoded.items()})
            np.testing.assert_allclose(runtime.logits(delta.card.task, encoded), expected.numpy(), rtol=0, atol=1e-4)


def test_labels_for_which_a_text_leaves_no_positions_are_refused(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama", **WIDE)))
    paths = [saved(scored(backbone, "t", rank=2), tmp_path / "t")]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS[:8], weights="fp32")
    most = backbone.architecture.max_length - 2  # the longest labels go on for two tokens before their last one
    with Runtime(tmp_path / "bundle", threads=1, cache=False) as runtime:
        for length, fits in ((most, True), (most + 1, False)):
            ids = np.arange(4, 4 + length, dtype=np.int64)[None] % 40 + 4
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            if fits:
                assert np.exp(runtime.logits("t", inputs)).sum() == pytest.approx(1, abs=1e-5)
            else:
                with pytest.raises(Unwritable, match="the labels of task t take"):
                    runtime.logits("t", inputs)


def test_what_label_words_take_is_counted_with_their_branches(tiny: Callable[..., Path], tmp_path: Path):
    backbone = open_backbone(str(tiny("llama", **WIDE)))
    template = {"source": "{text}", "targets": ("w5", "w6")}  # which part at once
    small = random_delta(backbone, "lora", "small", ("a", "b"), head="labels", settings={"rank": 2}, template=template)
    paths = [saved(delta, tmp_path / delta.card.task) for delta in (scored(backbone, "t", rank=2), small)]
    export_bundle(backbone, paths, tmp_path / "bundle", texts=TEXTS[:8], weights="fp32")
    bundle = Bundle(tmp_path / "bundle")
    found = {task: decoding_in(bundle, task, Decoding(9)) for task in ("t", "small")}
    # Where labels part: behind w6, and behind w8 w9, two tokens on; of the two others behind the text alone.
    assert {task: (each.max_new_tokens, each.beams) for task, each in found.items()} == {"t": (3, 2), "small": (1, 1)}
    counted = {task: bundle_cost(bundle, task, length=16).decoding for task in found}
    assert counted == found
