"""A backbone's folder: how it pools, and a tokenizer that knows more than the embeddings do."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.pooling import Pooling
from edgepeft.backbones.source import open_backbone
from edgepeft.common.errors import BundleError, UsageError


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny("bert"), tmp_path / "bert")


@pytest.mark.parametrize(
    ("config", "expected", "said"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Pooling.MEAN, ""),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, Pooling.FIRST, ""),
        ({"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True}, Pooling.MEAN, ""),
        ({"pooling_mode": ["mean"]}, Pooling.MEAN, ""),
        ({"pooling_mode": "cls"}, Pooling.FIRST, ""),
        ({"pooling_mode": "max"}, Pooling.FIRST, "pools by max; here texts are pooled as first"),
        ({"pooling_mode": ["mean", "max"]}, Pooling.MEAN, "pools by max and mean; here texts are pooled as mean"),
        ({"pooling_mode_max_tokens": True}, Pooling.FIRST, "pools by max_tokens"),
    ],
)
def test_how_sentence_transformers_pools_is_read_in_both_forms(folder, config, expected, said):
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert open_backbone(str(folder)).pooling is expected
    assert [said in str(note.message) for note in notes] == ([True] if said else [])


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["Transformer", "Pooling", "Normalize"], ""),
        (["Transformer", "Pooling", "Dense", "Normalize"], "modules.json has Dense, which is left out here"),
    ],
)
def test_a_dense_layer_of_sentence_transformers_is_not_left_out_in_silence(folder, tmp_path, monkeypatch, kinds, said):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    listed = [{"idx": i, "path": f"{i}_{kind}", "type": f"a.{kind}"} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    halved = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    for tensors in (None, halved):  # as it is, and converted into the cache
        if tensors:
            save_file(tensors, folder / "model.safetensors")
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            assert open_backbone(str(folder)).pooling is Pooling.MEAN
        assert [said in str(note.message) for note in notes] == ([True] if said else [])


def test_where_the_pooling_that_modules_json_names_is_not_found_a_note_says_how_texts_are_pooled(folder):
    """Files that were fetched one by one: the folder's own were forgotten."""
    listed = [{"path": "", "type": "a.Transformer"}, {"path": "2_Pooling", "type": "a.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.warns(UserWarning, match="Pooling in 2_Pooling, .* is not there: texts are pooled as first here"):
        assert open_backbone(str(folder)).pooling is Pooling.FIRST


@pytest.mark.parametrize(
    ("inside", "beside", "said"),
    [
        (["checkpoint-20", "checkpoint-100"], None, "There is a model in .*checkpoint-100: give that folder"),
        (
            ["0_Transformer"],
            "modules.json",
            "Its model lies in 0_Transformer: move those files up, beside modules.json",
        ),
        ([], "adapter_config.json", "This one is an adapter: edgepeft import FOLDER --backbone"),
    ],
)
def test_a_folder_around_a_model_and_an_adapter_are_told_with_what_to_do(folder, tmp_path, inside, beside, said):
    around = tmp_path / "around"
    (around / "1_Pooling").mkdir(parents=True)
    (around / "1_Pooling" / "config.json").write_text("{}")
    for i, name in enumerate(inside):
        shutil.copytree(folder, around / name)
        os.utime(around / name, (i, i))
    if beside:
        (around / beside).write_text("[]")
    with pytest.raises(UsageError, match=rf"has no config.json; .*{said}"):
        open_backbone(str(around))


@pytest.mark.parametrize(
    ("name", "config", "said"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False}, ""),
        ("sentence_bert_config.json", {"do_lower_case": True}, "sentence_bert_config.json has do_lower_case, which"),
        ("sentence_xlm-roberta_config.json", {"do_lower_case": True}, "the tokenizer keeps capitals: give texts in"),
        ("sentence_bert_config.json", ["do_lower_case"], ""),
        ("config_sentence_transformers.json", {"prompts": {"query": "query: "}, "default_prompt_name": None}, ""),
        ("config_sentence_transformers.json", {"prompts": {"q": ""}, "default_prompt_name": "q"}, ""),
        (
            "config_sentence_transformers.json",
            {"prompts": {"q": "query: ", "d": "passage: "}, "default_prompt_name": "q"},
            "has the prompt 'query: ' (q), which sentence-transformers puts before each text",
        ),
    ],
)
def test_what_sentence_transformers_does_to_texts_and_is_not_done_here_is_said(
    folder, tmp_path, monkeypatch, name, config, said
):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    (folder / name).write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "A": 1, "a": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    halved = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    for normalizer, tensors in ((None, None), (None, halved), (normalizers.Lowercase(), None)):
        if tensors:  # converted into the cache
            save_file(tensors, folder / "model.safetensors")
        if normalizer:
            tokenizer.normalizer = normalizer
        tokenizer.save(str(folder / "tokenizer.json"))
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always")
            assert open_backbone(str(folder)).pooling is Pooling.MEAN
        expected = said and (normalizer is None or "lower_case" not in json.dumps(config))
        assert [said in str(note.message) for note in notes] == ([True] if expected else [])


def test_a_folder_that_lacks_what_it_needs_is_told_with_what_to_do(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(UsageError, match=r"quantization_config is gptq\); give the checkpoint that they were made of"):
        open_backbone(str(folder))
    path.write_text(json.dumps(config | {"hidden_dropout_prob": "0.1"}))
    with pytest.raises(BundleError, match="transformers cannot load"):
        load_model(open_backbone(str(folder)))
    path.write_text(json.dumps(config))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match="Copy the tokenizer's files of the model that it was trained from into it"):
        open_backbone(str(folder)).encoder()
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")
    with pytest.raises(UsageError, match=r"Found model.fp16.safetensors: save the model by transformers' save_pre"):
        open_backbone(str(folder))


def test_weights_that_lack_tensors_are_refused_before_transformers_draws_them(folder):
    """Names of DataParallel's begin with ``module.``; where a mean is read, nothing else looked for a tensor before."""
    tensors = load_file(folder / "model.safetensors")
    save_file({f"module.{name}": tensor for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(BundleError, match="lacks 37 of the tensors that its"):
        load_model(open_backbone(str(folder)))


def test_an_added_token_that_has_no_embedding_is_refused_before_anything_is_trained(folder):
    backbone = open_backbone(str(folder))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    names = [f"extra {i}" for i in range(backbone.architecture.vocab_size - tokenizer.get_vocab_size() + 1)]
    tokenizer.add_tokens(names[:-1])
    tokenizer.save(str(folder / "tokenizer.json"))
    backbone.encoder()  # each has an embedding
    tokenizer.add_tokens(names[-1:])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(UsageError, match=f"the added token '{names[-1]}', whose id has no embedding"):
        backbone.encoder()


def test_a_folder_of_the_hubs_cache_whose_files_are_links_is_a_backbone_and_its_bundle_has_files(folder, tmp_path):
    """As huggingface_hub lays it out: snapshots/REVISION/NAME leads to ../../blobs/HASH."""
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.training.exporting.backbone import write_backbone

    model = tmp_path / "hub" / "models--someone--bert"
    (snapshot := model / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (model / "blobs").mkdir()
    for n, path in enumerate(path for path in folder.iterdir() if path.is_file()):
        path.rename(model / "blobs" / f"{n:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{n:064x}")
    (tmp_path / "bundle").mkdir()
    write_backbone(open_backbone(str(snapshot)), tmp_path / "bundle", "fp32")
    assert Bundle(tmp_path / "bundle").checkpoint
    assert not [path for path in (tmp_path / "bundle").rglob("*") if path.is_symlink()]
