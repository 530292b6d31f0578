"""Baselines that a delta has to beat on the rows that are reported: the majority, and a linear head on the frozen
backbone; or where answers are vectors, those of the frozen backbone itself.

The linear head is regularised least squares (Rifkin et al., 2003; for classes on one-hot labels), solved in closed
form, its strength chosen on the evaluation rows.  McNemar's exact test (1947) says whether the delta is better beyond
chance: of the rows that only one of both gets right, each is the delta's with probability 1/2 if both are as good.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.by_class import p_value, score_text
from edgepeft.data.training_loop.engine import SCORED_ROWS, Scored, TrainingEngine
from edgepeft.tasks.base import TaskType

MAJORITY, LINEAR, FROZEN = "majority", "linear head", "frozen backbone"
# Or tokens, that the linear head learns from, and as many to choose its strength: each costs a forward pass.
MAX_ROWS = 5_000
_TOKENS_A_ROW = 5  # of a short text
SIGNIFICANT = 0.05
_STRENGTHS = [10.0**power for power in range(-4, 3)]  # times the rows and the mean variance of a feature

Values = NDArray[Any]  # of rows: targets, or outputs, as the kind of the task has them


def compare_with_baselines(
    engine: TrainingEngine,
    rows: Mapping[str, Encoded],
    test: Scored,
    *,
    kind: TaskType,
    metric: str,
    beside: Sequence[str],
    head_alone: bool,
    advance: Callable[[int, int], None],
) -> dict[str, dict[str, Any]]:
    """Score each baseline on the test rows, and compare the delta's answers to these, ``test``, with its.

    ``scores`` has the metrics ``beside`` too.  With ``head_alone`` the delta itself is a head on the frozen backbone:
    only the majority is another thing.  ``advance`` gets the number of rows whose states are computed, and of all.
    """
    targets = {part: each.targets for part, each in rows.items()}
    if kind.gives_vectors:
        states = _states(engine, rows, {"test": _spread(len(targets["test"]), None)}, kind, advance)
        answers = {FROZEN: (kind, kind.baseline_outputs(states["test"]))}
    else:
        answers = {MAJORITY: (kind, np.broadcast_to(kind.majority(targets["train"]), test.outputs.shape))}
    if not (head_alone or kind.gives_vectors):
        most = MAX_ROWS // (_TOKENS_A_ROW if kind.per_token else 1)
        chosen = {part: _spread(len(values), None if part == "test" else most) for part, values in targets.items()}
        few = {part: targets[part][places] for part, places in chosen.items()}
        answers[LINEAR] = linear_head(_states(engine, rows, chosen, kind, advance), few, kind, metric)
    of_test, delta = targets["test"], kind.row_errors(targets["test"], test.outputs)
    found = {}
    for name, (own, values) in answers.items():
        scores = {each: own.score(each, of_test, values) for each in dict.fromkeys([metric, *beside])}
        found[name] = {
            "test": scores[metric],
            "scores": scores,
            **compare_answers(delta, own.row_errors(of_test, values)),
        }
    return found


def _states(
    engine: TrainingEngine,
    rows: Mapping[str, Encoded],
    chosen: Mapping[str, list[int]],
    kind: TaskType,
    advance: Callable[[int, int], None],
) -> dict[str, Values]:
    """Compute the states of each part's chosen rows, as ``baseline_features`` has them."""
    states, total, done = {}, sum(map(len, chosen.values())), 0
    for part, places in chosen.items():
        values, lengths = [np.zeros(0, np.float32)] * len(places), rows[part].lengths
        for batch in sorted_batches([lengths[i] for i in places], SCORED_ROWS):
            found = rows[part].of_texts(engine.states(part, of := [places[i] for i in batch]), of)
            ends = np.cumsum(rows[part].texts(of) if kind.several_texts else np.ones(len(of), int))[:-1]
            for place, state in zip(batch, np.split(found, ends), strict=True):
                values[place] = state if kind.several_texts else state[0]
            done += len(batch)
            advance(done, total)
        states[part] = kind.baseline_features(values, rows[part].targets[places])
    return states


def _spread(n: int, most: int | None) -> list[int]:
    """Take at most so many of ``n`` rows, evenly."""
    return np.linspace(0, n - 1, min(n, most or n)).astype(int).tolist()


def linear_head(
    states: Mapping[str, Values], targets: Mapping[str, Values], kind: TaskType, metric: str
) -> tuple[TaskType, Values]:
    """Return the kind with what is chosen for a linear head, and its outputs for the test rows.

    ``states`` [n, d] are of the parts train, eval and test, as the kind has them read, ``targets`` [rows, ...] too.
    """
    x = states["train"].astype(np.float64)
    mean = x.mean(0)
    x -= mean
    base, products, done = np.zeros(kind.n_outputs), np.zeros((x.shape[1], kind.n_outputs)), 0
    for start in range(0, len(targets["train"]), SCORED_ROWS):  # very many labels' columns would be gigabytes
        y = kind.least_squares_targets(targets["train"][start : start + SCORED_ROWS])
        base += y.sum(0) / len(x)
        products += x[done : done + len(y)].T @ y
        done += len(y)
    values, vectors = np.linalg.eigh(x.T @ x)  # once for all strengths
    rotated = vectors.T @ products

    def outputs(part: str, weights: Values) -> Values:
        return kind.outputs(kind.logits_by_row((states[part] - mean) @ weights + base, targets[part]))

    best: tuple[float, TaskType, Values] | None = None
    for strength in _STRENGTHS:
        weights = vectors @ (rotated / (values + strength * values.mean() + np.finfo(float).tiny)[:, None])
        own = kind.with_chosen(targets["eval"], found := outputs("eval", weights))
        score = own.score(metric, targets["eval"], found)
        if best is None or score > best[0]:
            best = score, own, weights
    assert best is not None
    return best[1], outputs("test", best[2])


def mcnemar(only_one: int, only_other: int) -> float:
    """Return the exact two-sided p-value, from how many rows only one and only the other gets right."""
    n = only_one + only_other
    tail = sum(math.comb(n, k) for k in range(min(only_one, only_other) + 1))
    return min(1.0, 2 * tail / (1 << n))


def compare_answers(delta: Values, other: Values) -> dict[str, Any]:
    """Compare a delta's answers with another's by how far off they are: rows where one is nearer, and p."""
    wins = np.sign(other - delta)
    won, lost = int((wins > 0).sum()), int((wins < 0).sum())
    p = mcnemar(won, lost)
    return {"only_delta": won, "only_this": lost, "p": p, "beaten": won > lost and p < SIGNIFICANT}


def too_few_to_tell(metrics: Mapping[str, Any]) -> bool:
    """True if on so few rows only one of both is right that nothing could follow from them, however they fell."""
    found = [each for each in metrics["baselines"].values() if not each["beaten"]]
    return all(mcnemar(0, each["only_delta"] + each["only_this"]) >= SIGNIFICANT for each in found)


def unbeaten_baselines(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each baseline that the delta is not better than beyond chance, with a sentence that says so."""
    for name, found in metrics.get("baselines", {}).items():
        if not found["beaten"]:
            sentence = (
                f"not better than the {name} beyond chance: {metrics['metric']} {score_text(metrics['test'])} "
                f"against {score_text(found['test'])}, {found['only_delta']} of {metrics['n_test']} test rows right "
                f"here alone and {found['only_this']} there alone (McNemar's p {p_value(found['p'])})"
            )
            yield name, sentence
