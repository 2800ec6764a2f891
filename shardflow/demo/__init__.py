"""The demo: pictures made, packed, checked, streamed and learned from, through the public surface alone."""
