"""Does guessing change the text? Every prompt is answered plainly and with drafts, greedily and sampled, and compared.

    python scripts/forks.py SUITE.jsonl [-m MODEL] [--prompts 40] [--max-tokens 200] [--temperature 0.8]

Where two token sequences part, the gap is reported: by how much the other token's logit would have to be raised, in the
plain run, for the plain rule to pick it. llama.cpp's kernels differ in the last bits with the width of a batch, so a
fork is expected where the gap is within that noise, which is measured here on the same texts (largest difference of a
logit between decoding one row at a time and eight rows at once). Exit code 1 if a gap is larger.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from prompts import read, spread

import edgedec
from edgedec.engine.sampling import Sampler
from edgedec.llama.base import Context, ContextParams, Rows
from edgedec.types import Result, SamplingParams


def feed(context: Context, tokens: Sequence[int], n_past: int, width: int) -> list[np.ndarray]:
    """Decode ``tokens`` in batches of ``width``; logits of every row, copied."""
    rows: list[np.ndarray] = []
    for start in range(0, len(tokens), width):
        part = tokens[start : start + width]
        n = len(part)
        context.decode(Rows(part, range(n_past + start, n_past + start + n), ((0,),) * n, (True,) * n))
        rows += [context.logits(i).copy() for i in range(n)]
    return rows


def plain_rows(context: Context, prompt: Sequence[int], answer: Sequence[int]) -> list[np.ndarray]:
    """The logits that chose each token of ``answer`` in plain decoding, by decoding it again one token at a time."""
    context.clear()
    for start in range(0, len(prompt) - 1, context.n_batch):
        part = prompt[start : min(start + context.n_batch, len(prompt) - 1)]
        n = len(part)
        context.decode(Rows(part, range(start, start + n), ((0,),) * n, (False,) * n))
    return feed(context, [prompt[-1], *answer[:-1]], len(prompt) - 1, 1)


def last_row(context: Context, prompt: Sequence[int], answer: Sequence[int], _: object) -> np.ndarray:
    """The logits that chose the last token of ``answer``."""
    return plain_rows(context, prompt, answer)[-1]


def noise_of(context: Context, prompt: Sequence[int], answer: Sequence[int], _: object) -> float:
    """The largest difference of a logit between decoding one row at a time and eight at once."""
    rows = plain_rows(context, prompt, answer)
    if not context.seq_rm(0, len(prompt) - 1, -1):
        raise RuntimeError("this memory cannot go back, so the noise cannot be measured")
    wide = feed(context, [prompt[-1], *answer[:-1]], len(prompt) - 1, 8)
    return max(float(np.abs(a - b).max()) for a, b in zip(rows, wide, strict=True))


def gap(params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], row: np.ndarray, other: int) -> float:
    """The smallest raise of ``other``'s logit in ``row`` that makes the plain rule pick it after ``answer``."""
    sampler = Sampler(params, row.size, prompt, n_ctx=1 << 20)
    for token in answer:
        sampler.accept(token)
    position = len(prompt) + len(answer)

    def picks(raise_by: float) -> bool:
        changed = row.copy()
        changed[other] += raise_by
        return sampler.sample(changed, position) == other

    low, high = 0.0, 64.0
    if picks(0.0):
        return 0.0
    if not picks(high):
        return float("inf")
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if picks(middle) else (middle, high)
    return high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("-m", "--model")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=0.8)
    args = parser.parse_args()
    items = spread(read(args.suite), args.prompts)
    limit_ctx = 4096
    with edgedec.load(args.model, n_ctx=limit_ctx) as llm:
        context = llm.client.call(lambda _: llm.model.new_context(ContextParams(n_ctx=limit_ctx, n_outputs_max=64)))
        noise: list[float] = []
        worst = 0.0
        for mode, temperature in (("greedy", 0.0), (f"temperature {args.temperature}", args.temperature)):
            same, gaps, drafted, accepted, n_tokens = 0, [], 0, 0, 0
            for seed, item in enumerate(items):
                prompt = llm.template.encode([edgedec.Message("user", item.text)]).ids
                if len(prompt) + args.max_tokens > limit_ctx:
                    continue
                params = SamplingParams(temperature=temperature, seed=seed)
                runs: list[Result] = []
                for speculate in (False, True):
                    runs.append(
                        llm.generate(
                            list(prompt),
                            max_tokens=args.max_tokens,
                            temperature=temperature,
                            seed=seed,
                            speculate=speculate,
                        )
                    )
                plain, guessed = (run.token_ids for run in runs)
                drafted += runs[1].speculation.drafted
                accepted += runs[1].speculation.accepted
                n_tokens += len(guessed)
                if mode == "greedy" and len(noise) < 10 and len(plain) > 16:
                    noise.append(llm.client.call(partial(noise_of, context, prompt, plain)))
                ends = (runs[0].finish_reason, runs[1].finish_reason)
                if plain == guessed and runs[0].text == runs[1].text and ends[0] == ends[1]:
                    same += 1
                    continue
                at = next((i for i, (a, b) in enumerate(zip(plain, guessed, strict=False)) if a != b), None)
                if at is None:
                    at = min(len(plain), len(guessed))
                eog = next(iter(llm.model.eog_ids))
                other = guessed[at] if at < len(guessed) else eog
                row = llm.client.call(partial(last_row, context, prompt, [*plain[:at], eog]))
                found = gap(params, prompt, plain[:at], row, other)
                gaps.append(found)
                print(f"  {mode}: {item.category} {item.id} parts at token {at}, gap {found:.3f}", flush=True)
            worst = max([worst, *gaps])
            done = same + len(gaps)
            print(
                f"{mode}: {same} of {done} texts equal, {len(gaps)} forks"
                f" (largest gap {max(gaps, default=0.0):.3f});"
                f" {n_tokens} tokens, {drafted} drafted, {accepted} accepted",
                flush=True,
            )
        llm.client.call(lambda _: context.close())
    level = max(noise, default=0.0)
    print(f"noise of batch width 8 on these texts: median {statistics.median(noise):.3f}, largest {level:.3f} logits")
    print("every fork is a near-tie" if worst <= 2 * level else f"WRONG: a gap of {worst:.3f} is above twice the noise")
    return 0 if worst <= 2 * level else 1


if __name__ == "__main__":
    sys.exit(main())
