"""`edgedec.llama.base.Model` on numpy: a byte vocabulary, a chat template, and a rule that makes up text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from edgedec.errors import ClosedError, UsageError
from edgedec.llama.base import ContextParams, MemoryKind
from edgedec.llama.fake.context import Delay, FakeClock, FakeContext
from edgedec.llama.fake.logits import LogitRule

BOS, EOS, END, SYSTEM, USER, ASSISTANT = range(256, 262)
_CONTROL = {
    BOS: "<s>",
    EOS: "</s>",
    END: "<|end|>",
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
}
# Two of them end inside a character of UTF-8: the first byte of "é", two of the three of "€".
_PIECES = (b"the ", " é".encode(), b"\n\n", b" stop", b"caf\xc3", b" \xe2\x82")
N_VOCAB = 256 + len(_CONTROL) + len(_PIECES)
_LIKELY = tuple(b"  etaoinshrdlucmfwygpbvk.,\n")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


class FakeModel:
    """Ids 0–255 are the bytes, then six control tokens, six pieces of several bytes, and words up to ``n_vocab``.

    ``n_window`` counts for WINDOW, ``n_rs_seq`` (how many tokens a rollback can undo) for HYBRID and RECURRENT.
    ``order``, ``noise``, ``end_rate``, ``script``: see `LogitRule`; two models with the same seed and order prefer the
    same continuations, the more alike the less noise they have. ``delay``: seconds that each piece of ``n_ubatch`` rows
    takes, on ``clock`` or, with ``sleep``, really.
    """

    def __init__(
        self,
        kind: MemoryKind = MemoryKind.FULL,
        *,
        seed: int = 0,
        n_vocab: int = N_VOCAB,
        n_ctx_train: int = 4096,
        n_window: int = 16,
        n_rs_seq: int = 0,
        order: int = 1,
        noise: float = 2.0,
        end_rate: float = 0.0,
        script: Sequence[int] | None = None,
        chat_template: str | None = CHAT_TEMPLATE,
        delay: Delay | None = None,
        clock: FakeClock | None = None,
        sleep: bool = False,
    ) -> None:
        if n_vocab < N_VOCAB:
            raise UsageError(f"n_vocab is {n_vocab}.", f"Use a whole number ≥ {N_VOCAB}.")
        self.kind = kind
        self.n_window = n_window if kind is MemoryKind.WINDOW else 0
        self.n_rs_seq = n_rs_seq if kind in (MemoryKind.HYBRID, MemoryKind.RECURRENT) else 0
        self.delay = delay
        self.clock = clock or FakeClock()
        self.sleep = sleep
        self.contexts: list[FakeContext] = []
        self.closed = False
        self._n_ctx_train = n_ctx_train
        self._chat_template = chat_template
        words = (f" w{i}".encode() for i in range(n_vocab - N_VOCAB))
        self._pieces = (*(bytes([i]) for i in range(256)), *(b"" for _ in _CONTROL), *_PIECES, *words)
        self._ids = {piece: token for token, piece in enumerate(self._pieces) if piece}
        self._longest = max(map(len, self._ids))
        self.rule = LogitRule(
            n_vocab,
            seed=seed,
            order=order,
            noise=noise,
            end_rate=end_rate,
            end=END,
            likely=(*_LIKELY, *(self._ids[piece] for piece in _PIECES)),
            never=(BOS, SYSTEM, USER, ASSISTANT),
            script=script,
        )
        settings = (kind, seed, n_vocab, self.n_window, order, noise, end_rate, script and tuple(script))
        self._fingerprint = hashlib.blake2b(repr(settings).encode(), digest_size=12).hexdigest() + "/fake"

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("The model has been closed.", "Load it again.")

    @property
    def path(self) -> Path:
        return Path("fake.gguf")

    @property
    def name(self) -> str:
        return "fake"

    @property
    def architecture(self) -> str:
        return "fake"

    @property
    def n_params(self) -> int:
        return 1_000_000

    @property
    def n_bytes(self) -> int:
        return 1_000_000

    @property
    def n_ctx_train(self) -> int:
        return self._n_ctx_train

    @property
    def n_vocab(self) -> int:
        return len(self._pieces)

    @property
    def metadata(self) -> Mapping[str, str]:
        return {"general.architecture": self.architecture, "general.name": self.name}

    @property
    def chat_template(self) -> str | None:
        return self._chat_template

    @property
    def bos_id(self) -> int | None:
        return BOS

    @property
    def eos_id(self) -> int | None:
        return EOS

    @property
    def eog_ids(self) -> frozenset[int]:
        return frozenset((EOS, END))

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def vocabulary(self) -> str:
        return hashlib.blake2b(b"\0".join(self._pieces), digest_size=12).hexdigest()

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        self._check_open()
        tokens = [BOS] if add_special else []
        if not parse_special:
            return tokens + self._tokenize_plain(text)
        spellings = {spelling: token for token, spelling in _CONTROL.items()}
        for part in re.split(f"({'|'.join(map(re.escape, self.control_strings()))})", text):
            tokens += [spellings[part]] if part in spellings else self._tokenize_plain(part)
        return tokens

    def _tokenize_plain(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokens, i = [], 0
        while i < len(data):
            n = next(n for n in range(self._longest, 0, -1) if data[i : i + n] in self._ids)
            tokens.append(self._ids[data[i : i + n]])
            i += n
        return tokens

    def _known(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise UsageError(f"Token id {token} is not in the vocabulary (0 to {self.n_vocab - 1}).")
        return token

    def piece(self, token: int) -> bytes:
        return self._pieces[self._known(token)]

    def special_text(self, token: int) -> str:
        return _CONTROL.get(token) or self.piece(token).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        return token in _CONTROL

    def control_strings(self) -> tuple[str, ...]:
        return tuple(sorted(_CONTROL.values(), key=lambda spelling: (-len(spelling), spelling)))

    def new_context(self, params: ContextParams) -> FakeContext:
        self._check_open()
        context = FakeContext(self, params)
        self.contexts.append(context)
        return context

    def close(self) -> None:
        self.closed = True
