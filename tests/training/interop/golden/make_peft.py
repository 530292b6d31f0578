"""Writes the golden PEFT checkpoints that lie beside this file; needs peft, which no test does.

    python tests/training/interop/golden/make_peft.py [NAME ...]

writes all of them, or those of ``CHECKPOINTS`` that are named, for backbones that are there already.

For each backbone (tiny, random): a folder in Hugging Face layout, a batch of token ids with ragged masks, and one
folder per checkpoint as ``PeftModel.save_pretrained`` writes it, with peft's own logits in ``logits.safetensors``.
Every trained tensor is moved away from its start, so that a checkpoint read as nothing would be seen.
"""

import contextlib
import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[2] / "support"))

from tiny import ragged, randomise, write_tokenizer

SIZES = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 32, "layer_norm_eps": 1e-6}
TYPES = {
    "bert": {"pad_token_id": 0, "type_vocab_size": 2},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    "mpnet": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "deberta": {
        "pad_token_id": 0,
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_buckets": 8,
        "max_relative_positions": 24,
    },
}
MODEL_TYPES = {"deberta": "deberta-v2"}  # where the folder's name is another
EVERY = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
SHARED = ["query_proj", "key_proj", "value_proj"]  # of DeBERTa
LORA = {"r": 4, "lora_alpha": 6, "target_modules": ["query", "value"]}


AUTO = {  # of a task type
    "SEQ_CLS": transformers.AutoModelForSequenceClassification,
    "TOKEN_CLS": transformers.AutoModelForTokenClassification,
    "QUESTION_ANS": transformers.AutoModelForQuestionAnswering,
}


def lora(task_type="SEQ_CLS", **more):
    return peft.LoraConfig(task_type=task_type, **(LORA | more))


def loha(**more):
    return peft.LoHaConfig(task_type="SEQ_CLS", **({"r": 3, "alpha": 5, "target_modules": ["query", "value"]} | more))


def lokr(**more):
    return peft.LoKrConfig(task_type="SEQ_CLS", **({"r": 1, "alpha": 3, "target_modules": ["query", "value"]} | more))


# name -> (config, number of labels, safetensors or not)
CHECKPOINTS = {
    "lora": (lora, 3, True),
    "rslora-every-site": (lambda: lora(use_rslora=True, target_modules=EVERY), 2, False),
    "lora-bias-all": (lambda: lora(bias="all"), 2, True),
    "lora-bias-only": (lambda: lora(bias="lora_only"), 2, True),
    "lora-patterns": (
        lambda: lora(
            rank_pattern={"key": 2}, alpha_pattern={"layer.1.*.key": 5}, target_modules=r".*\.1\..*(key|value)"
        ),
        1,
        True,
    ),
    "dora": (lambda: lora(use_dora=True, target_modules=EVERY), 3, True),
    "dora-patterns": (
        lambda: lora(
            use_dora=True,
            use_rslora=True,
            bias="lora_only",
            rank_pattern={"key": 2},
            target_modules=r".*\.1\..*key|.*query",
        ),
        2,
        True,
    ),
    "lora-one-layer": (lambda: lora(layers_to_transform=[0]), 2, True),
    "lora-all-linear": (
        lambda: lora(target_modules="all-linear", r=2, lora_alpha=1, alpha_pattern={"pooler.dense": 2}),
        3,
        True,
    ),
    "lora-whole-modules": (
        lambda: lora(modules_to_save=["classifier", "pooler", "output.LayerNorm"], layers_to_transform=[1]),
        2,
        True,
    ),
    "ln-tuning": (lambda: peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"]), 2, True),
    "ln-tuning-part": (lambda: peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["output.LayerNorm"]), 3, True),
    "ia3": (lambda: peft.IA3Config(task_type="SEQ_CLS"), 3, True),
    "ia3-own-modules": (
        lambda: peft.IA3Config(
            task_type="SEQ_CLS",
            target_modules=["query", "value", "intermediate.dense", "output.dense"],
            feedforward_modules=r".*layer\.\d+\.output\.dense",
        ),
        2,
        False,
    ),
    "vera": (lambda: peft.VeraConfig(task_type="SEQ_CLS", r=6, target_modules=["query", "value"]), 3, True),
    "vera-keyed": (  # by the key alone, and layers of several widths
        lambda: peft.VeraConfig(
            task_type="SEQ_CLS", r=5, projection_prng_key=11, save_projection=False, target_modules=EVERY
        ),
        2,
        False,
    ),
    "loha": (loha, 3, True),
    "loha-patterns": (  # layers of several widths, one of them with a rank and a scale of its own
        lambda: loha(
            rank_pattern={"layer.0.*.query": 2}, alpha_pattern={"intermediate.dense": 7}, target_modules=EVERY
        ),
        2,
        False,
    ),
    "lokr": (lokr, 3, True),
    "lokr-both": (  # layers of several widths, one of them with a rank and a scale of its own
        lambda: lokr(
            r=1,
            alpha=1,
            decompose_both=True,
            decompose_factor=8,
            rank_pattern={"layer.0.*.query": 2},
            alpha_pattern={"intermediate.dense": 2},
            target_modules=["query", "key", "intermediate.dense"],
        ),
        2,
        False,
    ),
    "prompt": (lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=5), 3, True),
    "prefix": (lambda: peft.PrefixTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=5), 3, True),
    "prefix-projected": (
        lambda: peft.PrefixTuningConfig(
            task_type="SEQ_CLS", num_virtual_tokens=3, prefix_projection=True, encoder_hidden_size=6
        ),
        2,
        True,
    ),
    # Of modules that BERT has not.
    "vera-layers": (
        lambda: peft.VeraConfig(task_type="SEQ_CLS", r=7, target_modules=["attn.q", "output.dense"]),
        2,
        True,
    ),
    "dora-layers": (lambda: lora(use_dora=True, target_modules=["attn.k", "attn.o", "intermediate.dense"]), 3, True),
    "lokr-layers": (lambda: lokr(target_modules=["attn.v", "output.dense"]), 2, True),
    # Of DeBERTa, whose queries and keys are of distances too, and whose pooler PEFT keeps where it is told to.
    "lora-shared": (lambda: lora(target_modules=SHARED, modules_to_save=["pooler"]), 3, True),
    "dora-shared": (lambda: lora(target_modules=SHARED, use_dora=True, modules_to_save=["pooler"]), 2, True),
    "vera-shared": (
        lambda: peft.VeraConfig(task_type="SEQ_CLS", r=6, target_modules=SHARED, modules_to_save=["pooler"]),
        3,
        True,
    ),
    "loha-shared": (lambda: loha(target_modules=SHARED, modules_to_save=["pooler"]), 2, True),
    "lokr-shared": (lambda: lokr(target_modules=SHARED, modules_to_save=["pooler"]), 3, True),
    "ia3-shared": (
        lambda: peft.IA3Config(
            task_type="SEQ_CLS",
            target_modules=["key_proj", "value_proj", "output.dense"],
            feedforward_modules=["output.dense"],
            modules_to_save=["pooler"],
        ),
        2,
        True,
    ),
    "ln-tuning-shared": (
        lambda: peft.LNTuningConfig(task_type="SEQ_CLS", target_modules=["LayerNorm"], modules_to_save=["pooler"]),
        3,
        True,
    ),
    "prompt-shared": (
        lambda: peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=5, modules_to_save=["pooler"]),
        2,
        True,
    ),
    "tags-lora": (lambda: lora("TOKEN_CLS", bias="all", target_modules=["query", "dense"]), 5, True),  # no pooler here
    "tags-prompt": (lambda: peft.PromptTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=4), 3, True),
    "tags-untyped": (lambda: lora(None, modules_to_save=["classifier"]), 3, True),  # the class alone says what it is
    "spans-lora": (lambda: lora("QUESTION_ANS"), 2, False),
    "spans-ia3": (lambda: peft.IA3Config(task_type="QUESTION_ANS"), 2, True),
}


OWN = {  # of one backbone alone, and all that it has
    "mpnet": ("vera-layers", "dora-layers", "lokr-layers"),
    "deberta": tuple(name for name in CHECKPOINTS if name.endswith("-shared")),
}
REFUSED = {"roberta": {"prefix", "prefix-projected"}}  # peft 0.21.2 fails in its classifier's ``forward``


def write_backbone(folder, model_type):
    config = transformers.AutoConfig.for_model(MODEL_TYPES.get(model_type, model_type), **(SIZES | TYPES[model_type]))
    model = transformers.AutoModel.from_config(config)
    randomise(model).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", config.pad_token_id, config.vocab_size)
    inputs = {name: torch.from_numpy(values) for name, values in ragged(8, 12, config.to_dict()).items()}
    if not getattr(config, "type_vocab_size", 0):
        del inputs["token_type_ids"]
    save_file(inputs, folder / "inputs.safetensors")
    return inputs


def model_of(folder, name):
    config, labels, _ = CHECKPOINTS[name]
    auto = AUTO[config().task_type or "TOKEN_CLS"]
    return auto.from_pretrained(folder, num_labels=labels, attn_implementation="eager").eval()


def logits_of(model, inputs):
    """[rows, labels]; of tokens, a prompt's too, [rows, length, labels]: of an answer its start and its end.

    Past PEFT's model for question answering, whose ``forward`` leaves token_type_ids out.
    """
    if model.active_peft_config.task_type != "QUESTION_ANS":
        return model(**inputs).logits
    outputs = model.base_model(**inputs)
    return torch.stack([outputs.start_logits, outputs.end_logits], -1)


def write_checkpoint(backbone, name, inputs):
    config, _, safe = CHECKPOINTS[name]
    torch.manual_seed(0)
    model = peft.get_peft_model(model_of(backbone, name), config()).eval()
    # What a prompt makes of a row is seen from its own place, which the row's tokens move less.
    strong = ("lora_", "ia3_", "vera_", "hada_", "lokr_", "prompt_encoder") + (
        ("classifier",) if name.startswith("prompt") else ()
    )
    rows, of_tokens = inputs["attention_mask"] > 0, name.startswith(("tags", "spans"))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.add_(
                    (0.5 if any(part in parameter_name for part in strong) else 0.2) * torch.randn(parameter.shape)
                )
        logits = logits_of(model, inputs)
        # The trained head on the untouched encoder: what a reader that lost the encoder's part would say.
        # A prompt is in the wrapper's forward alone; peft 0.21.2's disable_adapter fails on it.
        prompt = isinstance(model.active_peft_config, peft.PromptTuningConfig | peft.PrefixTuningConfig)
        with contextlib.nullcontext() if prompt else model.disable_adapter():
            base = model.get_base_model()
            fresh = base.base_model(**inputs)
            head = (base.qa_outputs if name.startswith("spans") else base.classifier).modules_to_save["default"]
            pooled = fresh.last_hidden_state if of_tokens else getattr(fresh, "pooler_output", None)
            pooled = fresh.last_hidden_state if pooled is None else pooled
            if backbone.name == "deberta":
                pooled = base.pooler.modules_to_save["default"](pooled)
            unmoved = head(pooled)
    moved = logits[:, -rows.shape[1] :][rows] - unmoved[rows] if of_tokens else logits - unmoved
    difference = moved.abs().max()
    assert difference > 0.1, (backbone, name, difference)
    folder = backbone.parent / f"{backbone.name}-{name}"
    model.save_pretrained(folder, safe_serialization=safe)
    (folder / "README.md").unlink()
    reread = peft.PeftModel.from_pretrained(model_of(backbone, name), folder).eval()
    torch.testing.assert_close(logits_of(reread, inputs), logits, atol=1e-6, rtol=0)  # the folder holds all of it
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")
    card = folder / "adapter_config.json"
    settings = json.loads(card.read_text()) | {"base_model_name_or_path": backbone.name}  # not where it lay
    card.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    named = sys.argv[1:]
    for model_type in TYPES:
        backbone = HERE / model_type
        for old in HERE.glob(f"{model_type}*"):
            if not named or old.name.removeprefix(f"{model_type}-") in named:
                shutil.rmtree(old)
        there = named and backbone.is_dir()
        inputs = load_file(backbone / "inputs.safetensors") if there else write_backbone(backbone, model_type)
        others = (name for name in CHECKPOINTS if not any(name in own for own in OWN.values()))
        for name in OWN.get(model_type, others):
            if name in (named or CHECKPOINTS) and name not in REFUSED.get(model_type, ()):
                write_checkpoint(backbone, name, inputs)
    packages = {name: version(name) for name in ("peft", "torch", "transformers", "safetensors")}
    (HERE / "peft-versions.json").write_text(json.dumps(packages, indent=2) + "\n")


if __name__ == "__main__":
    main()
