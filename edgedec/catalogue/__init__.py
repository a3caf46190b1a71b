"""Models by name: which there are (`schema`), which file a name means (`lookup`), and how it gets here (`fetch`).

Only `hub` imports huggingface_hub, and only once a model is not on disk yet.
"""

from edgedec.catalogue.fetch import present
from edgedec.catalogue.lookup import find
from edgedec.catalogue.progress import Progress
from edgedec.catalogue.schema import DEFAULT, Card, card, cards

__all__ = ["DEFAULT", "Card", "Progress", "card", "cards", "find", "present"]
