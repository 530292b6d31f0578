"""Synthetic questions on synthetic passages: templates of sentences with names that no test row shares with training."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

_TRAIN = (
    ("{person} moved to {place} in {year}.", {
        "Where did {person} move?": "place", "When did {person} move?": "year", "Who moved to {place}?": "person",
    }),
    ("The bridge of {place} was built by {person} in {year}.", {
        "Who built the bridge of {place}?": "person", "When was the bridge of {place} built?": "year",
    }),
    ("In {year}, {person} sold a {thing} in {place}.", {
        "What did {person} sell?": "thing", "Where did {person} sell a {thing}?": "place",
        "When did {person} sell a {thing}?": "year",
    }),
)  # fmt: skip
_TEST = (
    ("{person} came to {place} during {year}.", {
        "Where did {person} come to?": "place", "In which year did {person} come?": "year",
        "Who came to {place}?": "person",
    }),
    ("It was in {year} that {person} found a {thing} near {place}.", {
        "What did {person} find?": "thing", "Where was the {thing} found?": "place", "Who found the {thing}?": "person",
    }),
)  # fmt: skip
_FILLERS = {
    "train": {
        "person": [
            "Anna Berg",
            "Tom Hale",
            "Maria Lopez",
            "John Reed",
            "Li Wei",
            "Omar Said",
            "Eva Novak",
            "Paul Stone",
        ],
        "place": ["Lisbon", "Hamburg", "Kyoto", "Denver", "Oslo", "Cairo", "Vienna", "Quito"],
        "thing": ["clock", "violin", "painting", "boat", "lamp", "horse", "map", "ring"],
    },
    "test": {
        "person": ["Ruth Cole", "Sam Ford", "Ines Costa", "Karl Vogt", "Mei Lin", "Ali Hassan"],
        "place": ["Dublin", "Prague", "Osaka", "Boston", "Riga", "Tunis"],
        "thing": ["sword", "piano", "statue", "bicycle", "mirror", "coin"],
    },
}


def rows(n: int, part: str, seed: int = 0, *, sentences: int = 4, unanswered: float = 0.3) -> list[dict[str, Any]]:
    """SQuAD's columns; of the unanswered share the sentence that is asked for is left out of the passage."""
    source, templates = random.Random(f"{part}/{seed}"), _TRAIN if part == "train" else _TEST
    fillers, found = _FILLERS[part], []
    while len(found) < n:
        people = source.sample(fillers["person"], min(len(fillers["person"]), sentences + 1))
        places = source.sample(fillers["place"], len(people))
        things = source.sample(fillers["thing"], len(people))
        facts = [
            {"person": p, "place": q, "thing": t, "year": str(source.randrange(1800, 2020))}
            for p, q, t in zip(people, places, things, strict=True)
        ]
        chosen = [source.choice(templates) for _ in facts]
        question, answer = source.choice(sorted(chosen[0][1].items()))
        told = [template.format(**fact) for (template, _), fact in zip(chosen, facts, strict=True)]
        none = source.random() < unanswered
        order = list(range(1 if none else 0, len(told)))
        source.shuffle(order)
        context = " ".join(told[i] for i in order)
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if not none:
            before = context.index(told[0])
            start = before + told[0].index(facts[0][answer])
            answers = {"text": [facts[0][answer]], "answer_start": [start]}
        found.append({"question": question.format(**facts[0]), "context": context, "answers": answers})
    return found


def write(path: Path, n: int, part: str, seed: int = 0, **how: Any) -> Path:
    """As jsonl."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(n, part, seed, **how)))
    return path
