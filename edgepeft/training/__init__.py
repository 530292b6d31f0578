"""Training a delta on a workstation: data, loop, checkpoints."""

from edgepeft.device.machine import refuse_bad_wheels

refuse_bad_wheels("torch")  # before a module of this package imports it: the process would die without a word
