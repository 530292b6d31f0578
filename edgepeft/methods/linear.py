"""A linear probe (Peters et al., 2019, arXiv:1903.05987, feature extraction): W h + b, h of the backbone as it is."""

from edgepeft.methods.base import Method


class LinearProbe(Method):
    """Nothing beside the head, so all of its tasks answer from one run of the bare backbone."""

    name = "linear"
    title = "Linear probe"
    paper = "Peters et al., 2019, arXiv:1903.05987"
    equation = "W h + b, h of the bare backbone"
    learning_rate = 1e-3
    learning_rate_source = "ours, for heads on a first token; on a mean it is --head-lr's default"
