"""What a suite compares with, a file a tool.  ``python -m bench.peers NAME FOLDER OUT [TASK]`` makes a peer's model.

Nothing here imports edgepeft: SetFit's interpreter has none.
"""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """Who makes a model of the same weights: a function of this package, which needs ``module`` and writes ``result``.

    The function is given the checkpoint's folder, where to write, and what the suite asks for beside it.
    """

    module: str
    export: str
    result: str


PEERS = {
    "decoder_genai": Peer("onnxruntime_genai", "decoder_genai.export", "genai_config.json"),
    "decoder_llama_cpp": Peer("xllamacpp", "decoder_llama_cpp.export", "model.gguf"),
    "dynamic_int8": Peer("optimum.onnxruntime", "optimum.export_int8", "model.onnx"),
    "encoder_ctranslate2": Peer("ctranslate2", "ctranslate2.export", "model.bin"),
    "openvino": Peer("openvino", "openvino.export", "model.xml"),
    "openvino_int8": Peer("nncf", "openvino.export_int8", "model.xml"),
    "optimum": Peer("optimum.exporters.onnx", "optimum.export", "model.onnx"),
    "optimum_kinds": Peer("optimum.exporters.onnx", "optimum_kinds.export", "model.onnx"),
    "optimum_o3": Peer("optimum.onnxruntime", "optimum.export_fused", "model_optimized.onnx"),
    "text_ctranslate2": Peer("ctranslate2", "ctranslate2.export", "model.bin"),
    "text_openvino": Peer("optimum.intel.openvino", "openvino.export_text", "openvino_decoder_model.xml"),
    "text_optimum": Peer("optimum.onnxruntime", "optimum.export_text", "decoder_model_merged.onnx"),
    "torch_onnx": Peer("onnxscript", "pytorch.export_onnx", "model.onnx"),  # which PyTorch's exporter is written with
}
