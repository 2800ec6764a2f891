"""Fail when a test was skipped for a reason that is not allowed.

    python tools/check_skips.py REPORT.xml      a report that pytest wrote with --junitxml

A test that is always skipped tests nothing, so the allowed reasons are listed here.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

ALLOWED = ("needs CUDA", "needs a mount namespace")
"""Parts of the allowed reasons: properties of a machine that no installation changes."""


def skips(report: str) -> list[tuple[str, str]]:
    """Return the names of the skipped tests in a report and the reasons; expected failures are left out."""
    found = []
    for case in ET.fromstring(report).iter("testcase"):
        for skipped in case.iter("skipped"):
            if skipped.get("type") != "pytest.xfail":
                found.append((f"{case.get('classname')}.{case.get('name')}", skipped.get("message") or "no reason"))
    return found


def main() -> int:
    """Print every skipped test, and return 1 when a reason is not allowed."""
    forbidden = 0
    found = skips(Path(sys.argv[1]).read_text())
    for name, reason in found:
        allowed = any(part in reason for part in ALLOWED)
        forbidden += not allowed
        print(f"{'skipped' if allowed else 'SKIPPED, NOT ALLOWED'}: {name}: {reason}")
    print(f"{len(found)} tests skipped, {forbidden} of them for a reason that is not allowed")
    return 1 if forbidden else 0


if __name__ == "__main__":
    sys.exit(main())
