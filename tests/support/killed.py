"""A training process of its own that kills itself, for tests of resuming."""

import os
import signal

import torch
from moods import rows

from edgepeft.backbones.source import open_backbone
from edgepeft.data.parts import task_data
from edgepeft.training.loop import train_delta


def train_until_killed(folder, method, options, out, *, step, threads):
    """Train on ``moods`` and die by SIGKILL after ``step``."""
    torch.set_num_threads(threads)

    def watch(progress):
        if progress.phase == "train" and progress.done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    train_delta(open_backbone(folder), method, task_data(rows()), options, out, watch=watch)
