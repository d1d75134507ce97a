"""Keeps a device's desks for all runs of one session: its servers take seconds to start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from perfsuite.files import Closable
from perfsuite.model import Arm, Pack, Settings
from perfsuite.panel import Code, Panel
from perfsuite.sites import Desk, open_desks


class Desks(Closable):
    """The desks of one request's device, opened by its first run and locked until all are done."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._opened: tuple[Desk, ...] = ()
        self._settings: Settings | None = None

    def of(
        self, device: str, packs: Sequence[Pack], settings: Settings, arms: Mapping[Arm, Code]
    ) -> tuple[Desk, ...]:
        """Return the desks, for a run that compares these arms, or none; raises DeviceError.

        Device and packs are the same in all runs; a run that was resumed may have other settings.
        """
        if self._settings != settings:
            self.close()
            self._opened = open_desks(device, packs, settings, self._stack)
            self._settings = settings
        for desk in self._opened:
            if isinstance(desk.panel, Panel):
                desk.panel.compare(arms)
        return self._opened

    def close(self) -> None:
        """End the servers, and let other runs have the device."""
        self._opened, self._settings = (), None
        self._stack.close()
