"""Diagnostics: how fast a loader is on this machine, where its time goes, and which settings suit it."""
