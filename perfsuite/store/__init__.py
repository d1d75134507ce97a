"""Reads and writes every file of ours."""
