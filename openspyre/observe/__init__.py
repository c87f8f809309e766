"""Observation: what a running process did and holds, for people and tools.

Readers in this package may not need torch: a live view attaches to other processes.
"""
