"""The demo: images are drawn, packed, verified, streamed and trained on, through the public API."""
