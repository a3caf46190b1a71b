"""``python -m edgedec``."""

from edgedec.cli import main

main()
