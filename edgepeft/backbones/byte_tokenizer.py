"""byT5's tokens (Xue et al., 2022, arXiv:2105.13626): the bytes of a text in UTF-8, each by a number 3 above its value.

transformers has it in Python alone.  Here it is a ``tokenizer.json``: bytes as characters, and pairs that never merge.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

__all__ = ["TOKENIZER_CLASS", "byte_tokenizer"]

TOKENIZER_CLASS = "ByT5Tokenizer"  # in a ``tokenizer_config.json``
_SPECIAL = ("<pad>", "</s>", "<unk>")
_EXTRA = 125  # what pre-training puts in place of spans, behind the bytes
_BYTES = 256


def byte_tokenizer() -> Tokenizer:
    """A tokenizer that gives transformers' tokens; each text of a pair ends with ``</s>``."""
    first = len(_SPECIAL)
    vocabulary = {token: i for i, token in enumerate(_SPECIAL)}
    vocabulary |= {character: first + byte for byte, character in enumerate(_characters())}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = _SPECIAL[1]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, vocabulary[end])]
    )
    tokenizer.add_special_tokens([AddedToken(token, lstrip=True, rstrip=True) for token in _SPECIAL])
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{i}>") for i in range(_EXTRA)])
    return tokenizer


def _characters() -> list[str]:
    """By byte, as GPT-2 and the library write bytes: those that can be seen as they are, the others from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    unseen = [byte for byte in range(_BYTES) if byte not in seen]
    return [chr(byte if byte in seen else _BYTES + unseen.index(byte)) for byte in range(_BYTES)]
