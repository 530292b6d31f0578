"""Metrics of written text, against values of their papers and of SQuAD's and sacrebleu's own code."""

from __future__ import annotations

import pytest
import sacrebleu

from edgepeft.common.errors import UnknownName
from edgepeft.tasks.text import TextGeneration, exact_match, f1, rouge_l


def test_words_are_compared_without_articles_case_and_punctuation():
    assert exact_match("The  Eiffel-Tower!", "eiffeltower") == 1  # SQuAD's own: punctuation is taken out, not blanked
    assert exact_match("Eiffel Tower", "eiffeltower") == 0
    assert exact_match("the", "a") == 1  # of both nothing is left


def test_f1_counts_words_as_often_as_both_have_them():
    # three words of four, two of which stand in the reference's three: precision 2/4, recall 2/3
    assert f1("red red green blue", "red, the red cat") == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert (f1("", "the"), f1("", "red"), f1("red", "green")) == (1, 0, 0)


def test_the_longest_common_subsequence_is_that_of_lins_example():
    # Lin (2004), section 3.1: S2 "police kill the gunman" 3/4 and S3 "the gunman kill police" 2/4 beside S1
    reference = "police killed the gunman"
    assert rouge_l("Police kill the gunman.", reference) == 3 / 4
    assert rouge_l("the gunman kill police", reference) == 2 / 4
    assert (rouge_l("", reference), rouge_l("none", reference)) == (0, 0)
    assert rouge_l("the", "police killed the gunman") == pytest.approx(2 * (1 / 1) * (1 / 4) / (1 + 1 / 4))


def test_a_row_counts_by_its_best_reference_and_rows_by_their_mean():
    answers, references = ["red", "a cat"], [("blue", "Red"), ("dog",)]
    assert TextGeneration().score("exact_match", references, answers) == 0.5
    assert TextGeneration().score("f1", [("red", "hat red"), ("cat dog",)], ["red hat", "cat"]) == pytest.approx(
        (1 + 2 / 3) / 2
    )


def test_bleu_is_sacrebleus_of_the_whole_corpus():
    answers = ["the cat sat on the mat today", "a dog barked loudly at night"]
    references = [("the cat sat on a mat today", "a cat sat there"), ("a dog barked loudly at noon",)]
    columns = [[references[0][0], references[1][0]], [references[0][1], None]]
    expected = sacrebleu.corpus_bleu(answers, columns).score / 100
    assert 0.3 < expected < 1
    assert TextGeneration().score("bleu", references, answers) == pytest.approx(expected)
    assert TextGeneration().score("bleu", references, [r[0] for r in references]) == pytest.approx(1)


def test_words_and_pairs_of_words_are_counted_as_lin_has_them():
    # Lin (2004), eq. 1 for one reference: of "police killed the gunman" the words police, the, gunman and the pair
    # "the gunman" stand in S2, as many in both; precision and recall have the same denominators, 4 and 3.
    score = lambda name, answer: TextGeneration().score(name, [("police killed the gunman",)], [answer])  # noqa: E731
    assert (score("rouge_1", "Police kill the gunman."), score("rouge_2", "Police kill the gunman.")) == (3 / 4, 1 / 3)
    assert (score("rouge_1", "the gunman kill police"), score("rouge_2", "the gunman kill police")) == (3 / 4, 1 / 3)
    # "the" twice in the answer and once in the reference counts once: precision 1/2, recall 1/4
    assert score("rouge_1", "the the") == pytest.approx(2 * (1 / 2) * (1 / 4) / (1 / 2 + 1 / 4))
    assert (score("rouge_2", "police"), score("rouge_1", "")) == (0, 0)


def test_chrf_is_sacrebleus_of_the_whole_corpus():
    answers, references = ["das Haus ist klein", "er kommt"], [("das Haus ist klein", "ein Haus"), ("sie kommt",)]
    expected = sacrebleu.corpus_chrf(answers, [["das Haus ist klein", "sie kommt"], ["ein Haus", None]]).score / 100
    assert 0.5 < expected < 1
    assert TextGeneration().score("chrf", references, answers) == pytest.approx(expected)


def test_errors_have_the_scores_and_how_many_answers_are_empty():
    found = TextGeneration().errors([("red",), ("blue",)], ["red", " "])["texts"]
    assert found == {
        **dict.fromkeys(("exact_match", "f1", "rouge_1", "rouge_l"), 0.5),
        "rouge_2": 0,
        "empty_answers": 0.5,
    }


def test_an_unknown_metric_is_refused_with_the_nearest():
    with pytest.raises(UnknownName, match=r"no metric is called 'rougel'\. Did you mean 'rouge_l'"):
        TextGeneration().score("rougel", [("a",)], ["a"])
