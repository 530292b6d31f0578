"""AdapterDrop (Rücklé et al., 2021, arXiv:2010.11918): Houlsby adapters in all layers but the lowest.

y' = y + W2 act(W1 y + b1) + b2 in layers ``skip_layers`` and up, y below.  As in the Compacter paper,
whose figures are of five dropped layers, every LayerNorm is trained, those below included; what lies
below is then a task's own.  Frozen with ``norms=false`` it is the backbone's, and tasks can share it.
"""

from edgepeft.methods.base import option
from edgepeft.methods.houlsby import Houlsby


class AdapterDrop(Houlsby):
    """Houlsby adapters without those of the lowest layers."""

    name = "adapterdrop"
    title = "AdapterDrop"
    paper = "Rücklé et al., 2021, arXiv:2010.11918"
    equation = "LN(sub + A(sub) + res), the lowest layers without A"
    learning_rate = 3e-4
    learning_rate_source = "Karimi Mahabadi et al., 2021, arXiv:2106.04647, table 4"

    skip_layers: int = option(5, "lowest layers (of each stack) that get no adapter")
