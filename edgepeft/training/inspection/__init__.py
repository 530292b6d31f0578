"""Looking at a trained delta: what each kind of module shows about itself on labelled rows."""

from edgepeft.device.host.machine import refuse_bad_wheels

refuse_bad_wheels("torch")  # before a module of this package imports it: the process would die without a word
