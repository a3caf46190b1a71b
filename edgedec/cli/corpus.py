"""``edgedec corpus``: what the `history` drafter may use."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from edgedec import catalogue
from edgedec.cli import explain_fatal_errors, print_json, textfiles
from edgedec.cli.options import verbose_option
from edgedec.cli.progress import StatusLine
from edgedec.drafters.store import LIMIT, Document, Store, stores
from edgedec.errors import UsageError
from edgedec.llama.base import Model
from edgedec.paths import corpus_dir

_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=_HELP, invoke_without_command=True)
@click.pass_context
def corpus(context: click.Context) -> None:
    """Texts that answers may be guessed from: documents that you add, and past answers.

    All of it stays on this machine; docs/history.md says where.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@corpus.command(context_settings=_HELP)
@click.argument("files", nargs=-1, required=True, metavar="FILE…")
@click.option("-m", "--model", metavar="MODEL", help="For this model and others of its vocabulary.")
@verbose_option
def add(files: tuple[str, ...], model: str | None) -> None:
    """Add text files, and the text files in folders; those that were added before are replaced."""
    found = textfiles.find(files)
    if found.left_out:
        reasons = ", ".join(f"{n} {reason}" for reason, n in found.left_out.most_common())
        click.echo(f"Left out: {reasons}.", err=True)
    if not found.paths:
        raise UsageError("There is no text file in what was given.", "Give text files in UTF-8, or folders with such.")
    explain_fatal_errors()
    line = StatusLine()
    try:
        loaded = _load(model, line)
        try:
            documents = []
            for i, path in enumerate(found.paths):
                line.update("reading", i / len(found.paths), path.name)
                tokens = loaded.tokenize(textfiles.read(path))
                documents.append(Document("document", np.array(tokens, np.uint32), str(path), model=loaded.name))
            Store(corpus_dir() / loaded.vocabulary).add(documents)
        finally:
            loaded.close()
    finally:
        line.clear()
    for document in documents:
        click.echo(_row(document))
    click.echo(f"Added {_counted(documents, 'document')}.")


def _load(model: str | None, line: StatusLine) -> Model:
    """The vocabulary of a model."""
    path = catalogue.find(
        model, progress=lambda message, done, total: line.update(message, done / total if done and total else None)
    )
    from edgedec.llama.model import LlamaModel

    return LlamaModel(path, vocab_only=True)


@corpus.command("list", context_settings=_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with past answers one by one.")
def list_(as_json: bool) -> None:
    """Show the documents, and how many past answers there are."""
    held = [(store, document) for store in stores(corpus_dir()) for document in store.documents()]
    if as_json:
        print_json({"documents": [_as_object(store, document) for store, document in held]})
        return
    documents = [document for _, document in held if document.kind == "document"]
    answers = [document for _, document in held if document.kind == "answer"]
    for document in sorted(documents, key=lambda document: document.name):
        click.echo(_row(document))
    click.echo(f"{_counted(documents, 'document')}; {_counted(answers, 'past answer')}.")


@corpus.command(context_settings=_HELP)
@click.argument("names", nargs=-1, metavar="NAME…")
@click.option("--answers", is_flag=True, help="All past answers.")
def remove(names: tuple[str, ...], answers: bool) -> None:
    """Remove documents by path, everything below a folder, or texts by the id that list --json shows. For good."""
    if not names and not answers:
        raise UsageError("There is nothing to remove.", "Give names that edgedec corpus list shows, or --answers.")
    held = [(store, document) for store in stores(corpus_dir()) for document in store.documents()]
    unwanted = {document.id for _, document in held if answers and document.kind == "answer"}
    for name in names:
        meant = {document.id for _, document in held if _is_meant(document, name)}
        if not meant:
            raise _unknown(name, [document.name for _, document in held if document.name])
        unwanted |= meant
    removed = [
        gone for store in stores(corpus_dir()) for gone in store.remove(lambda document: document.id in unwanted)
    ]
    documents = [document for document in removed if document.kind == "document"]
    past = [document for document in removed if document.kind == "answer"]
    click.echo(f"Removed {_counted(documents, 'document')} and {_counted(past, 'past answer')}.")


def _is_meant(document: Document, name: str) -> bool:
    path = os.path.abspath(os.path.expanduser(name))
    is_below = document.name.startswith(os.path.join(path, ""))
    return name == document.id or (document.kind == "document" and (document.name in (name, path) or is_below))


def _unknown(name: str, known: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(os.path.abspath(name), known, n=1, cutoff=0.5)
    hint = f"Did you mean {_printable(near[0])}?" if near else "See edgedec corpus list."
    return UsageError(f"There is no document {_printable(name)}.", hint)


@corpus.command(context_settings=_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def stats(as_json: bool) -> None:
    """Show how much is stored, where, and for which models."""
    reports = [_report(store) for store in stores(corpus_dir())]
    if as_json:
        print_json({"folder": str(corpus_dir()), "limit_tokens": LIMIT, "stores": reports})
        return
    for report in reports:
        click.echo(f"vocabulary  {report['vocabulary']}: {', '.join(report['models'])}")
        for kind in ("documents", "answers"):
            click.echo(f"{kind:<11} {report[kind]['n']:,} with {report[kind]['n_tokens']:,} tokens")
        click.echo(f"on disk     {report['bytes']:,} bytes")
    click.echo(f"folder      {_printable(str(corpus_dir()))}{'' if reports else ' (nothing is stored)'}")


def _report(store: Store) -> dict[str, Any]:
    held = store.documents()
    report: dict[str, Any] = {
        "vocabulary": store.folder.name,
        "models": sorted({document.model for document in held if document.model}),
        "bytes": store.n_bytes,
    }
    for kind, plural in (("document", "documents"), ("answer", "answers")):
        of_kind = [document for document in held if document.kind == kind]
        report[plural] = {"n": len(of_kind), "n_tokens": sum(len(document.tokens) for document in of_kind)}
    return report


def _as_object(store: Store, document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "kind": document.kind,
        "name": document.name,
        "owner": document.owner,
        "model": document.model,
        "vocabulary": store.folder.name,
        "time": document.time,
        "n_tokens": len(document.tokens),
    }


def _row(document: Document) -> str:
    day = time.strftime("%Y-%m-%d", time.localtime(document.time))
    return f"{len(document.tokens):>10,} tokens  {day}  {_printable(document.name)}"


def _counted(documents: Sequence[Document], what: str) -> str:
    plural = "" if len(documents) == 1 else "s"
    return f"{len(documents):,} {what}{plural} with {sum(len(document.tokens) for document in documents):,} tokens"


def _printable(text: str) -> str:
    """A path on one line, whatever bytes it is made of."""
    return "".join(c if c.isprintable() else "?" for c in text)
