"""Write ``train.jsonl`` and ``test.jsonl``: SYNTHETIC texts with people, places and firms, tagged as BIO.

    python tests/support/synthetic_names.py FOLDER [rows to train on] [rows to test on]

The test's templates and fillers are none of those that train; some fillers are of two types, by what stands around them.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

FILLERS = {
    "train": {
        "PER": "Ada Lovelace|Jordan|Chelsea|Mei Lin|Omar Haddad|Virginia|Carlos Ruiz|Ingrid Berg|Paul|Austin|Nina Patel|"
        "Dakota|Henry Ford|Lourdes|Kwame Mensah|Sofia|Florence|Ravi Kumar|Grace Hopper|Yuki Tanaka",
        "LOC": "Paris|Jordan|Chelsea|New York|Nairobi|Virginia|Lake Como|Oslo|Austin|South Korea|Buenos Aires|Dakota|"
        "Florence|Lourdes|Mumbai|Cape Town|Quebec|Sri Lanka|Berlin|Rio de Janeiro",
        "ORG": "Ford|Acme Corp|Nokia|United Bank|Tata Steel|Siemens|Red Cross|Delta Air Lines|Amazon|Orange|Apple|"
        "Bayer|World Trade Union|Shell|Deutsche Post|Mercedes|Lufthansa|Samsung|Target|Visa",
    },
    "test": {
        "PER": "Sydney|Madison|Emil Novak|Fatima Zahra|Georgia|Tom Becker|Aisha Diallo|Morgan|Lena Fischer|Washington|"
        "Diego Torres|Harriet Quinn|Kofi Annan|Brooklyn|Elena Petrova",
        "LOC": "Sydney|Madison|Lisbon|Georgia|Tel Aviv|Washington|Hong Kong|Brooklyn|Accra|San Marino|Kyoto|Prague|"
        "Costa Rica|Lagos|New Zealand",
        "ORG": "Morgan|Toyota|Unilever|Royal Mail|Gap|Oxfam|Hitachi|First National Bank|Boeing|Philips|Total|Meta|"
        "Korean Air|Chase|Nestle",
    },
}
TEMPLATES = {
    "train": [
        "{PER} flew to {LOC} yesterday .",
        "{ORG} hired {PER} as its new director .",
        "The mayor of {LOC} met {PER} .",
        "Shares of {ORG} fell after the news from {LOC} .",
        "{PER} and {PER} were born in {LOC} .",
        "Analysts expect {ORG} to buy {ORG} this year .",
        "It rained in {LOC} all week .",
        "My sister {PER} works for {ORG} .",
        "The road from {LOC} to {LOC} is closed .",
        "According to {PER} , {ORG} will close its plant in {LOC} .",
        "Nobody knew what the meeting was about .",
        "The report was late again , said {PER} .",
        "{ORG} opened an office in {LOC} .",
        "He drove his old car to the market .",
        "{LOC} has a mild climate .",
        "We walked along the river near {LOC} .",
        "{PER} teaches history in {LOC} .",
        "The beaches were empty this winter .",
        "Buses and trams did not run on Sunday .",
        "She gave the book to {PER} .",
        "{PER} lent him a bicycle .",
        "I met {PER} at the station .",
        "A manager of {ORG} resigned on Monday .",
        "{ORG} denied the claim , a lawyer for {ORG} said .",
        "Flights from {LOC} were delayed .",
        "Mr {PER} will call you later .",
        "Do you know whether {PER} is coming ?",
        "Staff of {ORG} want higher pay .",
        "The hotels in {LOC} are expensive .",
        "Visitors admire the old bridge in {LOC} .",
        "Engineers at {ORG} found a fault .",
        "Nurses were praised for their work .",
        "Professor {PER} wrote to {PER} about the patent .",
        "The court fined {ORG} for late payments .",
        "We moved to {LOC} in spring , and {PER} stayed in {LOC} .",
        "My neighbour quit {ORG} last month .",
        "The umbrella is behind the door .",
        "{PER} , who lives near {LOC} , bought shares of {ORG} .",
    ],
    "test": [
        "Last summer {PER} moved from {LOC} to {LOC} .",
        "A spokesman for {ORG} declined to comment .",
        "Have you heard that {PER} left {ORG} ?",
        "Tourists love the beaches near {LOC} .",
        "{ORG} sued {ORG} over a patent .",
        "Doctor {PER} will see you now .",
        "The trains were crowded this morning .",
        "Workers at {ORG} in {LOC} went on strike , {PER} wrote .",
        "I lent my umbrella to {PER} .",
    ],
}


def row(part: str, source: random.Random) -> dict[str, list[str]]:
    """One text of a part: words and tags."""
    words, tags = list[str](), list[str]()
    for piece in source.choice(TEMPLATES[part]).split():
        kind = re.fullmatch(r"\{(\w+)\}", piece)
        new = [piece] if kind is None else source.choice(FILLERS[part][kind[1]].split("|")).split()
        words += new
        tags += ["O"] if kind is None else [f"B-{kind[1]}"] + [f"I-{kind[1]}"] * (len(new) - 1)
    return {"words": words, "tags": tags}


def write(path: Path, part: str, n: int, seed: int = 0) -> Path:
    """Rows of a part, as many."""
    source = random.Random(f"{part}/{seed}")
    path.write_text("".join(json.dumps(row(part, source)) + "\n" for _ in range(n)))
    return path


if __name__ == "__main__":
    folder, sizes = Path(sys.argv[1]), [*map(int, sys.argv[2:]), 800, 400]
    for part, n in zip(("train", "test"), sizes, strict=False):
        print(write(folder / f"{part}.jsonl", part, n))
