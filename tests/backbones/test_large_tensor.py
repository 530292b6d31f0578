"""One tensor of more than 2 GiB, as XLM-R-XL's word embeddings are: in a file with holes, which takes no room."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper
from tiny import SIZES

from edgepeft.backbones.base import family_of

N_WORDS, WIDTH, LAST = 210_000, 2560, 209_998
SIZE = {"hidden_size": WIDTH, "vocab_size": N_WORDS, "num_attention_heads": 32, "num_hidden_layers": 1}
CONFIG = SIZES["xlm-roberta-xl"] | SIZE | {"model_type": "xlm-roberta-xl"}


def test_a_row_that_lies_beyond_2_gib_of_its_tensor_is_read(tmp_path: Path):
    family = family_of(CONFIG)
    architecture, table, end = family.architecture(CONFIG), {}, 0
    for name, shape in architecture.tensors.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        table[name] = {"dtype": "F32", "shape": [*shape], "data_offsets": [begin, end]}
    text, words = json.dumps(table).encode(), architecture.words
    path, row = tmp_path / "model.safetensors", np.random.default_rng(0).standard_normal(WIDTH, np.float32)
    place = table[words]["data_offsets"][0] + 4 * WIDTH * LAST
    assert place - table[words]["data_offsets"][0] > 2**31
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.seek(8 + len(text) + place)
        file.write(row.tobytes())
        file.truncate(8 + len(text) + end)

    checkpoint = architecture.open_checkpoint(path)
    np.testing.assert_array_equal(checkpoint.read(words)[LAST], row)
    model = architecture.graph(checkpoint)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("word_embeddings", TensorProto.FLOAT, ("tokens", WIDTH)))
    assert model.ByteSize() < 2**20
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    session = ort.InferenceSession(model.SerializeToString(), options)
    ids = np.array([[LAST, 5]])
    found = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
    np.testing.assert_array_equal(found, [row, np.zeros(WIDTH)])
