"""``edgedec run``: one answer to stdout."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import click

from edgedec.cli import explain_fatal_errors, print_json
from edgedec.cli.options import learn_option, model_options, sampling_options, verbose_option
from edgedec.cli.progress import StatusLine
from edgedec.errors import UsageError
from edgedec.llm import LLM, GenerateOptions, Stream, load, sampling_params
from edgedec.types import Request, Result

_MODEL_FLAGS = ("n_ctx", "n_threads", "n_gpu_layers", "type_k", "type_v", "flash_attn", "speculate", "learn")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("prompt", required=False)
@model_options
@click.option("-n", "--max-tokens", type=int, help="Stop after so many tokens.  [default: when the model ends]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated.")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--raw", is_flag=True, help="Send the prompt without the chat template.")
@click.option("--prediction", metavar="FILE", help="A text the answer will be like: speeds up, changes nothing.")
@sampling_options
@learn_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
@click.option("--stats/--no-stats", default=None, help="Print the numbers line to stderr.  [default: on a terminal]")
@verbose_option
def run(prompt: str | None, model: str | None, as_json: bool, stats: bool | None, **flags: Any) -> None:
    """Answer PROMPT, or what is piped in when PROMPT is "-" or missing."""
    text = _prompt_text(prompt)
    options = cast(GenerateOptions, {k: v for k, v in flags.items() if k not in _MODEL_FLAGS and v is not None})
    if flags["prediction"] is not None:
        options["prediction"] = _read(flags["prediction"])
    _check(options)
    explain_fatal_errors()
    line = StatusLine()

    def on_fetch(message: str, done: int | None, total: int | None) -> None:
        line.update(message, done / total if done is not None and total else None)

    try:
        llm = load(
            model,
            progress=lambda fraction: line.update("loading the model", fraction),
            fetch_progress=on_fetch,
            **{name: flags[name] for name in _MODEL_FLAGS},
        )
    finally:
        line.clear()
    with llm:
        result = _answer(llm, text, options, line, show=not as_json)
        if as_json:
            print_json(as_object(llm, result))
        if stats if stats is not None else sys.stderr.isatty():
            click.echo(numbers(result), err=True)
    if result.finish_reason == "cancelled":
        sys.exit(130)


def _prompt_text(prompt: str | None) -> str:
    """What to answer. Bytes that are not UTF-8 become U+FFFD instead of an error."""
    if prompt is not None and prompt != "-":
        text = prompt
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("There is no prompt.", 'Give one: edgedec run "Why is the sky blue?", or pipe a text in.')
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not text.strip():
        raise UsageError("The prompt is empty.", "Give at least one character of text.")
    return text


def _read(file: str) -> str:
    """A text file, without what an editor may have put in front. Raises UsageError."""
    try:
        return Path(file).read_text("utf-8-sig", "replace")
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.", "Give a text file to --prediction.") from error


def _check(options: GenerateOptions) -> None:
    """Refuse impossible numbers before a model is fetched and loaded. Raises UsageError."""
    if options.get("raw") and "system" in options:
        raise UsageError("A system message needs the chat template.", "Leave out either --system or --raw.")
    sampling = sampling_params(options)
    Request((0,), sampling, max_tokens=options.get("max_tokens"), stop=tuple(options.get("stop", ())))


def _answer(llm: LLM, text: str, options: GenerateOptions, line: StatusLine, *, show: bool) -> Result:
    """Print the answer as it comes. Ctrl-C stops it and keeps what was printed."""
    out = sys.stdout
    if hasattr(out, "reconfigure"):
        out.reconfigure(errors="replace")
    stream = llm.stream(text, **options)
    try:
        _show(stream, line, show=show)
        result = stream.result()
    except KeyboardInterrupt:
        stream.cancel()
        result = stream.result()
    except BrokenPipeError:
        stream.cancel()
        raise
    finally:
        line.clear()
    if show:
        out.write("\n")
        out.flush()
    return result


def _show(stream: Stream, line: StatusLine, *, show: bool) -> None:
    for event in stream:
        if event.phase == "prefill":
            line.update("reading the prompt", event.n_past / event.n_prompt, f"{event.n_past}/{event.n_prompt} tokens")
            continue
        line.clear()
        if show and event.text:
            sys.stdout.write(event.text)
            sys.stdout.flush()


def numbers(result: Result) -> str:
    """The numbers line."""
    timing, speculation = result.timing, result.speculation
    if not speculation.steps:
        return "stopped before the first token"
    parts = [
        f"{result.usage.completion_tokens} tokens",
        f"{timing.tokens_per_second:.1f} tok/s",
        f"{speculation.tokens_per_step:.2f} tokens/step",
        f"{timing.speedup:.2f}× plain",
        f"first token after {timing.ttft_s:.2f} s",
    ]
    if result.usage.cached_tokens:
        parts.append(f"{result.usage.cached_tokens} of {result.usage.prompt_tokens} prompt tokens cached")
    if speculation.note:
        parts.append(f"not guessing: {speculation.note}")
    return " · ".join(parts)


def as_object(llm: LLM, result: Result) -> dict[str, Any]:
    """The object of ``--json``; its layout is documented in docs/cli.md and stable."""
    drafters = {
        name: {"drafted": counts.drafted, "accepted": counts.accepted, "time_s": round(counts.time_s, 6)}
        for name, counts in result.speculation.drafters.items()
    }
    return {
        "model": {
            "name": llm.name,
            "path": str(llm.path),
            "architecture": llm.model.architecture,
            "n_params": llm.model.n_params,
        },
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "usage": asdict(result.usage),
        "timing": {k: round(v, 6) for k, v in asdict(result.timing).items()},
        "speculation": {**asdict(result.speculation), "drafters": drafters},
        "spans": [list(span) for span in result.spans],
    }
