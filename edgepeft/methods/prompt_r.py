"""Prompt tuning from random vectors (Lester et al., 2021, arXiv:2104.08691): [v_1 ... v_p; E], v ~ U(-0.5, 0.5).

The Compacter paper's Prompt Tuning-R.
"""

from edgepeft.methods.prompt_t import PromptTuning


class PromptR(PromptTuning):
    """A prompt that starts from random vectors."""

    name = "prompt-r"
    title = "Prompt tuning, random start"
    learning_rate = 3e-2
    learning_rate_source = "Karimi Mahabadi et al., 2021, table 4"
