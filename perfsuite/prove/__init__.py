"""The proof: what the engine is held to, measured by one command."""

from __future__ import annotations
