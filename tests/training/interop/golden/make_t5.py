"""Writes the golden checkpoints of models that write text, in ``text/``; needs peft or adapters, which no test does.

    python tests/training/interop/golden/make_t5.py peft
    python tests/training/interop/golden/make_t5.py adapters

The first writes the backbones too (tiny, random), with a batch of token ids with ragged masks.  Beside each checkpoint lie
the library's own logits for each label, teacher-forced: ``logits.safetensors``, one tensor [rows, tokens, vocabulary] a label.
Every trained tensor is moved away from its start, so that a checkpoint read as nothing would be seen.
"""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
FOLDER = HERE / "text"
sys.path.append(str(HERE.parents[2] / "support"))

from tiny import ragged, randomise, write_tokenizer

SIZES = {
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 2,
    "vocab_size": 40,
}
SIZES |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "eos_token_id": 3}
SIZES |= {"pad_token_id": 0, "decoder_start_token_id": 0}
BACKBONES = {"t5": {}, "flan": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}}
WORDS = {36: "no", 37: "perhaps", 38: "yes", 39: "not"}
END = 3
TARGETS = {"no": [36, END], "not no": [39, 36, END], "not": [39, END], "perhaps": [37, END]}
NAME = "sst"


def write_backbone(name):
    folder = FOLDER / name
    config = transformers.T5Config(**(SIZES | BACKBONES[name]))
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    randomise(model).save_pretrained(folder)
    write_tokenizer(folder / "tokenizer.json", 0, 40, WORDS)
    rows = ragged(6, 9, SIZES)
    save_file({n: torch.from_numpy(rows[n]) for n in ("input_ids", "attention_mask")}, folder / "inputs.safetensors")


def model_of(name):
    return transformers.T5ForConditionalGeneration.from_pretrained(FOLDER / name, attn_implementation="eager").eval()


def logits_of(model, name):
    """By label; the decoder reads the start and all tokens but the last."""
    inputs, found = load_file(FOLDER / name / "inputs.safetensors"), {}
    with torch.no_grad():
        for label, target in TARGETS.items():
            read = torch.tensor([[0, *target[:-1]]]).expand(len(inputs["input_ids"]), -1)
            found[label] = model(**inputs, decoder_input_ids=read, use_cache=False).logits.contiguous()
    return found


def require_moved(logits, unmoved, where):
    difference = max(float((logits[label] - unmoved[label]).abs().max()) for label in logits)
    assert difference > 0.1, (where, difference)


def write_json(path, more):
    path.write_text(json.dumps(json.loads(path.read_text()) | more, indent=2, sort_keys=True) + "\n")


def write_versions(library):
    packages = {name: version(name) for name in (library, "torch", "transformers", "safetensors")}
    (FOLDER / f"{library}-versions.json").write_text(json.dumps(packages, indent=2) + "\n")


def write_peft():
    import peft

    task = {"task_type": "SEQ_2_SEQ_LM"}
    every = ["q", "k", "v", "o", "wi", "wi_0", "wi_1", "wo"]
    kinds = {
        "lora": lambda: peft.LoraConfig(r=4, lora_alpha=6, **task),
        "lora-everywhere": lambda: peft.LoraConfig(r=2, lora_alpha=3, use_rslora=True, target_modules=every, **task),
        "lora-cross-alone": lambda: peft.LoraConfig(
            r=2, lora_alpha=3, target_modules=r".*EncDecAttention\.(k|o)", **task
        ),
        "ia3": lambda: peft.IA3Config(**task),
        "ia3-own-modules": lambda: peft.IA3Config(
            target_modules=["q", "o", "wi", "wi_0"], feedforward_modules=["o"], **task
        ),
        "ln-tuning": lambda: peft.LNTuningConfig(target_modules=["layer_norm", "final_layer_norm"], **task),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=3, **task),
        "prompt-of-the-encoder": lambda: peft.PromptTuningConfig(
            num_virtual_tokens=3, num_transformer_submodules=1, **task
        ),
    }
    for backbone in BACKBONES:
        write_backbone(backbone)
        bare = logits_of(model_of(backbone), backbone)
        for kind, config in kinds.items():
            torch.manual_seed(0)
            model = peft.get_peft_model(model_of(backbone), config()).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(0.25 * torch.randn(parameter.shape))
            logits = logits_of(model, backbone)
            require_moved(logits, bare, (backbone, kind))
            folder = FOLDER / f"{backbone}-peft-{kind}"
            model.save_pretrained(folder)
            (folder / "README.md").unlink()
            reread = logits_of(peft.PeftModel.from_pretrained(model_of(backbone), folder).eval(), backbone)
            torch.testing.assert_close(reread, logits, atol=1e-6, rtol=0)  # the folder holds all of it
            save_file(logits, folder / "logits.safetensors")
            write_json(folder / "adapter_config.json", {"base_model_name_or_path": backbone})
    write_versions("peft")


def write_adapters():
    import adapters
    from adapters import BnConfig, CompacterConfig, DoubleSeqBnConfig, LoRAConfig, SeqBnConfig

    kinds = {
        "double-seq-bn": DoubleSeqBnConfig(reduction_factor=4),
        "double-seq-bn-cross": DoubleSeqBnConfig(reduction_factor=4, cross_adapter=True),
        "seq-bn": SeqBnConfig(reduction_factor=4),
        "seq-bn-cross": SeqBnConfig(reduction_factor=4, cross_adapter=True, non_linearity="gelu"),
        "par-bn": adapters.ParBnConfig(reduction_factor=4),
        "residual-after-ln": BnConfig(True, True, 4, "relu", original_ln_before=True, residual_before_ln=False),
        "adapter-plus": adapters.AdapterPlusConfig(reduction_factor=4, stochastic_depth=0.0),
        "without-the-lowest": DoubleSeqBnConfig(reduction_factor={"1": 8, "default": 4}, leave_out=[0, 2]),
        "lora": LoRAConfig(r=4, alpha=6),
        "lora-everywhere": LoRAConfig(
            r=2, alpha=3, attn_matrices=["q", "k", "v"], intermediate_lora=True, output_lora=True
        ),
        "phm": DoubleSeqBnConfig(reduction_factor=2, phm_layer=True, shared_phm_rule=False),
        "compacter": CompacterConfig(reduction_factor=2),
        "compacter-cross": CompacterConfig(reduction_factor=2, cross_adapter=True),
    }
    flexible = {"compacter", "compacter-cross", "seq-bn"}  # AdapterHub's own class, with a head that writes text
    for backbone in BACKBONES:
        for kind, config in kinds.items():
            write_adapter(adapters, backbone, kind, config, flexible=kind in flexible)
    # Over transformers' own class the rule that all adapters share is not saved.
    write_adapter(adapters, "t5", "compacter-static", CompacterConfig(reduction_factor=2), whole=False)
    write_versions("adapters")


def adapter_model(adapters, backbone, *, flexible):
    if flexible:
        whole = model_of(backbone)  # transformers 4.57.6 refuses to read such a folder as adapters' class
        model = adapters.T5AdapterModel(whole.config)
        known = model.transformer.state_dict()
        model.transformer.load_state_dict({name: value for name, value in whole.state_dict().items() if name in known})
    else:
        model = model_of(backbone)
        adapters.init(model)
    return model.eval()


def write_adapter(adapters, backbone, kind, config, *, flexible=False, whole=True):
    torch.manual_seed(0)
    model = adapter_model(adapters, backbone, flexible=flexible)
    model.add_adapter(NAME, config=config)
    if flexible:
        model.add_seq2seq_lm_head(NAME)
        weight = model_of(backbone).get_output_embeddings().weight
        model.heads[NAME].get_output_embeddings().weight.data = weight.data.clone()
    model.set_active_adapters(NAME)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if f".{NAME}." in f".{name}" and not name.startswith("heads."):
                noise = torch.randn(parameter.shape)
                parameter.data = (0.5 if parameter.dim() > 1 else 0.3) * noise
    logits = logits_of(model, backbone)
    require_moved(logits, logits_of(model_of(backbone), backbone), (backbone, kind))
    folder = FOLDER / f"{backbone}-hub-{kind}"
    model.save_adapter(folder, NAME, use_safetensors=True)
    reread = adapter_model(adapters, backbone, flexible=flexible)
    reread.load_adapter(str(folder), set_active=True, use_safetensors=True)
    if whole:
        torch.testing.assert_close(logits_of(reread.eval(), backbone), logits, atol=1e-6, rtol=0)
    save_file(logits, folder / "logits.safetensors")
    for card in (folder / "adapter_config.json", folder / "head_config.json"):
        if card.exists():
            write_json(card, {"model_name": backbone})  # not where it lay


def main():
    transformers.logging.set_verbosity_error()
    library = sys.argv[1]
    for old in FOLDER.glob("*" if library == "peft" else "*-hub-*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    {"peft": write_peft, "adapters": write_adapters}[library]()


if __name__ == "__main__":
    main()
