"""Writes GGUF files of a few hundred kB that llama.cpp loads and runs: random weights, real formats.

The vocabulary is SentencePiece with byte fallback, so any text can be tokenised and comes back byte by byte. Control
tokens and words that nobody wants never win: their output rows are zero, so that an answer ends only when told to.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, PoolingType, TokenType

UNK, BOS, EOS = 0, 1, 2
CONTROL = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|im_end|>")
WORDS = (" ", " the", " a", " is", " sky", " blue", ".", ",", "\n\n", " é", " €", "🦊", " stop", "ing", " one", " two")
BYTE_0 = 3 + len(CONTROL)  # id of the token of byte 0
N_VOCAB = BYTE_0 + 256 + len(WORDS)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

N_EMBD, N_FF, N_LAYER, HEAD = 64, 128, 2, 32
_N_WINDOW = 16


def write_text_model(
    path: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    n_ctx_train: int = 2048,
    chat_template: str | None = CHAT_TEMPLATE,
    space_prefix: bool = False,
    is_embedding: bool = False,
) -> Path:
    """A model that generates. The architecture decides what its memory is: llama (full attention), gemma3 (sliding
    window), lfm2 (hybrid), mamba (recurrent). ``is_embedding``: the metadata says that it was made for vectors."""
    writer = GGUFWriter(path, architecture)
    writer.add_name(path.stem)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    if architecture == "mamba":
        writer.add_head_count(0)
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(2 * N_EMBD)
        writer.add_ssm_state_size(8)
        writer.add_ssm_time_step_rank(4)
    else:
        writer.add_head_count(N_EMBD // HEAD)
        writer.add_head_count_kv([0, 1] if architecture == "lfm2" else 1)
        writer.add_rope_dimension_count(HEAD)
    if architecture == "gemma3":
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_sliding_window(_N_WINDOW)
        writer.add_sliding_window_pattern(2)
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(3)
    if is_embedding:
        writer.add_pooling_type(PoolingType.MEAN)
    _add_vocabulary(writer, space_prefix)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    _Weights(writer, seed).add(architecture)
    return _finish(writer, path)


def write_embedding_model(path: Path) -> Path:
    """A model of the BERT kind, which cannot write text."""
    writer = GGUFWriter(path, "bert")
    n_ctx = 64
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_EMBD // HEAD)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(PoolingType.MEAN)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"▁{c}" for c in "abcdefghijklmnopqrstuvwxyz")]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL] * 5 + [TokenType.NORMAL] * 26)
    writer.add_token_type_count(2)
    for name, token in (("padding", 0), ("unknown", 1), ("cls", 2), ("bos", 2), ("seperator", 3), ("mask", 4)):
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    _Weights(writer, 0).add_bert(len(tokens), n_ctx)
    return _finish(writer, path)


def _finish(writer: GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: GGUFWriter, space_prefix: bool) -> None:
    tokens = ["<unk>", "<s>", "</s>", *CONTROL, *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [word.replace(" ", "▁") for word in WORDS]
    kinds = [TokenType.UNKNOWN] + [TokenType.CONTROL] * (2 + len(CONTROL))
    kinds += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(WORDS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(tokens.index("<|end|>"))
    writer.add_unk_token_id(UNK)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(space_prefix)


class _Weights:
    """Normal numbers, the same for a seed and a tensor's name whatever else is in the file."""

    def __init__(self, writer: GGUFWriter, seed: int) -> None:
        self._writer = writer
        self._seed = seed

    def _normal(self, name: str, shape: Sequence[int], scale: float) -> npt.NDArray[np.float32]:
        generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        return (scale * generator.standard_normal(shape)).astype(np.float32)

    def matrix(self, name: str, n_out: int, n_in: int) -> None:
        self._writer.add_tensor(name, self._normal(name, (n_out, n_in), n_in**-0.5))

    def filled(self, name: str, n: int, value: float = 1.0) -> None:
        self._writer.add_tensor(name, np.full(n, value, np.float32))

    def add(self, architecture: str) -> None:
        embeddings = self._normal("token_embd.weight", (N_VOCAB, N_EMBD), 1.0)
        if architecture == "gemma3":  # which multiplies by the root of the width
            embeddings /= N_EMBD**0.5
        output = self._normal("output.weight", (N_VOCAB, N_EMBD), 0.5)
        output[:BYTE_0] = 0
        output[BYTE_0 : BYTE_0 + 32] = 0  # control characters
        output[BYTE_0 + 127 : BYTE_0 + 256] *= 0.5  # bytes that are not a character by themselves
        self._writer.add_tensor("token_embd.weight", embeddings)
        self._writer.add_tensor("output.weight", output)
        self.filled("token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight", N_EMBD)
        for i in range(N_LAYER):
            self.filled(f"blk.{i}.attn_norm.weight", N_EMBD)
            if architecture == "mamba":
                self._add_mamba(i)
                continue
            if architecture == "lfm2" and i == 0:
                self._add_short_convolution(i)
            else:
                self._add_attention(i, with_norms=architecture != "llama")
            self.filled(f"blk.{i}.ffn_norm.weight", N_EMBD)
            if architecture == "gemma3":
                self.filled(f"blk.{i}.post_attention_norm.weight", N_EMBD)
                self.filled(f"blk.{i}.post_ffw_norm.weight", N_EMBD)
            self.matrix(f"blk.{i}.ffn_gate.weight", N_FF, N_EMBD)
            self.matrix(f"blk.{i}.ffn_up.weight", N_FF, N_EMBD)
            self.matrix(f"blk.{i}.ffn_down.weight", N_EMBD, N_FF)

    def _add_attention(self, i: int, *, with_norms: bool) -> None:
        self.matrix(f"blk.{i}.attn_q.weight", N_EMBD, N_EMBD)
        self.matrix(f"blk.{i}.attn_k.weight", HEAD, N_EMBD)
        self.matrix(f"blk.{i}.attn_v.weight", HEAD, N_EMBD)
        self.matrix(f"blk.{i}.attn_output.weight", N_EMBD, N_EMBD)
        if with_norms:
            self.filled(f"blk.{i}.attn_q_norm.weight", HEAD)
            self.filled(f"blk.{i}.attn_k_norm.weight", HEAD)

    def _add_short_convolution(self, i: int) -> None:
        self.matrix(f"blk.{i}.shortconv.conv.weight", N_EMBD, 3)
        self.matrix(f"blk.{i}.shortconv.in_proj.weight", 3 * N_EMBD, N_EMBD)
        self.matrix(f"blk.{i}.shortconv.out_proj.weight", N_EMBD, N_EMBD)

    def _add_mamba(self, i: int) -> None:
        inner = 2 * N_EMBD
        self.matrix(f"blk.{i}.ssm_in.weight", 2 * inner, N_EMBD)
        self.matrix(f"blk.{i}.ssm_conv1d.weight", inner, 4)
        self.filled(f"blk.{i}.ssm_conv1d.bias", inner, 0.0)
        self.matrix(f"blk.{i}.ssm_x.weight", 4 + 2 * 8, inner)
        self.matrix(f"blk.{i}.ssm_dt.weight", inner, 4)
        self.filled(f"blk.{i}.ssm_dt.bias", inner, 0.5)
        self._writer.add_tensor(f"blk.{i}.ssm_a", np.full((inner, 8), -0.5, np.float32))
        self.filled(f"blk.{i}.ssm_d", inner)
        self.matrix(f"blk.{i}.ssm_out.weight", N_EMBD, inner)

    def add_bert(self, n_vocab: int, n_ctx: int) -> None:
        self.matrix("token_embd.weight", n_vocab, N_EMBD)
        self.matrix("token_types.weight", 2, N_EMBD)
        self.matrix("position_embd.weight", n_ctx, N_EMBD)
        for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
            self.filled(f"{name}.weight", N_EMBD)
            self.filled(f"{name}.bias", N_EMBD, 0.0)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            self.matrix(f"blk.0.{name}.weight", N_EMBD, N_EMBD)
            self.filled(f"blk.0.{name}.bias", N_EMBD, 0.0)
        self.matrix("blk.0.ffn_up.weight", N_FF, N_EMBD)
        self.filled("blk.0.ffn_up.bias", N_FF, 0.0)
        self.matrix("blk.0.ffn_down.weight", N_EMBD, N_FF)
        self.filled("blk.0.ffn_down.bias", N_EMBD, 0.0)
