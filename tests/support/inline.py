"""An executor of a sweep without processes."""

from edgepeft.common.errors import EdgepeftError
from edgepeft.data.training_loop.run import Interrupted
from edgepeft.sweep.local import Ended, compute


def inline(jobs):
    """Each job in its turn, in this process."""
    for job in jobs:
        try:
            yield Ended(job, compute(job, lambda _: None, lambda: False))
        except (EdgepeftError, Interrupted) as error:
            yield Ended(job, None, str(error))
