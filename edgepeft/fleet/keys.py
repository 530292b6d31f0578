"""The publisher's Ed25519 keys: PEM files in a folder outside of the repository, ``<role>.pem``, ``<role>-2.pem``, ...

A machine that only refreshes the timestamp needs ``timestamp.pem`` alone; ``root.pem`` is wanted when keys change, and
may lie in a drawer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from securesystemslib.signer import CryptoSigner

from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import UsageError
from edgepeft.common.resources import private_folder
from edgepeft.deploy.signature import read_private_key

__all__ = ["ROLES", "Keys"]

ROLES = ("root", "targets", "snapshot", "timestamp")
RETIRED = "retired"


class Keys:
    """The keys in ``folder``, by role.

    Raises:
        UsageError: the folder lies inside ``repository``, which everybody reads.
    """

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder = folder
        if folder.resolve().is_relative_to(repository.resolve()):
            raise UsageError(
                f"the keys' folder {folder} lies in the repository {repository}, which everybody reads. Choose another."
            )

    def paths(self, role: str) -> list[Path]:
        """The files of a role, in the order in which they were made."""
        found = [path for path in self.folder.glob(f"{role}*.pem") if re.fullmatch(rf"{role}(-\d+)?\.pem", path.name)]
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def signers(self, role: str) -> list[CryptoSigner]:
        """The keys of a role.

        Raises:
            UsageError: a file holds no Ed25519 private key.
        """
        return [CryptoSigner(read_private_key(path)) for path in self.paths(role)]

    def make(self, role: str, number: int = 1) -> list[CryptoSigner]:
        """As many new keys of a role, beside those that are there."""
        private_folder(self.folder)
        made = []
        for _ in range(number):
            signer = CryptoSigner.generate_ed25519()
            taken = {path.name for path in self.paths(role)}
            names = (f"{role}.pem" if n == 1 else f"{role}-{n}.pem" for n in range(1, len(taken) + 2))
            path = self.folder / next(name for name in names if name not in taken)
            write_atomically(path, signer.private_bytes)
            path.chmod(0o600)
            made.append(signer)
        return made

    def retire(self, paths: Iterable[Path]) -> None:
        """Put keys aside, for good."""
        aside = private_folder(self.folder / RETIRED)
        for path in paths:
            key_id = CryptoSigner(read_private_key(path)).public_key.keyid
            path.rename(aside / f"{path.stem}.{key_id[:12]}.pem")
