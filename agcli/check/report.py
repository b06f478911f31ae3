"""Findings for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agcli.check.findings import Finding, Place


def describe(kernel: str, faults: Sequence[Finding], warnings: Sequence[Finding]) -> str:
    """All findings of a kernel, faults first, and a last line that counts them."""
    lines = [line for finding in (*faults, *warnings) for line in (*finding_lines(finding), "")]
    return "\n".join([*lines, summary(kernel, faults, warnings)])


def summary(kernel: str, faults: Sequence[Finding], warnings: Sequence[Finding]) -> str:
    """How many findings of which kinds."""
    if not faults:
        return f"{kernel}: no fault found" + (f", {_counted(warnings)}" if warnings else "")
    return f"{kernel}: {_counted(faults)}" + (f"; {_counted(warnings)}" if warnings else "")


def finding_lines(finding: Finding) -> list[str]:
    """One finding as indented lines."""
    times = f" (seen {finding.count} times)" if finding.count > 1 else ""
    lines = [f"{'warning' if finding.warning else 'FAULT'} {finding.kind}: {finding.what}{times}"]
    if finding.case:
        lines.append(f"  case: {finding.case}")
    width = max((len(place.what) for place in finding.places), default=0)
    for place in finding.places:
        lines += _place_lines(place, width)
    if finding.last_common:
        lines.append(f"  last common synchronisation: {finding.last_common}")
    if finding.why:
        lines.append(f"  why: {finding.why}")
    return lines + [f"  {detail}" for detail in finding.details]


def _place_lines(place: Place, width: int) -> Iterable[str]:
    yield f"  {place.what.ljust(width)}  {place.source}"
    if not place.static:
        yield f"  {' ' * width}  {place.who}"


def _counted(findings: Sequence[Finding]) -> str:
    noun = "warning" if findings and findings[0].warning else "fault"
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in findings))
    return f"{len(findings)} {noun}{'s' * (len(findings) != 1)} ({kinds})"
