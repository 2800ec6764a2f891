"""Fail when a test was skipped for a reason that is not allowed.

    python tools/check_skips.py REPORT.xml      a report that pytest wrote with --junitxml

A test that is always skipped tests nothing, so the allowed reasons are listed here.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

ALLOWED = ("needs CUDA", "needs a mount namespace")
"""Parts of the allowed reasons, properties of a machine that no installation changes."""


def main() -> int:
    """Print every skipped test but expected failures, and return 1 when a reason is not allowed."""
    count = forbidden = 0
    for case in ET.parse(sys.argv[1]).iter("testcase"):
        for skipped in case.iterfind("skipped"):
            if skipped.get("type") == "pytest.xfail":
                continue
            # Where a whole file is skipped, only the text has the reason.
            reason = (skipped.get("message") if skipped.get("type") else skipped.text) or "no reason"
            allowed = any(part in reason for part in ALLOWED)
            count, forbidden = count + 1, forbidden + (not allowed)
            mark = "skipped" if allowed else "SKIPPED, NOT ALLOWED"
            print(f"{mark}: {case.get('classname')}.{case.get('name')}: {reason}")
    print(f"{count} tests skipped, {forbidden} of them for a reason that is not allowed")
    return 1 if forbidden else 0


if __name__ == "__main__":
    sys.exit(main())
