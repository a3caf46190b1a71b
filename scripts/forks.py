"""Does guessing change the text? Every prompt is answered plainly and with guesses, greedily and sampled, and compared.

    python scripts/forks.py [SUITE.jsonl] [-m MODEL] [--modes auto] [--prompts 3] [--max-tokens 200] [--temperature 0.8]

Where two token sequences part, the gap is reported, and whether it is a near-tie (see edgedec/bench/forks.py).
``--prompts``: of each category of the suite. Exit code 1 if a fork is no near-tie.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import edgedec
from edgedec.bench import suite
from edgedec.bench.compare import find_forks
from edgedec.bench.modes import Local, parse_modes
from edgedec.bench.record import Settings
from edgedec.bench.runner import n_tokens_needed, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, nargs="?")
    parser.add_argument("-m", "--model")
    parser.add_argument("--modes", default="auto")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    args = parser.parse_args()
    prompts = suite.first_of_each(suite.read(args.suite) if args.suite else suite.builtin(), args.prompts)
    modes = parse_modes(args.modes)
    n_wrong = 0
    with edgedec.load(args.model, learn=False) as llm:

        def encode(messages: list[edgedec.Message]) -> tuple[int, ...]:
            return tuple(llm.template.encode(messages).ids)

        llm.client.reserve(n_tokens_needed(prompts, encode, Settings(args.max_tokens), 1))
        for temperature in (0.0, args.temperature):
            settings = Settings(args.max_tokens, temperature)
            found = run(prompts, [Local(llm, mode) for mode in modes], encode, settings, n_ctx=llm.n_ctx)
            noise = find_forks(llm, found.measured, [mode.name for mode in modes[1:]], settings)
            for one in found.measured:
                for name, fork in one.forks.items():
                    n_wrong += not fork.is_near_tie
                    print(
                        f"  {name}: {one.case.category} {one.case.prompt_id} parts at token {fork.at},"
                        f" gap {fork.gap:.3f}{'' if fork.is_near_tie else ', NOT A NEAR-TIE'}"
                    )
            n_forks = sum(len(one.forks) for one in found.measured)
            print(
                f"temperature {temperature:g}: {len(found.measured) * (len(modes) - 1) - n_forks} texts equal,"
                f" {n_forks} forks" + (f"; noise of wide batches {noise:.3f} logits" if noise is not None else ""),
                flush=True,
            )
    print("every fork is a near-tie" if n_wrong == 0 else f"WRONG: {n_wrong} forks are no near-ties")
    return 0 if n_wrong == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
