"""The samples' sizes tell each other apart: a size that follows from the batch is found again by its values in them."""

from itertools import permutations

import pytest

from edgepeft.graph.gradient.rule import _LENGTHS


def sizes(lengths, prompt):
    """What graphs have as extents: rows, tokens of the longest, of all, of the padded batch, distances, squares."""
    rows, longest, tokens = len(lengths), max(lengths) + prompt, sum(lengths) + prompt * len(lengths)
    return {
        "rows": rows,
        "longest": longest,
        "tokens": tokens,
        "padded": rows * longest,
        "distances": 2 * longest - 1,
        "square": longest**2,
    }


@pytest.mark.parametrize("prompt", range(129))
def test_no_size_is_the_same_multiple_of_another_in_both(prompt):
    one, other = (sizes(lengths, prompt) for lengths in _LENGTHS)
    inherent = {("padded", "rows"), ("padded", "longest"), ("square", "longest")}
    for whole, part in permutations(one, 2):
        times = one[whole] / one[part], other[whole] / other[part]
        fixed = times[0] == times[1] and times[0].is_integer()
        assert not fixed or (whole, part) in inherent, (whole, part, times)
