"""The rule by which ONNX Runtime is held against PyTorch."""

import contextlib

import numpy as np
import pytest
from scipy.special import log_softmax, rel_entr, softmax

from edgepeft.backbones.base import Decoder
from edgepeft.bundle.bundle import EXACT, Tolerance, allowed_for
from edgepeft.common.errors import BundleError, VerificationFailed
from edgepeft.deploy.verify import (
    TextCheck,
    compare_logits,
    pack_check,
    read_check,
    require_passed,
    run_in_groups,
    widen_tolerance,
)
from edgepeft.tasks._losses import same_best
from edgepeft.tasks.regression import Regression

REFERENCE = np.array([[1.0, 0.0], [0.0, 1.0], [0.50005, 0.5]], np.float32)


def moved(row, column, by):
    found = REFERENCE.copy()
    found[row, column] += by
    return found


def test_equal_logits_pass_and_a_close_row_is_not_counted_as_decided():
    result = compare_logits(REFERENCE, REFERENCE)
    require_passed("t", result)
    assert (result.rows, result.undecided, result.agreement, result.max_abs_difference) == (3, 1, 1.0, 0.0)


def test_a_difference_within_the_tolerance_passes_even_if_it_flips_an_undecided_row():
    result = compare_logits(REFERENCE, moved(2, 1, 9e-5))
    require_passed("t", result)
    assert result.max_abs_difference == pytest.approx(9e-5, rel=1e-2)


@pytest.mark.parametrize("by", [2e-4, -2e-4, np.nan, np.inf])
def test_a_difference_beyond_the_tolerance_fails(by):
    with pytest.raises(VerificationFailed, match="task t"):
        require_passed("t", compare_logits(REFERENCE, moved(0, 0, by)))


def test_a_flipped_decision_is_counted():
    assert compare_logits(REFERENCE, REFERENCE[:, ::-1]).agreement == 0.0


def test_regression_has_no_decisions():
    reference = np.array([[1.0], [2.0]], np.float32)
    result = compare_logits(reference, reference + 5e-5, compare=Regression().agreement)
    require_passed("t", result)
    assert result.agreement == 1.0


def test_another_number_of_logits_fails():
    with pytest.raises(VerificationFailed, match="logits"):
        compare_logits(REFERENCE, REFERENCE[:, :1])


def test_replay_gives_each_row_its_own_logits_whatever_the_order_of_lengths():
    rng = np.random.default_rng(0)
    lengths = rng.permutation(np.arange(1, 31))
    mask = (np.arange(30)[None] < lengths[:, None]).astype(np.int64)
    ids = rng.integers(1, 50, mask.shape) * mask
    inputs = {"input_ids": ids, "attention_mask": mask}

    def run(group):
        assert group["input_ids"].shape[1] == group["attention_mask"].sum(1).max()  # cut, not padded further
        return np.stack([group["input_ids"].sum(1), group["attention_mask"].sum(1)], 1).astype(np.float32)

    expected = np.stack([ids.sum(1), lengths], 1).astype(np.float32)
    assert compare_logits(expected, run_in_groups(run, inputs)).max_abs_difference == 0.0


def test_a_check_file_is_read_as_it_was_written():
    inputs = {"input_ids": np.ones((3, 2), np.int64), "attention_mask": np.ones((3, 2), np.int64)}
    read, logits = read_check(pack_check(inputs, REFERENCE), "here")
    assert set(read) == set(inputs)
    np.testing.assert_array_equal(logits, REFERENCE)


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_check_file_is_named(cut):
    inputs = {"input_ids": np.ones((3, 2), np.int64), "attention_mask": np.ones((3, 2), np.int64)}
    with pytest.raises(BundleError, match="here"):
        read_check(pack_check(inputs, REFERENCE)[:cut], "here")


def test_a_check_file_without_masks_or_rows_is_refused():
    with pytest.raises(BundleError, match="attention_mask"):
        read_check(pack_check({"input_ids": np.ones((3, 2), np.int64)}, REFERENCE), "here")
    empty = {"input_ids": np.ones((0, 2), np.int64), "attention_mask": np.ones((0, 2), np.int64)}
    with pytest.raises(BundleError):
        read_check(pack_check(empty, np.ones((0, 2), np.float32)), "here")


def eight_bits(reference, found, compare=same_best):
    arrays = (np.asarray(each, np.float32) for each in (reference, found))
    return compare_logits(*arrays, allowed_for("int8", "fp32"), compare)


def test_8_bits_may_change_two_decisions_of_a_hundred_however_far_logits_move():
    reference = np.tile([1.0, 0.0], (100, 1))
    found = reference * 3
    found[:2] = -found[:2]
    require_passed("t", eight_bits(reference, found))
    found[2] = -found[2]
    with pytest.raises(VerificationFailed, match=r"3\.0% of the decisions"):
        require_passed("t", eight_bits(reference, found))


def test_8_bits_are_no_excuse_for_what_is_no_number():
    with pytest.raises(VerificationFailed):
        require_passed("t", eight_bits([[1.0, 0.0]], [[1.0, np.nan]]))


def test_a_regression_of_8_bits_may_move_two_rows_of_a_hundred_by_more_than_a_quarter_of_its_spread():
    reference = np.random.default_rng(0).normal(size=(100, 1))
    quarter = 0.25 * reference.std()
    require_passed("t", eight_bits(reference, reference + 0.9 * quarter, Regression().agreement))
    with pytest.raises(VerificationFailed):  # as if the head's bias were lost
        require_passed("t", eight_bits(reference, reference + 1.1 * quarter, Regression().agreement))
    found = reference.copy()
    found[:2] += 9
    require_passed("t", eight_bits(reference, found, Regression().agreement))


def test_half_precision_keeps_every_clear_decision():
    require_passed("t", compare_logits(REFERENCE, moved(0, 0, 1.9e-2), allowed_for("fp32", "fp16")))
    with pytest.raises(VerificationFailed):
        require_passed("t", compare_logits(REFERENCE, moved(0, 0, 2.1e-2), allowed_for("fp32", "fp16")))


@pytest.mark.parametrize(("by", "passes"), [(3e-4, True), (9e-4, False)])
def test_a_log_probability_of_text_may_differ_by_a_share_of_the_largest(by, passes):
    words = np.array([[-40, -40, -0.5, -1.5, -20]], np.float32)
    likely = (words - np.log(np.exp(words).sum()))[:, None, 2:]  # about -0.3, -1.3 and -19.8: 4e-4 may they differ by
    inputs = {name: np.array([[7]]) for name in ("input_ids", "attention_mask")}
    check = TextCheck(inputs, np.array([[2]]), np.array([[[2, 3, 4]]]), likely)
    found = words + np.array([0, 0, 0, 0, by], np.float32)
    result = check.replay(lambda inputs: lambda ids, order: found, Decoder(0, 1, 1.0, 0))
    assert result.tolerance == pytest.approx(2e-5 * 19.813, rel=1e-3)
    with contextlib.nullcontext() if passes else pytest.raises(VerificationFailed):
        require_passed("t", result)


ROWS, STEPS, WORDS, KNOWN, END = 6, 4, 11, 5, 1  # KNOWN candidates of WORDS tokens


def texts(by: float, *, allowed: Tolerance = EXACT, ended: tuple[int, ...] = ()) -> tuple:
    """Random texts, checked where each logit is moved by up to ``by``; theirs and ours [rows, steps, words].

    Rows of ``ended`` are at their ends at their second tokens.
    """
    source = np.random.default_rng(0)
    theirs = source.normal(0, 3, (ROWS, STEPS, WORDS)).astype(np.float32)
    theirs[..., END] = -9
    theirs[list(ended), 1, END] = 9
    ours = theirs + np.float32(by) * source.uniform(-1, 1, theirs.shape).astype(np.float32)
    best = np.argsort(-theirs, axis=-1)[..., :KNOWN]
    likely = np.take_along_axis(log_softmax(theirs, -1), best, -1)
    inputs = {name: np.full((ROWS, 2), 7) for name in ("input_ids", "attention_mask")}
    check = TextCheck(inputs, best[..., 0].copy(), best, likely)
    steps = iter(ours.swapaxes(0, 1))
    result = check.replay(lambda inputs: lambda ids, order: next(steps), Decoder(0, END, 1, 0), allowed)
    return result, theirs, ours


def test_divergence_and_perplexity_of_text_are_scipys_of_the_known_tokens_and_of_all_others_in_sum():
    result, theirs, ours = texts(1.0)
    best = np.argsort(-theirs, axis=-1)
    p, q = (np.take_along_axis(softmax(each.astype(float), -1), best, -1) for each in (theirs, ours))
    assert result.text.perplexity == pytest.approx(np.exp(-np.log(q[..., 0]).mean()), rel=1e-5)
    assert result.text.reference_perplexity == pytest.approx(np.exp(-np.log(p[..., 0]).mean()), rel=1e-5)
    assert result.text.agreement == (ours.argmax(-1) == theirs.argmax(-1)).mean() < 1
    p, q = (np.concatenate([v[..., :KNOWN], v[..., KNOWN:].sum(-1, keepdims=True)], -1) for v in (p, q))
    assert result.text.kl == pytest.approx(rel_entr(p, q).sum(-1).mean(), rel=1e-4)
    assert (result.text.tokens, result.kl_tolerance) == (ROWS * STEPS, None)
    assert abs(texts(0.0)[0].text.kl) < 1e-6


def test_what_comes_past_the_end_of_a_text_is_not_counted():
    result, theirs, ours = texts(1.0, ended=(0, 3))
    assert result.text.tokens == ROWS * STEPS - 2 * (STEPS - 2)
    whole = (ours.argmax(-1) == theirs.argmax(-1)).astype(float)
    whole[[0, 3], 2:] = np.nan
    assert result.text.agreement == pytest.approx(np.nanmean(whole))


@pytest.mark.parametrize(("by", "passes"), [(0.3, True), (2.0, False)])
def test_a_decoder_in_8_bits_is_held_to_its_divergence_and_not_to_near_ties(by, passes):
    result, *_ = texts(by, allowed=allowed_for("int8", "fp32", decoder_only=True))
    assert result.agreement < 0.98  # which an encoder would be refused for
    with (
        contextlib.nullcontext() if passes else pytest.raises(VerificationFailed, match=r"Kullback-Leibler.*0\.05 nats")
    ):
        require_passed("t", result)
    assert (result.text.kl < 0.05) is passes


def test_what_is_accepted_is_stated_and_holds_from_then_on_and_no_number_is_never_accepted():
    allowed = allowed_for("int8", "fp32", decoder_only=True)
    result = widen_tolerance(texts(2.0, allowed=allowed)[0])
    require_passed("t", result)
    again, *_ = texts(2.0, allowed=allowed.at_least(result))
    require_passed("t", again)
    with pytest.raises(VerificationFailed):
        require_passed("t", texts(6.0, allowed=allowed.at_least(result))[0])
    with pytest.raises(VerificationFailed):
        require_passed("t", widen_tolerance(texts(np.nan, allowed=allowed)[0]))
    labels = widen_tolerance(eight_bits([[1.0, 0.0]] * 2, [[0.0, 1.0], [1.0, 0.0]]))
    assert labels.changed_tolerance == 0.625
    require_passed("t", labels)
    with pytest.raises(VerificationFailed):  # weights in float32 have no excuse
        require_passed("t", widen_tolerance(compare_logits(REFERENCE, moved(0, 0, 1e-3))))
