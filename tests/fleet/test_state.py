"""What a pull does with each task: the table of ``edgepeft/fleet/remote.py``, by hand."""

from __future__ import annotations

import pytest

from edgepeft.fleet.remote import State, decide

A, B, C = "a" * 64, "b" * 64, "c" * 64


@pytest.mark.parametrize(
    ("offered", "here", "taken", "known", "then", "replacing"),
    [
        (B, None, None, [], "take", "take"),
        (B, None, A, [A], "take", "take"),  # removed here, and then published anew
        (B, B, None, [], "", ""),
        (B, B, B, [B], "", ""),
        (B, A, A, [A], "take", "take"),
        (B, A, C, [A, C], "take", "take"),  # rolled back here, and then published anew
        (B, A, B, [A, B], "keep", "take"),  # rolled back here
        (B, None, B, [B], "keep", "take"),  # removed here
        (B, C, None, [], "keep", "take"),  # added here
        (B, C, A, [A], "keep", "take"),  # tuned here
        (B, C, B, [A, B], "keep", "take"),
        (None, A, A, [A], "remove", "remove"),
        (None, A, B, [A, B], "remove", "remove"),
        (None, C, A, [A], "keep", "remove"),  # tuned here
        (None, C, None, [], "", ""),  # the board's own, which the publisher never had
    ],
)
def test_what_is_done_with_a_task(offered, here, taken, known, then, replacing):
    state = State(taken={"t": taken} if taken else {}, known={"t": known})
    for replace, wanted in ((False, then), (True, replacing)):
        done = decide({"t": offered} if offered else {}, {"t": here} if here else {}, state, replace=replace)
        found = {"take": done.take, "remove": done.remove, "keep": tuple(done.keep)}
        assert [name for name, tasks in found.items() if tasks == ("t",)] == ([wanted] if wanted else [])


def test_a_commit_that_was_cut_short_is_settled_by_what_lies_there(tmp_path):
    state = State(taken={"t": A, "u": A}, known={"t": [A], "u": [A]})
    state.note({"t": B, "u": B})
    state.write(tmp_path)
    found = State.read(tmp_path, {"t": B, "u": A})
    assert (found.taken, found.pending) == ({"t": B, "u": A}, {})
    # Neither is the board's own, and u is to be taken up again.
    assert decide({"t": B, "u": B}, {"t": B, "u": A}, found, replace=False).take == ("u",)


def test_a_withdrawal_that_was_cut_short_is_not_taken_for_a_removal_here(tmp_path):
    state = State(taken={"t": A, "u": A}, known={"t": [A], "u": [A]})
    state.note({}, ["t", "u"])
    state.write(tmp_path)
    found = State.read(tmp_path, {"u": A})  # t went, u did not
    assert (found.taken, found.leaving) == ({"u": A}, [])
    assert decide({"t": A}, {"u": A}, found, replace=False).take == ("t",)  # published again
    assert decide({}, {"u": A}, found, replace=False).remove == ("u",)
