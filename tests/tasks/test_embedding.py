"""Embeddings: sentence-transformers' losses, PyTorch's slopes, ranks by a full sort, and what users get wrong."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats

from edgepeft.common.errors import DataError, UsageError
from edgepeft.data.columns import Columns
from edgepeft.data.parts import task_data
from edgepeft.data.row_grouping import grouped, places_of
from edgepeft.data.rows import Row, read_rows
from edgepeft.tasks import embedding
from edgepeft.tasks.base import kind_from_card
from edgepeft.tasks.embedding import Embedding

NUMBERS = [1.0, 3.5, 0.0, 3.5, 2.0]
SCORED, UNSCORED = Embedding(chosen={"dims": 3}), Embedding(chosen={"dims": 3, "scored": False})
NONE = np.full(5, math.nan, np.float32)


def vectors(k: int) -> np.ndarray:
    """[5, k, 3]."""
    i = np.arange(1, 15 * k + 1, dtype=float)
    return 2 * np.sin(i * i).reshape(5, k, 3)


# sentence-transformers 6.2.0 in float64: CoSENTLoss and MultipleNegativesRankingLoss of these vectors, and what they
# give back to some of them, [row, text].
THEIRS = {
    "cosent": (30.80881323480388, {(0, 0): (-1.31463e-05, 0.0001745584, 0.0003473964), (1, 1): (0, 0, 0)}),
    "pairs": (9.866187596339831, {(0, 0): (-1.1768954822, -0.0573800158, 2.2976354986)}),
    "triples": (14.604207557412, {(4, 1): (0.6637448042, 1.0876006213, -0.7987112177)}),
}
THEIRS["cosent"][1][2, 1] = (1.3428350798, 5.9561448901, -3.7116152727)
THEIRS["pairs"][1][4, 1] = (1.687588671, -1.1333264471, 0.7443677016)
THEIRS["triples"][1][2, 2] = (0.6893496301, 0.7283509388, 1.7611310203)
ASKED = {"cosent": (SCORED, 2, NUMBERS), "pairs": (UNSCORED, 2, NONE), "triples": (UNSCORED, 3, NONE)}


@pytest.mark.parametrize("name", THEIRS)
def test_losses_and_their_slopes_are_sentence_transformers(name):
    (kind, k, numbers), (loss, given_back) = ASKED[name], THEIRS[name]
    targets = np.asarray(numbers)
    found, slopes = kind.slopes(vectors(k), targets)
    assert found == pytest.approx(loss, rel=1e-12)
    assert kind.losses(vectors(k), targets).mean() == pytest.approx(loss, rel=1e-12)
    for place, expected in given_back.items():
        np.testing.assert_allclose(slopes[place], expected, atol=1e-10)
    tensor = torch.tensor(vectors(k), requires_grad=True)
    by_torch = kind.loss(tensor, torch.from_numpy(targets))
    assert by_torch.item() == pytest.approx(loss, rel=1e-12)
    by_torch.backward()
    np.testing.assert_allclose(slopes, tensor.grad.numpy(), atol=1e-12)


def test_a_text_beside_a_pair_is_answered_by_its_own_vector_alone():
    logits = grouped(np.eye(3, dtype=np.float32), places_of([1, 2]))
    alone, pair = SCORED.predictions("near", logits, ["", ""])
    assert (alone.logits, pair.logits) == ((1, 0, 0), (0, 1, 0, 0, 0, 1))
    assert "cosine" not in alone.as_json() and pair.as_json()["cosine"] == 0


def test_a_batch_without_an_order_costs_nothing():
    equal = np.full(5, 2.0)
    loss, slopes = SCORED.slopes(vectors(2), equal)
    assert (loss, np.abs(slopes).max()) == (0, 0)
    assert SCORED.loss(torch.tensor(vectors(2)), torch.from_numpy(equal)).item() == 0
    assert SCORED.losses(vectors(2), equal).tolist() == [0] * 5
    zeros = np.zeros((3, 2, 3))  # no direction: cosines of 0, and nothing that is not finite
    assert np.isfinite(UNSCORED.slopes(zeros, NONE[:3])[1]).all()


def test_many_rows_cost_what_they_cost_at_once(monkeypatch):
    given = np.random.default_rng(0).standard_normal((50, 2, 4))
    numbers = np.random.default_rng(1).integers(0, 9, 50)

    def computed() -> list[np.ndarray]:
        return [
            embedding.row_losses(given, numbers),
            embedding.row_losses(given, None),
            embedding.ranks_of_right(given),
        ]

    whole = computed()
    monkeypatch.setattr(embedding, "_BLOCK", 7)
    for one, other in zip(whole, computed(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert whole[0].mean() == pytest.approx(embedding.cosent(given, numbers)[0])


def test_scores_are_correlations_of_the_cosines_by_scipy():
    given, numbers = vectors(2), np.array(NUMBERS)
    cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in given]
    assert SCORED.score("spearman", numbers, given) == pytest.approx(stats.spearmanr(cosines, numbers).statistic)
    assert SCORED.score("pearson", numbers, given) == pytest.approx(stats.pearsonr(cosines, numbers).statistic)
    assert SCORED.plain(given) == pytest.approx(cosines, abs=1e-6)
    assert set(SCORED.errors(numbers, given)["figures"]) == {"spearman", "pearson", "pearson_spearman"}


def test_recall_is_by_the_place_of_the_right_text_among_all():
    source = np.random.default_rng(0)
    given = source.standard_normal((40, 2, 4))
    given[:, 1] += given[:, 0]
    units = given / np.linalg.norm(given, axis=-1, keepdims=True)
    ranks = [1 + np.argsort(-(units[:, 1] @ units[i, 0])).tolist().index(i) for i in range(40)]
    assert UNSCORED.plain(given) == ranks
    for k in (1, 5, 10):
        assert UNSCORED.score(f"recall@{k}", np.full(40, math.nan), given) == np.mean(np.array(ranks) <= k)
    same = np.ones((40, 2, 4))  # all vectors alike know nothing, and are not all right
    assert UNSCORED.score("recall@1", np.full(40, math.nan), same) == 1 / 40


def test_the_metric_is_of_what_the_rows_have():
    assert (SCORED.metric_or_default(None), UNSCORED.metric_or_default(None)) == ("spearman", "recall@1")
    with pytest.raises(UsageError, match="recall@5: these pairs have numbers"):
        SCORED.metric_or_default("recall@5")
    with pytest.raises(UsageError, match="spearman: these pairs have no numbers"):
        UNSCORED.metric_or_default("spearman")
    with pytest.raises(UsageError, match="accuracy is no metric of an embedding"):
        SCORED.metric_or_default("accuracy")


def row(first: str, second: str | None, label: str | None = None, line: int = 1) -> Row:
    return Row(first, second, label, "rows.jsonl", line)


WRONG = [
    ([row("a", "b", "1"), row("c", None, "2", 2)], "rows.jsonl:2: no second text"),
    ([row("a", "b", "1"), row("c", " ", "2", 2)], "rows.jsonl:2: the second text is empty"),
    ([row("", "b", "1"), row("c", "d", "2", 2)], "rows.jsonl:1: the first text is empty"),
    ([row("a", "b", "1"), row("c", "d", "nan", 2)], "rows.jsonl:2: a pair's label is a finite number.*'nan'"),
    ([row("a", "b", "1"), row("c", "d", "near", 2)], "rows.jsonl:2: a pair's label is a finite number.*'near'"),
    ([row("a", "b", "1"), row("c", "d", None, 2)], "rows.jsonl:2: the pair has no number, and the rows that train"),
    ([row("a", "b"), row("c", "d", "2", 2)], "rows.jsonl:2: the pair has a number, and the rows that train have none"),
    ([row("a", "b", "1"), row("c", "d", "1.0", 2)], "rows.jsonl:1: its number is 1, and every row has the same"),
    ([row("a", "b")], "rows.jsonl:1 is the only pair"),
]


@pytest.mark.parametrize(("rows", "said"), WRONG)
def test_what_is_wrong_names_the_row(rows, said):
    with pytest.raises(DataError, match=said):
        task_data(rows, kind="embedding")


def test_rows_of_another_form_are_refused_in_every_part():
    train = [row(f"a{i}", f"b{i}", str(i), i) for i in range(9)]
    with pytest.raises(DataError, match=r"rows\.jsonl:77: the pair has no number"):
        task_data(train, eval=[row("x", "y", None, 77)], kind="embedding")


def test_second_texts_that_recur_are_said():
    rows = [row(f"a{i}", "same" if i in (3, 5) else f"b{i}", None, i) for i in range(30)]
    with pytest.warns(UserWarning, match="rows.jsonl:3: the second text 'same' is that of 2 rows; 2 rows share"):
        data = task_data(rows, kind="embedding")
    assert data.task_kind.chosen == {"scored": False} and not data.pairs


def test_a_file_may_have_no_labels_unless_one_names_the_column(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"sentence1": f"a{i}", "sentence2": f"b{i}"}) + "\n" for i in range(3)))
    assert [each.label for each in read_rows(path, labels=True, optional=True)] == [None] * 3
    for columns, optional in ((Columns(), False), (Columns(label="score"), True)):
        with pytest.raises(DataError, match="no column"):
            list(read_rows(path, labels=True, optional=optional, columns=columns))


def test_vectors_have_changed_whose_directions_are_others():
    reference = np.eye(4, dtype=np.float32)
    turned = reference.copy()
    turned[1] = (0.5, 1, 0, 0)  # a cosine of 0.894
    turned[2] *= 3  # of no other direction
    assert SCORED.agreement(reference, turned, None) == (0.75, 0)
    assert SCORED.agreement(reference, turned, 1e-4) == (1.0, 0)  # what is held to a tolerance is compared by it


@pytest.mark.parametrize("chosen", [{"dims": 0}, {"dims": "3"}, {"dims": True}, {"scored": 1}])
def test_a_damaged_card_is_refused(chosen):
    with pytest.raises(ValueError, match="whole number of dims"):
        kind_from_card("embedding", None, "mean", chosen=chosen)


def test_a_prediction_is_cut_to_its_first_numbers_and_of_length_one():
    (answer,) = SCORED.predictions("t", np.array([[[3, 4, 12]]], np.float32), ["n"])
    assert answer.as_json() == {"task": "t", "vector": [3, 4, 12], "note": "n"}
    np.testing.assert_array_equal(answer.cut(2).vector, np.array([0.6, 0.8], np.float32))
    pair = np.array([[[3, 4, 12], [1, 1, 1]]], np.float32)
    assert SCORED.predictions("t", pair, [""])[0].value == [3, 4, 12]


def test_a_batch_of_one_pair_is_refused():
    with pytest.raises(UsageError, match=r"--batch-size 1: rows\.jsonl:4, as every pair, would be alone"):
        UNSCORED.check_batch(1, [row("a", "b", None, 4)])
    UNSCORED.check_batch(2, [])
