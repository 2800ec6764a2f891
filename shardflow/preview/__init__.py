"""Previews of a dataset: contact sheets, and an HTML page."""
