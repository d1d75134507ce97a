"""Runs of the night: time limit, shards, proposals, waivers."""
