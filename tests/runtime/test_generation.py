"""Text of the two graphs, token for token as transformers writes it: small random models, and one with learnt weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tiny import SIZES, ragged
from writing import MINI, Bare

from edgepeft.backbones.source import open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bundle.bundle import Bundle
from edgepeft.bundle.manifest import Manifest
from edgepeft.common.errors import BundleError, DoesNotFit, UsageError
from edgepeft.deploy.verify import audit
from edgepeft.runtime.decoding import Decoding
from edgepeft.runtime.generation import TextState
from edgepeft.runtime.runtime import Runtime

VARIANTS: dict[str, dict[str, Any]] = {
    "relu, tied": {},
    "gated, untied": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "one decoder layer": {"num_layers": 3, "num_decoder_layers": 1, "d_kv": 9},
}
MANNERS = {
    "greedy": Decoding(12),
    "no repeated pairs": Decoding(12, no_repeat_ngram=2),
    "beams": Decoding(12, beams=4),
    "beams, short": Decoding(12, beams=4, length_penalty=0.6),
    "beams, long": Decoding(12, beams=4, length_penalty=2.0),
    "beams, no repeated word": Decoding(9, beams=3, no_repeat_ngram=1),
    "one token": Decoding(1, beams=2),
}


@pytest.fixture(scope="module", params=VARIANTS)
def bare(request: pytest.FixtureRequest, tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bare:
    # A token that these models write often, so that rows end at different steps.
    often = {"relu, tied": 14, "gated, untied": 51, "one decoder layer": 36}[request.param]
    folder = tiny("t5", eos_token_id=often, **VARIANTS[request.param])
    return Bare(folder, tmp_path_factory.mktemp("bare"))


@pytest.mark.parametrize("decoding", MANNERS.values(), ids=MANNERS)
def test_ragged_rows_are_written_as_transformers_writes_them(bare: Bare, decoding: Decoding):
    for seed, shape in enumerate([(1, 5), (6, 9)]):
        bare.require_same(ragged(*shape, SIZES["t5"], seed), decoding)


def test_what_ends_at_once_is_empty_and_leaves_the_batch(tiny: Callable[..., Path], tmp_path: Path):
    rows = ragged(6, 9, SIZES["t5"])
    first = Bare(tiny("t5"), tmp_path).runtime.generator.write(None, rows, Decoding(1))
    ends = Bare(tiny("t5", eos_token_id=first[2].tokens[0]), tmp_path)
    for decoding in (Decoding(5), Decoding(5, beams=3)):
        written = ends.require_same(rows, decoding)
        assert decoding.beams > 1 or written[2] == ((), True)


def test_a_row_does_not_depend_on_its_company(bare: Bare):
    rows, decoding = ragged(6, 9, SIZES["t5"]), Decoding(8, beams=2)
    together = bare.runtime.generator.write(None, rows, decoding)
    for row, expected in enumerate(together):
        alone = {name: values[row : row + 1] for name, values in rows.items()}
        assert bare.runtime.generator.write(None, alone, decoding) == [expected]


def test_batches_are_cut_where_caches_would_be_too_large(bare: Bare, monkeypatch: pytest.MonkeyPatch):
    rows, decoding, generator = ragged(6, 9, SIZES["t5"]), Decoding(8, beams=2), bare.runtime.generator
    whole = generator.write(None, rows, decoding)
    cut = 2 * generator.row_bytes(9, decoding)
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: 2 * cut)
    assert len([*generator.parts(np.full(6, 9), decoding)]) == 3
    assert generator.write(None, rows, decoding) == whole
    monkeypatch.setattr("edgepeft.runtime.generation.memory_bytes", lambda: cut // 2)
    with pytest.raises(DoesNotFit, match=r"9 tokens with 2 beams of 8 new tokens .* fewer beams or a smaller"):
        generator.write(None, rows, decoding)


def test_numbers_that_cannot_be_are_refused(bare: Bare):
    for given in ({"max_new_tokens": 0}, {"beams": 0}, {"no_repeat_ngram": -1}, {"length_penalty": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(given))):
            Decoding(**given)
    with pytest.raises(UsageError, match="31 beams are too many for 60 tokens"):
        bare.runtime.generator.write(None, ragged(1, 3, SIZES["t5"]), Decoding(beams=31))


@pytest.mark.parametrize("file", ["encoder.onnx", "decoder.onnx"])
def test_a_bundle_with_one_of_the_two_graphs_is_refused_by_name(tiny: Callable[..., Path], tmp_path: Path, file: str):
    bare = Bare(tiny("t5"), tmp_path)
    assert (tmp_path / file).stat().st_size < 200_000
    (tmp_path / file).unlink()
    with pytest.raises(BundleError, match=f"{file} cannot be read"):
        bare.runtime.generator.session(None)
    assert file in audit(tmp_path)[0].problem
    manifest = tmp_path / "edgepeft.json"
    document = json.loads(manifest.read_text())
    del document["backbone"]["text"][file.removesuffix(".onnx")]
    manifest.write_text(json.dumps(document))
    with pytest.raises(BundleError, match=f"backbone.text.{file.removesuffix('.onnx')}"):
        Manifest.read(tmp_path)


def restated(bundle: Path, file: str, model: onnx.ModelProto) -> None:
    """Put another graph in a bundle, and its hash in the manifest."""
    content, manifest = model.SerializeToString(), bundle / "edgepeft.json"
    (bundle / file).write_bytes(content)
    document = json.loads(manifest.read_text())
    document["backbone"]["text"][file.removesuffix(".onnx")] = hashlib.sha256(content).hexdigest()
    manifest.write_text(json.dumps(document))


@pytest.mark.parametrize("sizes", [{"num_decoder_layers": 1}, {"num_heads": 2}, {"d_kv": 10}])
def test_a_decoder_of_other_caches_than_the_encoders_is_refused_by_name(tiny: Any, tmp_path: Path, sizes: Any):
    Bare(tiny("t5"), tmp_path)
    other = open_backbone(str(tiny("t5", **sizes)))
    restated(tmp_path, "decoder.onnx", other.architecture.text_graphs(other.checkpoint).decoder)
    with pytest.raises(BundleError, match=r"different models, for cross\.key\.\d is not of the same sizes"):
        Bundle(tmp_path).text_graphs  # noqa: B018


def test_caches_that_are_shorter_than_their_mask_stop_in_words(tiny: Callable[..., Path], tmp_path: Path):
    """Sizes that only a run tells: the encoder gives keys of all tokens but the last."""
    Bare(tiny("t5"), tmp_path)
    encoder = onnx.load(tmp_path / "encoder.onnx", load_external_data=False)
    for node in encoder.graph.node:
        node.output[:] = ["long" if name == "cross.key.0" else name for name in node.output]
    for name, value in (("first", 0), ("last", -1), ("axis", 2)):
        encoder.graph.initializer.append(numpy_helper.from_array(np.array([value]), f"of_keys.{name}"))
    bounds = [f"of_keys.{name}" for name in ("first", "last", "axis")]
    encoder.graph.node.append(onnx.helper.make_node("Slice", ["long", *bounds], ["cross.key.0"]))
    restated(tmp_path, "encoder.onnx", encoder)
    with Runtime(tmp_path, threads=1, cache=False) as runtime, pytest.raises(BundleError, match="stops in the decoder"):
        runtime.generator.write(None, ragged(2, 5, SIZES["t5"]), Decoding(2))


def test_bundles_without_text_graphs_open_and_say_that_they_write_none(tiny: Callable[..., Path], tmp_path: Path):
    manifest = Bare(tiny("t5"), tmp_path).manifest
    before = manifest.model_copy(update={"backbone": manifest.backbone.model_copy(update={"text": None})})
    before.write(tmp_path)
    with pytest.raises(BundleError, match="must be exported again"):
        Bundle(tmp_path).text_graphs  # noqa: B018


def test_8_bit_weights_write_what_float32_does_of_one_clear_word(tiny: Callable[..., Path], tmp_path: Path):
    folder, rows = tiny("t5", vocab_size=1100), ragged(6, 9, SIZES["t5"])
    for weights in ("fp32", "int8"):
        (tmp_path / weights).mkdir()
    whole, rounded = (Bare(folder, tmp_path / weights, weights).runtime.generator for weights in ("fp32", "int8"))
    ids, order = np.zeros(6, np.int64), np.arange(6)
    exact, found = (TextState(each.session(None), rows).step(ids, order) for each in (whole, rounded))
    assert 0 < np.abs(exact - found).max() < 0.1 * np.abs(exact).max()


@pytest.mark.skipif(not MINI.is_dir(), reason="t5-mini, a small T5 with learnt weights, is not beside the repository")
@pytest.mark.parametrize("decoding", [Decoding(10), Decoding(10, beams=4), Decoding(10, beams=4, no_repeat_ngram=2)])
def test_learnt_weights_write_what_they_write_in_transformers(tmp_path: Path, decoding: Decoding):
    bare = Bare(MINI, tmp_path)
    texts = [
        "mr sentence1: a wonderful film",
        "mr sentence1: dull , long and without any sense of wit",
        "summarize: it",
    ]
    rows = bare.backbone.encoder().encode([Text(text) for text in texts], 40).inputs
    written = bare.require_same(rows, decoding)
    assert bare.runtime.bundle.encoder().decode(written[0][0]) == "positive"
