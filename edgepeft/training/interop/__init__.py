"""Other libraries' checkpoints: one importer each, found by discovery; none of those libraries is needed."""

from edgepeft.device.host.machine import refuse_bad_wheels

refuse_bad_wheels("torch")  # before a module of this package imports it: the process would die without a word
