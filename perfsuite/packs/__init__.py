"""Finds, loads, lists and selects what packs declare."""
