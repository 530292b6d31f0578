"""A task that a tiny model learns in seconds: which of two sets of words a text is from."""

import json
import random

from edgepeft.data.rows import Row

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GOOD = ["good", "fine", "warm", "bright", "kind"]
BAD = ["bad", "cold", "dull", "grim", "mean"]
FILLER = ["the", "soup", "was", "a", "day", "and", "film", "very"]


def texts(n, seed=0):
    """``n`` (text, label, number of telling words) with the labels 2 to 1."""
    chance = random.Random(seed)
    found = []
    for i in range(n):
        words, label = (BAD, "bad") if i % 3 == 0 else (GOOD, "good")
        telling = chance.randint(2, 5)
        text = chance.choices(words, k=telling) + chance.choices(FILLER, k=chance.randint(0, 6))
        chance.shuffle(text)
        found.append((" ".join(text), label, telling))
    return found


def rows(n=60, seed=0, file="memory.jsonl"):
    return [Row(text, None, label, file, i) for i, (text, label, _) in enumerate(texts(n, seed), start=1)]


def write_texts(path):
    """60 of them as JSON lines."""
    path.write_text("".join(json.dumps({"sentence1": t, "label": label}) + "\n" for t, label, _ in texts(60)))
    return path
