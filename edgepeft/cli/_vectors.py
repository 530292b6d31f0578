"""``edgepeft run --out x.npy``: a task's vectors as one NumPy file, float32 [rows, dims]."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgepeft.common.errors import UsageError
from edgepeft.data.answers import Answer, VectorPrediction
from edgepeft.data.rows import Row

if TYPE_CHECKING:
    from edgepeft.runtime.runtime import Runtime

__all__ = ["check_vectors", "cut", "write_vectors"]


def check_vectors(runtime: Runtime, tasks: Sequence[str], out: Path | None, dims: int | None) -> None:
    """See that vectors are what is answered, and can be written, before anything runs.

    Raises:
        UsageError: they are not.
    """
    from edgepeft.common.atomic import check_target

    kinds = {name: runtime.bundle.entry(name).task_kind for name in tasks}
    if out is not None:
        if out.suffix != ".npy":
            raise UsageError(f"--out {out}: vectors are written as NumPy's .npy; name a file that ends so.")
        if len(tasks) != 1:
            raise UsageError(f"--out takes one task's vectors, and these are {len(tasks)} tasks; name one by --task.")
        check_target(out)
    for name, kind in kinds.items():
        if not kind.gives_vectors:
            option = "--dims" if out is None else "--out"
            raise UsageError(f"{option} is of vectors, and task {name} answers {kind.answers}; leave {option} out.")
        if dims is not None and dims > kind.n_outputs:
            raise UsageError(f"--dims {dims}: the vectors of task {name} have {kind.n_outputs}; give at most as many.")


def cut(answer: Answer, dims: int | None) -> VectorPrediction:
    """A task's vector, or the first ``dims`` of it."""
    assert isinstance(answer, VectorPrediction), "``check_vectors`` saw to it"
    return answer.cut(dims)


def write_vectors(runtime: Runtime, task: str, batches: Iterable[Sequence[Row]], out: Path, dims: int | None) -> int:
    """Write them in the order of the rows; the number of rows."""
    import numpy as np

    from edgepeft.common.atomic import write_atomically

    found = [
        np.stack([cut(answer, dims).vector for answer in runtime.predict(task, [row.readable for row in rows])])
        for rows in batches
    ]
    content = io.BytesIO()
    np.save(content, np.concatenate(found), allow_pickle=False)
    write_atomically(out, content.getvalue())
    return sum(map(len, found))
