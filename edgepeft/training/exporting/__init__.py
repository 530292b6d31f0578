"""From trained deltas to a bundle: graphs, check files, manifest."""

from edgepeft.device.machine import refuse_bad_wheels

refuse_bad_wheels("torch")  # before a module of this package imports it: the process would die without a word
