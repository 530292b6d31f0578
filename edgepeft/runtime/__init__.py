"""Running a bundle: ONNX Runtime alone, never torch."""

from edgepeft.device.machine import refuse_bad_wheels

refuse_bad_wheels("onnxruntime")  # before a module of this package imports it: the process would die without a word
