"""Where guessing should pay, and where it must not cost: answers with and without drafts, in one process, interleaved.

    python scripts/copying.py [-m MODEL] [--rounds 5] [--max-tokens 300]

Tasks that repeat their prompt (fix the spelling of a text, rename a variable) and tasks that do not (prose). Small
models do not follow such instructions well, so each copying task also runs with the beginning of the answer put
into the model's mouth. Printed per task: speed with drafts over speed without (median of rounds, and the spread),
tokens per step.
"""

from __future__ import annotations

import argparse
import statistics
import sys

import edgedec

SENTENCES = [
    "The old harbour town wakes befor the sun, when the first boats come back with there catch.",
    "Gulls circle over the market hall and the fishermens voices carry across the narow streets.",
    "By seven the bakery on the corner has sold its last loaf, and children run past with warm rolls in thier hands.",
    "Nobody here is in a hury, yet everything seems to happen at exactly the right moment.",
    "In the afternoon the wind turns, the flags on the pier change direction and the water goes from green to gray.",
    "Tourists ask for the way to the lighthouse and are sent along the wall, past the boatyard and the chapel.",
    "The keeper has told the same story for thirty years, and he tells it as if it had hapened yesterday.",
    "When the evening comes, lamps are lit one after another, and the town looks like a second sky.",
]
CODE = """def total_price(items, tax_rate):
    result = 0.0
    for item in items:
        price = item["price"] * item["quantity"]
        if item.get("discount"):
            price = price * (1.0 - item["discount"])
        result = result + price
    result = result * (1.0 + tax_rate)
    return round(result, 2)


def print_invoice(items, tax_rate):
    for item in items:
        print(item["name"], item["quantity"], item["price"])
    result = total_price(items, tax_rate)
    print("Total:", result)
    return result
"""
TEXT = " ".join(SENTENCES)
RENAMED = CODE.partition("    return round")[0].replace("result", "total")
# The first sentences as they should be: a small model only goes on copying once it sees that it has begun to.
CORRECTED = (
    "The old harbour town wakes before the sun, when the first boats come back with their catch. Gulls circle over the "
    "market hall and the fishermen's voices carry across the narrow streets. By seven the bakery"
)
TASKS: dict[str, tuple[str, str]] = {
    "fix spelling": (
        f"Correct the spelling of this text. Answer with the whole text only.\n\n{TEXT}",
        CORRECTED,
    ),
    "rename variable": (
        f"Rename the variable `result` to `total`. Answer with the whole file only.\n\n{CODE}",
        RENAMED,
    ),
    "prose: story": ("Write a story about a lighthouse keeper who finds a message in a bottle.", ""),
    "prose: advice": ("I cannot sleep well lately. What could I try, and why would it help?", ""),
    "prose: explain": ("Explain how a bicycle stays upright while it is moving.", ""),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=300)
    args = parser.parse_args()
    with edgedec.load(args.model, n_ctx=4096) as llm:
        for name, (text, start) in TASKS.items():
            ids = list(llm.template.encode([edgedec.Message("user", text)]).ids) + llm.model.tokenize(start)
            ratios, live, per_step, same = [], [], [], True
            for i in range(args.rounds + 1):
                runs = {}
                for speculate in (True, False) if i % 2 else (False, True):
                    runs[speculate] = llm.generate(ids, max_tokens=args.max_tokens, temperature=0, speculate=speculate)
                if i == 0:
                    continue  # warm-up
                ratios.append(runs[True].timing.tokens_per_second / runs[False].timing.tokens_per_second)
                live.append(runs[True].speedup)
                per_step.append(runs[True].speculation.tokens_per_step)
                same &= runs[True].token_ids == runs[False].token_ids
            print(
                f"{name:<16} {statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"
                f"  reported {statistics.median(live):.3f}  tokens/step {statistics.median(per_step):.2f}"
                f"  {len(runs[True].token_ids)} tokens  {'same text' if same else 'text differs'}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
