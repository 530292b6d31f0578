"""Writes the golden AdapterHub checkpoints in ``adapterhub/``; needs adapters, which no test does.

    python tests/training/interop/golden/make_adapters.py [NAME ...]

All of them, or those of ``CHECKPOINTS`` that are named, on the backbones that ``make_peft.py`` wrote: one folder per checkpoint as ``save_adapter`` writes it, with the logits
that adapters itself gives in ``logits.safetensors``.  Every trained tensor is random, so that a checkpoint read as
nothing, or a norm that was lost, would be seen.
"""

import json
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import adapters
import torch
import transformers
from adapters import BnConfig, CompacterConfig, CompacterPlusPlusConfig, DoubleSeqBnConfig, LoRAConfig, SeqBnConfig
from adapters.composition import Fuse
from adapters.heads import ClassificationHead, MultiLabelClassificationHead, QuestionAnsweringHead, TaggingHead
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
FOLDER = HERE / "adapterhub"
NAME = "sst"
FAMILIES = {
    "bert": adapters.BertAdapterModel,
    "roberta": adapters.RobertaAdapterModel,
    "deberta": adapters.DebertaV2AdapterModel,
}
# transformers' own class and head
STATIC, TAGS, SPANS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
DEFAULT = {"num_labels": 3}  # two layers with tanh
TAGGING = {"num_labels": 3, "of": TaggingHead}
ONE, NUMBER, RELU, GELU = (
    {"layers": 1},
    {"num_labels": 1},
    {"activation_function": "relu"},
    {"activation_function": "gelu"},
)

# name -> (config, head, safetensors or not)
CHECKPOINTS = {
    "double-seq-bn": (DoubleSeqBnConfig(reduction_factor=4), DEFAULT | {"id2label": {0: "bad", 1: "fair", 2: "good"}}, False),
    "double-seq-bn-static": (DoubleSeqBnConfig(reduction_factor=8, non_linearity="relu"), STATIC, True),
    "seq-bn": (SeqBnConfig(reduction_factor=4), DEFAULT, True),
    "seq-bn-static": (SeqBnConfig(reduction_factor=4, non_linearity="gelu"), STATIC, False),
    "seq-bn-reductions": (
        SeqBnConfig(reduction_factor={"0": 8, "default": 4}, non_linearity="gelu_new", scaling="learned"),
        ONE,
        True,
    ),
    "attention-alone": (
        BnConfig(True, False, 4, "leakyrelu", leave_out=[0], scaling=0.5),
        NUMBER,
        True,
    ),
    "double-without-the-last": (DoubleSeqBnConfig(reduction_factor=0.5, non_linearity="tanh", leave_out=[1]), RELU, True),
    "feed-forward-alone": (BnConfig(False, True, 4, "quick_gelu", scaling="channel"), GELU, True),
    "par-bn": (adapters.ParBnConfig(reduction_factor=4), DEFAULT, True),
    "scaled-par-bn": (BnConfig(True, True, 8, "sigmoid", is_parallel=True, scaling="learned", ln_before=True), ONE, False),
    "own-norms": (SeqBnConfig(reduction_factor=4, ln_before=True, ln_after=True), DEFAULT, False),
    "own-norm-of-the-sum": (
        DoubleSeqBnConfig(reduction_factor=4, ln_after=True, adapter_residual_before_ln=True, scaling="channel"),
        DEFAULT,
        True,
    ),
    "post-add": (SeqBnConfig(reduction_factor=4, residual_before_ln="post_add", non_linearity="mish"), DEFAULT, True),
    "residual-after-ln": (
        BnConfig(True, True, 4, "relu6", original_ln_before=True, residual_before_ln=False),
        {"bias": False},
        True,
    ),
    "adapter-plus": (adapters.AdapterPlusConfig(reduction_factor=4, stochastic_depth=0.0), DEFAULT, True),
    "compacter": (CompacterConfig(reduction_factor=2), DEFAULT, True),
    "compacter-shared": (
        CompacterConfig(reduction_factor=4, shared_W_phm=True, factorized_phm_rule=True, phm_rank=2, scaling="learned"),
        ONE,
        True,
    ),
    "compacter-plus-plus": (CompacterPlusPlusConfig(reduction_factor=2, phm_rank=2), STATIC, True),
    "phm": (DoubleSeqBnConfig(reduction_factor=2, phm_layer=True, factorized_phm_W=False, shared_phm_rule=False), DEFAULT, False),
    "phm-seq-bn": (
        SeqBnConfig(
            reduction_factor=4,
            phm_layer=True,
            phm_dim=2,
            phm_rank=2,
            phm_bias=False,
            shared_phm_rule=False,
            factorized_phm_rule=True,
            scaling=2.0,
        ),
        DEFAULT,
        True,
    ),
    "phm-parallel": (BnConfig(True, False, 4, "swish", is_parallel=True, phm_layer=True, factorized_phm_W=False), ONE, True),
    "phm-reductions": (SeqBnConfig(reduction_factor={"0": 2, "1": 4}, phm_layer=True), DEFAULT, True),
    "lora": (LoRAConfig(r=4, alpha=6), DEFAULT, True),
    "lora-static": (LoRAConfig(r=2, alpha=1, attn_matrices=["k"], leave_out=[0]), STATIC, False),
    "lora-everywhere": (
        LoRAConfig(r=2, alpha=3, attn_matrices=["q", "k", "v"], intermediate_lora=True, output_lora=True, leave_out=[1]),
        NUMBER,
        True,
    ),
    "prompt": (adapters.PromptTuningConfig(prompt_length=5), DEFAULT, True),
    "prompt-static": (adapters.PromptTuningConfig(prompt_length=3), STATIC, False),
    "prefix": (adapters.PrefixTuningConfig(flat=True, prefix_length=4), DEFAULT, False),
    "prefix-projected": (
        adapters.PrefixTuningConfig(prefix_length=3, bottleneck_size=6, non_linearity="gelu"),
        STATIC,
        False,
    ),
    "mam": (
        adapters.MAMConfig(
            adapters.PrefixTuningConfig(bottleneck_size=5, prefix_length=3), adapters.ParBnConfig(reduction_factor=4)
        ),
        DEFAULT,
        False,
    ),
    "tagging": (SeqBnConfig(reduction_factor=4), TAGGING | {"id2label": dict(enumerate(("O", "B-X", "I-X")))}, True),
    "tagging-prompt": (adapters.PromptTuningConfig(prompt_length=4), TAGGING, False),
    "tagging-static": (LoRAConfig(r=4, alpha=6), TAGS, True),
    "multilabel": (CompacterConfig(reduction_factor=2), DEFAULT | {"of": MultiLabelClassificationHead}, False),
    "question-answering": (DoubleSeqBnConfig(reduction_factor=4), {"of": QuestionAnsweringHead}, True),
    "question-answering-static": (SeqBnConfig(reduction_factor=4), SPANS, False),
}  # fmt: skip
OF_BERT = {"pooler-head": (SeqBnConfig(reduction_factor=4), {"layers": 1, "use_pooler": True}, True)}

# One of each method: names and places are its own, what is done there is BERT's.
OF_DEBERTA = ("double-seq-bn", "own-norms", "par-bn", "compacter", "phm", "lora", "lora-everywhere", "tagging")

# family -> name -> (config of the attention, adapters, safetensors or not)
FUSIONS = {
    "bert": {
        "fusion": ("dynamic", {"one": SeqBnConfig(reduction_factor=4), "two": SeqBnConfig(reduction_factor=8)}, True)
    },
    "roberta": {
        "fusion-static": (
            "static",
            {name: SeqBnConfig(reduction_factor=4, non_linearity="gelu", leave_out=[0]) for name in ("a", "b", "c")},
            False,
        )
    },
    "deberta": {},
}


def model_of(backbone, head):
    if isinstance(head, str):
        auto = getattr(transformers, f"AutoModel{head}")
        labels = 2 if head == SPANS else 3
        model = auto.from_pretrained(backbone, num_labels=labels, attn_implementation="eager")
        adapters.init(model)
    else:
        model = FAMILIES[backbone.name].from_pretrained(backbone, attn_implementation="eager")
    return model.eval()


def randomise(model, static, names=(NAME,)):
    heads = ("classifier.", "qa_outputs.") if static else (f"heads.{NAME}.",)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape)
        if not any(f".{of}." in name for of in names) and not name.startswith(heads):
            continue
        if ("norm" in name and name.endswith("weight")) or name.endswith("scaling"):
            parameter.data = 1 + 0.3 * noise
        else:
            parameter.data = (0.5 if parameter.dim() > 1 else 0.3) * noise


def logits_of(outputs):
    """[rows, labels]; of tokens, a prompt's too, [rows, length, labels]: of an answer its start and its end."""
    return outputs.logits if "logits" in outputs else torch.stack([outputs.start_logits, outputs.end_logits], -1)


def write_checkpoint(backbone, name, config, head, safe):
    torch.manual_seed(0)
    model, static = model_of(backbone, head), isinstance(head, str)
    model.add_adapter(NAME, config=config)
    if not static:
        settings = {key: value for key, value in head.items() if key != "of"}
        model.add_prediction_head(head.get("of", ClassificationHead)(model, NAME, **settings))
    model.set_active_adapters(NAME)
    model.eval()
    inputs = load_file(backbone / "inputs.safetensors")
    asked = inputs if static else inputs | {"head": NAME}
    with torch.no_grad():
        randomise(model, static)
        logits = logits_of(model(**asked))
        model.set_active_adapters(None)
        unmoved = logits_of(model(**asked))  # the trained head on the untouched encoder
    rows = inputs["attention_mask"] > 0 if logits.dim() > 2 else slice(None)
    moved = logits[:, -unmoved.shape[1] :] if logits.dim() > 2 else logits
    difference = (moved - unmoved)[rows].abs().max()
    assert difference > 0.1, (backbone, name, difference)
    folder = FOLDER / f"{backbone.name}-{name}"
    model.save_adapter(folder, NAME, use_safetensors=safe)
    reread = model_of(backbone, head)
    reread.load_adapter(str(folder), set_active=True, use_safetensors=safe)
    torch.testing.assert_close(
        logits_of(reread.eval()(**asked)), logits, atol=1e-6, rtol=0
    )  # the folder holds all of it
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")
    for card in (folder / "adapter_config.json", folder / "head_config.json"):
        settings = json.loads(card.read_text()) | {"model_name": backbone.name}  # not where it lay
        card.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def write_fusion(backbone, name, config, members, safe):
    """As ``save_adapter_setup`` writes several adapters, the attention over them and a head."""
    torch.manual_seed(0)
    model, fuse = FAMILIES[backbone.name].from_pretrained(backbone), Fuse(*members)
    for adapter, settings in members.items():
        model.add_adapter(adapter, config=settings)
    model.add_adapter_fusion(fuse, config)
    model.add_prediction_head(ClassificationHead(model, NAME, num_labels=3, layers=1))
    model.set_active_adapters(fuse)
    model.eval()
    asked = load_file(backbone / "inputs.safetensors") | {"head": NAME}
    with torch.no_grad():
        randomise(model, False, (*members, fuse.name))
        logits = model(**asked).logits
        model.set_active_adapters(next(iter(members)))
        assert (model(**asked).logits - logits).abs().max() > 0.1
        model.set_active_adapters(fuse)
    folder = FOLDER / f"{backbone.name}-{name}"
    model.save_adapter_setup(folder, fuse, head_setup=NAME, use_safetensors=safe)
    reread = FAMILIES[backbone.name].from_pretrained(backbone)
    reread.load_adapter_setup(str(folder), set_active=True, use_safetensors=safe)
    torch.testing.assert_close(reread.eval()(**asked).logits, logits, atol=1e-6, rtol=0)
    save_file({"logits": logits.contiguous()}, folder / "logits.safetensors")
    for card in folder.glob("*/*_config.json"):
        settings = json.loads(card.read_text()) | {"model_name": backbone.name}
        card.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def main():
    transformers.logging.set_verbosity_error()
    named = sys.argv[1:]
    if not named:
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
    for family in FAMILIES:
        more = OF_BERT if family == "bert" else {}
        here = OF_DEBERTA if family == "deberta" else (*CHECKPOINTS, *more)
        for name, checkpoint in (CHECKPOINTS | more).items():
            if name in here and name in (named or here):
                write_checkpoint(HERE / family, name, *checkpoint)
        for name, checkpoint in FUSIONS[family].items():
            if name in (named or FUSIONS[family]):
                write_fusion(HERE / family, name, *checkpoint)
    packages = {name: version(name) for name in ("adapters", "torch", "transformers", "safetensors")}
    (FOLDER / "versions.json").write_text(json.dumps(packages, indent=2) + "\n")


if __name__ == "__main__":
    main()
