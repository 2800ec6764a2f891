"""A proxy before the S3 server that makes it far away, in a process of its own.

Prints its endpoint; then, for every line that it reads, how many requests there were and how many bytes the bodies of
their answers had since the last time.

    python far.py ENDPOINT LATENCY_S BYTES_PER_S
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from tests.helpers.s3_proxy import proxying


def main() -> None:
    """Serve until the input ends."""
    endpoint, latency_s, bytes_per_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    with proxying(endpoint) as proxy:
        proxy.latency_s, proxy.bytes_per_s = latency_s, bytes_per_s or None
        print(proxy.endpoint, flush=True)
        for _ in sys.stdin:
            print(json.dumps({"requests": len(proxy.log), "bytes": proxy.body_bytes}), flush=True)
            proxy.log.clear()
            proxy.body_bytes = 0


if __name__ == "__main__":
    main()
