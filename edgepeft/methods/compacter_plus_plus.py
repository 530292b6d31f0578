"""Compacter++ (Karimi Mahabadi et al., 2021, arXiv:2106.04647, section 5.2): Compacter after the feed-forward only."""

from edgepeft.methods.base import option
from edgepeft.methods.compacter import Compacter


class CompacterPlusPlus(Compacter):
    """Compacter once a layer."""

    name = "compacter++"
    title = "Compacter++"
    equation = "LN(sub + A(sub) + res) after the FFN, W = sum_i kron(A_i, s_i t_i)"

    roles: tuple[str, ...] = option(("ffn_output",), "sub-layers whose outputs are adapted")
