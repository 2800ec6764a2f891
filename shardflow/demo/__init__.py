"""The demo: draws, packs, verifies and streams images, and trains on them, through the public API."""
