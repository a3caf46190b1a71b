"""What the runtime costs: our plain decoding against a bare loop over llama_decode and argmax, in one process.

    python scripts/overhead.py [-m MODEL] [--tokens 128] [--rounds 9]

The bare loop calls the native library directly, on a context of its own, in the same thread (a second computing thread
would slow both down). Both loops decode the same prompt and the same number of tokens, taking turns. Printed: the
ratio of their speeds (median over rounds, and the spread), and the time of
a step outside `llama_decode`, greedy and sampled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as C  # noqa: N812

import edgedec
from edgedec.machine import n_physical_cores

PROMPT = "Write a long story about a lighthouse keeper who finds a message in a bottle."


class Bare:
    """The least that decoding can be: llama_decode, argmax, next."""

    def __init__(self, path: Path, n_ctx: int) -> None:
        self._model = C.llama_model_load_from_file(str(path).encode(), C.llama_model_default_params())
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, 512, 512
        params.n_threads = params.n_threads_batch = n_physical_cores()
        self._context = C.llama_init_from_model(self._model, params)
        self._memory = C.llama_get_memory(self._context)
        self._n_vocab = C.llama_vocab_n_tokens(C.llama_model_get_vocab(self._model))

    def _decode(self, tokens: list[int]) -> int:
        buffer = (C.llama_token * len(tokens))(*tokens)
        if C.llama_decode(self._context, C.llama_batch_get_one(buffer, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        row = C.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(row, (self._n_vocab,)).argmax())

    def run(self, prompt: list[int], n_tokens: int) -> float:
        """Tokens per second, prompt not counted."""
        C.llama_memory_clear(self._memory, False)
        token = self._decode(prompt)
        began = time.perf_counter()
        for _ in range(n_tokens - 1):
            token = self._decode([token])
        return (n_tokens - 1) / (time.perf_counter() - began)

    def close(self) -> None:
        C.llama_free(self._context)
        C.llama_model_free(self._model)


def ours(llm: edgedec.LLM, prompt: list[int], n_tokens: int, temperature: float, speculate: bool) -> tuple[float, list]:
    """Tokens per second of a request, and per step the milliseconds outside llama_decode."""
    outside = []
    stream = llm.stream(
        prompt,
        max_tokens=n_tokens,
        temperature=temperature,
        top_k=0 if temperature else 40,
        seed=1,
        speculate=speculate,
    )
    for event in stream:
        if event.token_ids:
            outside.append(event.step_ms - event.decode_ms)
    return stream.result().timing.tokens_per_second, outside[1:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with edgedec.load(args.model, n_ctx=2048) as llm:
        loop = llm.client.call(lambda _: Bare(llm.path, 2048))

        def bare(n_tokens: int) -> float:
            return llm.client.call(lambda _: loop.run(prompt, n_tokens))

        prompt = list(llm.template.encode([edgedec.Message("user", PROMPT)]).ids)
        ours(llm, prompt, 16, 0.0, False)
        bare(16)
        ratios: list[float] = []
        greedy: list[float] = []
        sampled: list[float] = []
        auto: list[float] = []
        for i in range(args.rounds):
            base = bare(args.tokens) if i % 2 else 0.0
            speed, outside = ours(llm, prompt, args.tokens, 0.0, False)
            ratios.append(speed / (base or bare(args.tokens)))
            greedy += outside
            sampled += ours(llm, prompt, args.tokens, 0.8, False)[1]
            auto += ours(llm, prompt, args.tokens, 0.0, True)[1]
        llm.client.call(lambda _: loop.close())
    low, high = min(ratios), max(ratios)
    print(f"plain decoding / bare loop: {statistics.median(ratios):.3f} (from {low:.3f} to {high:.3f})")
    for name, times in (("greedy", greedy), ("temperature 0.8, top-p 0.95", sampled), ("greedy, auto", auto)):
        print(f"outside llama_decode, {name}: median {statistics.median(times):.3f} ms per step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
