"""Full fine-tuning (Devlin et al., 2019): every tensor of the encoder is trained; a task is a model of its own."""

from edgepeft.backbones.base import Architecture
from edgepeft.methods.base import Method


class Full(Method):
    """Own copies of all the backbone's tensors, those of a pooler that the head reads included."""

    name = "full"
    title = "Full fine-tuning"
    paper = "Devlin et al., 2019, arXiv:1810.04805"
    equation = "W' x + b', all trained"
    trains_everything = True
    learning_rate = 6e-5
    learning_rate_source = "measured, docs/methods.md; Deshpande et al., appendix A: 2e-5"

    def overrides(self, architecture: Architecture) -> tuple[str, ...]:
        return (*architecture.tensors, *architecture.pooler)
