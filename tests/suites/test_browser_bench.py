"""The program that measures beside Transformers.js: what it refuses, the lengths of its texts, and when scores are not alike."""

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from bench.browser.__main__ import main
from bench.browser.cases import apart, texts_of
from edgepeft.common.errors import EdgepeftError


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main([*map(str, arguments)])
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_is_not_there_is_named_in_a_line(tmp_path, capsys):
    work, modules = tmp_path / "work", tmp_path / "node_modules"
    modules.mkdir()
    prepare = ("prepare", work, "--backbone", tmp_path, "--modules", modules)
    assert "npm install --prefix FOLDER --ignore-scripts @huggingface/transformers" in refused(capsys, *prepare)
    assert "bench.browser prepare" in refused(capsys, "measure", work)
    assert "--rounds must be at least 1" in refused(capsys, "measure", work, "--rounds", 0)
    for name in ("@huggingface/transformers", "onnxruntime-web", "playwright-core"):
        (modules / name).mkdir(parents=True)
        (modules / name / "package.json").write_text('{"version": "1.0.0"}')
    work.mkdir()
    assert "is there already" in refused(capsys, *prepare)
    other = tmp_path / "other.json"
    other.write_text('{"schema": "edgepeft.suite/1"}')
    assert "is left as it is" in refused(capsys, "measure", work, "--json", other)


def test_a_text_has_as_many_tokens_as_it_should(tmp_path):
    words = {
        word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "##ness", "film", "a", "bad"))
    }
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    (tmp_path / "backbone").mkdir()
    tokenizer.save(str(tmp_path / "backbone" / "tokenizer.json"))
    (found,) = texts_of(tmp_path, ((3, 128, 25),))
    assert [len(tokenizer.encode(text).ids) for text in found] == [3, 128, 25]
    assert not any(1 in tokenizer.encode(text).ids for text in found)


def test_scores_of_another_model_are_refused():
    own = [{"good": 0.7, "bad": 0.3}, {"good": 0.2, "bad": 0.8}]
    near = [{"bad": 0.30002, "good": 0.69998}, {"bad": 0.8, "good": 0.2}]
    assert apart(own, near) == pytest.approx(2e-5)
    with pytest.raises(EdgepeftError, match="not the same task"):
        apart(own, [near[1], near[0]])
    with pytest.raises(EdgepeftError, match="not the same task"):
        apart([own[0]] * 2, [own[0]] * 2)
    with pytest.raises(EdgepeftError, match="not the same task"):
        apart(own, [{"bad": float("nan"), "good": 0.7}, near[1]])
