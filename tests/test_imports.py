"""Who imports whom: read from the source, imports inside functions included, and seen at run time."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import edgedec

ROOT = Path(edgedec.__file__).parent
HEAVY = ("numpy", "llama_cpp", "huggingface_hub", "jinja2", "gguf", "textual", "sqlite3")
ABOVE_THE_CLIENT = ("cli", "llm", "chat", "catalogue", "__main__", "__init__")


def sources() -> dict[str, ast.Module]:
    """Module name below edgedec → its syntax tree."""
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 40
    return {".".join(f.relative_to(ROOT).with_suffix("").parts): ast.parse(f.read_text("utf-8")) for f in files}


def imported(tree: ast.Module) -> set[str]:
    """Names of modules that are imported anywhere in it, also in functions and by ``import_module("…")``."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here, which keeps them easy to find"
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def top_level(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def test_only_the_llama_folder_imports_llama_cpp() -> None:
    users = {name for name, tree in sources().items() if "llama_cpp" in top_level(imported(tree))}
    assert users == {"llama.lib"}


def test_nothing_below_the_client_knows_terminal_database_or_network() -> None:
    unwanted = {"click", "textual", "sqlite3", "huggingface_hub"}
    for name, tree in sources().items():
        if not name.startswith(ABOVE_THE_CLIENT):
            assert not unwanted & top_level(imported(tree)), name


def test_the_engine_does_not_know_who_calls_it() -> None:
    callers = tuple(f"edgedec.{name}" for name in ("client", "llm", "cli", "chat", "catalogue"))
    for name, tree in sources().items():
        if name.startswith(("engine", "speculation", "drafters", "llama")):
            assert not [module for module in imported(tree) if module.startswith(callers)], name


def test_only_the_backend_knows_native_code() -> None:
    users = {name for name, tree in sources().items() if "ctypes" in top_level(imported(tree))}
    assert users <= {"llama.lib", "llama.model", "llama.context", "machine"}


def loaded_by(code: str) -> set[str]:
    """Heavy modules that this code loads."""
    report = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import edgedec; edgedec.__version__; dir(edgedec)") == set()
    assert loaded_by("from edgedec import UsageError, SamplingParams, StepEvent") == set()


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    assert loaded_by("import edgedec.cli") == set()


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["run", "--help"], ["doctor", "--help"], ["bogus"]])
def test_help_does_not_need_the_native_library(args: list[str]) -> None:
    code = f"from edgedec.cli import main\ntry: main({args!r})\nexcept SystemExit: pass"
    assert not {"llama_cpp", "huggingface_hub", "textual", "sqlite3"} & loaded_by(code)


def test_loading_a_file_needs_no_network_library(tiny: Path) -> None:
    used = loaded_by(
        f"import edgedec\nwith edgedec.load({str(tiny)!r}, n_threads=1) as llm: llm.generate('a', max_tokens=1)"
    )
    assert "llama_cpp" in used
    assert not {"huggingface_hub", "textual", "gguf"} & used


def test_every_public_name_is_there() -> None:
    for name in edgedec.__all__:
        assert getattr(edgedec, name) is not None
    assert dir(edgedec) == sorted(edgedec.__all__)
    assert len(set(edgedec.__all__)) == len(edgedec.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = edgedec.nonsense  # type: ignore[attr-defined]


def test_the_registry_of_lazy_names_is_the_public_list() -> None:
    assert {*edgedec._HOME_OF, "__version__"} == set(edgedec.__all__)
    assert sum(map(len, edgedec._HOMES.values())) == len(edgedec._HOME_OF), "each name has one home"
    for name, home in edgedec._HOME_OF.items():
        assert getattr(importlib.import_module(home), name).__module__ == home, name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text("utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(edgedec._HOME_OF)


def test_every_error_is_public() -> None:
    errors = importlib.import_module("edgedec.errors")
    tree = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    inner = {"NoSlotError", "AbortedError"}  # the engine handles them
    assert tree - inner == {name for name in edgedec.__all__ if name.endswith("Error")}
    assert (errors.__doc__ or "").count("Error ") >= len(tree)


def test_every_command_can_be_found() -> None:
    cli = importlib.import_module("edgedec.cli")
    for name, home in cli._COMMANDS.items():
        module, _, attribute = home.partition(":")
        assert getattr(importlib.import_module(module), attribute).name == name
