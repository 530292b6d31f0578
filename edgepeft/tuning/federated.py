"""Federated averaging: a board's steps on its own rows, from given tensors; tensors of other boards, and their mean.

McMahan et al., 2017, arXiv:1602.05629, algorithm 1, ClientUpdate: w <- w - eta grad l(w; b), by batches b of own rows;
here by AdamW, from moments of zero.  With ``mu`` the loss has FedProx's term besides (Li et al., 2020,
arXiv:1812.06127, eq. 2): mu / 2 |w - w_t|^2, where w_t is what was given.

LoRA's factors are averaged by their product: the mean of B A of several boards, and not the mean B times the mean A.
Of boards i with weights w_i that sum to 1, what is meant is M = sum_i w_i B_i A_i, of a rank up to that of all boards
together.  What a delta of rank r can hold is its best approximation (Eckart & Young, 1936), by a singular value
decomposition M = U S V^T as in FlexLoRA (Bai et al., 2024, arXiv:2402.11505): A = c V_r^T, B = U_r S_r / c.  c
keeps A as large as the boards' own: with S^(1/2) on either side, what M has not would be zero in both, and never learn
again.

Letters: r rank, n boards.
"""

import dataclasses
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import DataError, UsageError
from edgepeft.common.messages import first_of
from edgepeft.data.readers import source_of
from edgepeft.data.training_loop.checkpoint import Position, claim
from edgepeft.data.training_loop.engine import Arrays, Scored
from edgepeft.options.base import Rows
from edgepeft.options.verbs import TuneSettings
from edgepeft.tuning.target import Files, TuningTarget, from_task
from edgepeft.tuning.tune import TuneResult, TuningRun, put_in_force

_A, _B = "/A", "/B"


def checked_tensors(given: Mapping[str, NDArray[Any]], like: Arrays, who: str) -> Arrays:
    """Copies in float32, in the order of ``like``; ``who`` is what an error calls what is given."""
    for what, odd in (("lack", like.keys() - given.keys()), ("have unknown", given.keys() - like.keys())):
        if odd:
            raise DataError(
                f"{who} {what} {first_of(sorted(odd))}; the task's own are {first_of(list(like))}. Take them of the "
                "same task, with the same tensors frozen."
            )
    found = {}
    for name, own in like.items():
        tensor = np.asarray(given[name])
        if tensor.shape != own.shape or tensor.dtype.kind != "f":
            raise DataError(
                f"{who} have {name} as {tensor.dtype} {list(tensor.shape)}, and the task has it as float32 "
                f"{list(own.shape)}; take them of the same task."
            )
        with np.errstate(over="ignore"):
            found[name] = tensor.astype(np.float32)  # a copy, whatever it was
        if not np.isfinite(found[name]).all():
            raise DataError(f"{who} have values in {name} that are not finite; they are not taken.")
    return found


@dataclass(frozen=True)
class Products:
    """Averaged factors; what is wrong with all products together, as shares of the norm of what is meant."""

    tensors: Arrays  # by name
    lost: float  # what rank r cannot hold
    apart: float  # how far off the factors' own means would be


def average_products(boards: Sequence[Arrays], weights: Sequence[float]) -> Products:
    """The factors A [r, in] and B [out, r] of each pair in the boards' tensors; ``weights``, such as rows.

    Raises UsageError for weights of which no mean can be made, and where no pair is there.
    """
    given = np.asarray(weights, np.float64)
    if not (np.isfinite(given).all() and (given >= 0).all() and given.any()):
        raise UsageError(f"weights are numbers of at least 0, and not all 0; found {[*weights]}.")
    shares = given / given.sum()
    own = {a: f"{a.removesuffix(_A)}{_B}" for a in boards[0] if a.endswith(_A)}
    shapes = {name: tensor.shape for name, tensor in boards[0].items()}
    pairs = [(a, b) for a, b in own.items() if b in shapes and len(shapes[a]) == len(shapes[b]) == 2]
    pairs = [(a, b) for a, b in pairs if shapes[a][0] == shapes[b][1]]  # A [r, in] with a B [out, r] beside it
    if not pairs:
        raise UsageError(
            "these tensors have no factors A and B to multiply: average them as they are. Only LoRA has such, and none "
            "where A is frozen, whose mean is exact already."
        )
    found, lost, apart, norm = dict[str, NDArray[Any]](), 0.0, 0.0, 0.0
    for a, b in pairs:
        # M = [w_1 B_1, ..., w_n B_n] [A_1; ...; A_n] = left right, (out, n r) (n r, in): its rank is at most n r.
        left = np.concatenate([w * each[b].astype(np.float64) for w, each in zip(shares, boards, strict=True)], axis=1)
        right = np.concatenate([each[a].astype(np.float64) for each in boards])
        q, upper = np.linalg.qr(left)
        p, lower = np.linalg.qr(right.T)
        u, s, vt = np.linalg.svd(upper @ lower.T)
        rank = len(boards[0][a])
        size = np.sqrt(np.mean([np.square(each[a], dtype=np.float64).sum() for each in boards]) / rank) or 1.0
        found[b], found[a] = np.zeros_like(boards[0][b]), np.zeros_like(boards[0][a])
        found[b][:, : len(s)] = (q @ u[:, :rank]) * s[:rank] / size
        found[a][: len(s)] = size * (p @ vt[:rank].T).T
        means = [
            sum(w * each[name].astype(np.float64) for w, each in zip(shares, boards, strict=True)) for name in (b, a)
        ]
        norm, lost = norm + float(np.square(s).sum()), lost + float(np.square(s[rank:]).sum())
        apart += float(np.square(means[0] @ means[1] - left @ right).sum())
    scale = np.sqrt(norm) or 1.0
    return Products(found, float(np.sqrt(lost) / scale), float(np.sqrt(apart) / scale))


_DELTA = "delta:"  # of the trained tensors' names in an engine's state


@dataclass(frozen=True)
class LocalSteps:
    """The result of some steps."""

    tensors: Arrays  # by name
    n_rows: int  # that train here
    losses: tuple[float, ...]  # of each step, before its update
    optimizer: Arrays | None = None  # AdamW's moments and number of steps, where they were asked for


class LocalTuner:
    """A task of a bundle with a board's own rows.  Nothing is written to the bundle but by ``put_in_force``.

    What lies below the trained modules is computed once, with the first steps or score.  Given tensors that are not the
    task's, or not finite, raise DataError.
    """

    def __init__(
        self,
        bundle: Path | str,
        task: str,
        files: Files | Rows,
        options: TuneSettings | None = None,
        *,
        freeze: Sequence[str] = (),
        work: Path | str | None = None,
        threads: int | None = None,
    ) -> None:
        """Read task and rows; open no session yet.

        Args:
            files: a file or rows, or as of ``tune``; rows held out for ``eval`` and ``test`` never train.
            options: of the whole training loop: its length is what the rate's warm-up and decay go by.
            freeze: names of tensors, ``*`` for any part, that stay as the bundle has them: they are not in
                ``tensors`` and take no gradient.  ``*/A`` is FFA-LoRA (Sun et al., 2024, arXiv:2403.12313).
            work: a folder of this board and task alone, where hidden states of its rows stay, so that each process
                reads what the first computed; None keeps them in this one.

        Raises:
            UsageError: no such task, options that do not fit it, a name to freeze that it lacks, or nothing is left.
            DataError: the rows cannot be used, such as a label that the task lacks.
        """
        self._folder, self._task = Path(bundle), task
        options = options or TuneSettings()
        files = files if isinstance(files, Files) else Files(source_of(files))
        self._bundle = Bundle(self._folder)
        files = dataclasses.replace(files, partial=True)  # other boards may have the other labels
        target = from_task(self._bundle, task, files, options)
        folder = Path(work or tempfile.gettempdir())
        self._run = TuningRun(
            self._bundle, _frozen(target, freeze), options, folder, threads=threads, keep=work is not None
        )
        self._done = False

    @property
    def tensors(self) -> Arrays:
        """What is trained, as the bundle has it: copies by name."""
        return self._run.target.tensors()

    def steps(
        self,
        tensors: Mapping[str, NDArray[Any]],
        n: int,
        *,
        first: int = 0,
        mu: float = 0.0,
        optimizer: Arrays | None = None,
        keep_optimizer: bool = False,
    ) -> LocalSteps:
        """``n`` steps of the training loop from its step ``first`` on, from these tensors, which are not written to.

        Which rows a step has, its rate and its dropout are what `edgepeft tune` would have there.

        Args:
            first: how many steps of the training loop went before, on whatever tensors.
            mu: FedProx's; 0 leaves its term out.
            optimizer: from earlier steps that kept it; None starts with moments of zero.
            keep_optimizer: whether to give AdamW's state too.

        Raises:
            UsageError: steps that the training loop does not have, or a ``mu`` that is no number of at least 0.
            EdgepeftError: the loss is not finite, or far above its start.
        """
        run, loop = self._run, self._run.loop
        if n < 1 or first < 0 or first + n > loop.total:
            raise UsageError(
                f"{n} steps from step {first} on of a run of {loop.total}: take at least 1, and no more than are "
                "left; TuneSettings(steps=...) makes it longer."
            )
        if not (math.isfinite(mu) and mu >= 0):
            raise UsageError(f"mu must be a number of at least 0; found {mu}.")
        given = self._checked(tensors)
        run.engine.load_state(_state(given, optimizer))
        run.engine.proximal = (mu, self._checked(tensors)) if mu else None
        loop.position, losses = Position(step=first), []
        for chosen in islice(loop.batches(), n):
            loop.update(chosen)
            losses.append(float(loop.loss or 0.0))
        after = {name: values.copy() for name, values in run.engine.state().items()}
        trained = {name: after.pop(f"{_DELTA}{name}") for name in given}
        kept = after if keep_optimizer else None
        return LocalSteps(trained, len(run.target.data.train), tuple(losses), kept)

    def score(self, tensors: Mapping[str, NDArray[Any]], part: str = "eval") -> Scored:
        """These tensors on rows that did not train: ``eval`` or ``test``."""
        self._run.engine.load_state(_state(self._checked(tensors), None))
        return self._run.loop.score(part)

    def put_in_force(self, tensors: Mapping[str, NDArray[Any]], account: Mapping[str, Any]) -> TuneResult:
        """Make these tensors the task's next version, verified as a tuned task is; this tuner is done afterwards.

        Where they score no better on the rows of ``eval`` than what is there, nothing changes and the result has no
        entry.  ``account`` says in the task's card how they came about.

        Raises:
            UsageError: another run holds the task, or this tuner is done.
            EdgepeftError: the bundle cannot be written.
        """
        run, loop, given = self._run, self._run.loop, self._checked(tensors)
        with claim(self._folder, self._task):
            run.engine.load_state(_state(self.tensors, None))
            loop.position = Position()
            loop.evaluate()
            run.engine.load_state(_state(given, None))
            loop.position.step = loop.total
            loop.evaluate()
            tuned = run.finish()
            tuned = dataclasses.replace(tuned, training={**tuned.training, **account})
            check = run.engine.check()
            entry = put_in_force(self._bundle, run.target, tuned, check) if tuned.improved else None
        self._done = True
        return TuneResult(**vars(tuned), entry=entry)

    def _checked(self, tensors: Mapping[str, NDArray[Any]]) -> Arrays:
        if self._done:
            raise UsageError(f"this tuner of {self._task} ended with put_in_force; open another LocalTuner.")
        return checked_tensors(tensors, self._run.target.tensors(), f"the tensors given for task {self._task}")


def _state(tensors: Arrays, optimizer: Arrays | None) -> Arrays:
    """An engine's, of AdamW at its start where none is given; nothing given is written to."""
    begun: Mapping[str, Any] = {"steps": 0} if optimizer is None else {n: v.copy() for n, v in optimizer.items()}
    return {**{f"{_DELTA}{name}": tensor for name, tensor in tensors.items()}, **begun}


def _frozen(target: TuningTarget, freeze: Sequence[str]) -> TuningTarget:
    """Without these tensors among what is trained: they stay constants of the task's graph."""
    facts = target.facts
    for pattern in freeze:
        if not any(fnmatchcase(name, pattern) for name in facts.trained):
            known = ", ".join(facts.trained)
            raise UsageError(f"task {target.task} trains no tensor that {pattern!r} names; it trains {known:.300}.")
    trained = tuple(name for name in facts.trained if not any(fnmatchcase(name, pattern) for pattern in freeze))
    if not trained:
        raise UsageError(f"nothing of task {target.task} is left to train; freeze fewer tensors.")
    if freeze and facts.generated:
        raise UsageError(f"{target.method} makes the backbone's tensors of what it trains; freeze none of it.")
    return dataclasses.replace(target, facts=dataclasses.replace(facts, trained=trained))
