"""Where things live. No function creates a folder; whoever writes into one does.

``EDGEDEC_HOME`` moves everything below one folder. Without it each kind goes where the system keeps such things.
"""

from __future__ import annotations

import os
from pathlib import Path


def models_dir() -> Path:
    """Model files that edgedec brought, and what it remembers about them: ``$EDGEDEC_HOME/models``."""
    if home := _home():
        return home / "models"
    from platformdirs import user_data_path

    return user_data_path("edgedec", appauthor=False) / "models"


def state_dir() -> Path:
    """What was measured on this machine and can be measured again: ``$EDGEDEC_HOME/state``."""
    if home := _home():
        return home / "state"
    from platformdirs import user_state_path

    return user_state_path("edgedec", appauthor=False)


def corpus_dir() -> Path:
    """Texts that the `history` drafter may use, one folder per vocabulary: ``$EDGEDEC_HOME/corpus``."""
    if home := _home():
        return home / "corpus"
    from platformdirs import user_data_path

    return user_data_path("edgedec", appauthor=False) / "corpus"


def _home() -> Path | None:
    value = os.environ.get("EDGEDEC_HOME")
    return Path(os.path.expanduser(value)).absolute() if value else None
