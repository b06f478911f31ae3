"""Read a JSON report of ``ag-gemm verify``, ``bench`` or ``smoke`` in a program.

    ag-gemm verify --json report.json; python examples/read_report.py report.json

Prints a line for each rank, row or case and ends with the status that the command ended with. Keys are added in later
versions but keep their meaning as long as ``schema`` is the same.
"""

import json
import sys
from pathlib import Path
from typing import Any


def verify_lines(report: dict[str, Any]) -> list[str]:
    """What each rank found."""
    lines = []
    for verdict in report["verdicts"]:
        line = f"rank {verdict['rank']} on {verdict['device']}: {verdict['result']}"
        if first := verdict["first_bad"]:
            line += f", first wrong element ({first['row']}, {first['col']}) is {first['got']}, not {first['want']}"
        lines.append(line)
    return lines


def bench_lines(report: dict[str, Any]) -> list[str]:
    """How fast each implementation is; without a right answer there is no time."""
    lines = ["these are times of an emulation"] if report["setup"]["emulated"] else []
    for row in report["rows"]:
        shape = f"{row['m']}x{row['n']}x{row['k']}"
        time = f"{row['median_ms']:.3f} ms" if row["check"] == "PASS" else f"{row['check']} {row['note']}"
        lines.append(f"{shape} {row['dtype']} {row['impl']}: {time}")
    return lines


def smoke_lines(report: dict[str, Any]) -> list[str]:
    """What became of each case."""
    return [f"{case['name']}: {case['result']}" for case in report["cases"]] + [f"all: {report['result']}"]


READERS = {"ag-gemm-verify/1": verify_lines, "ag-gemm-bench/1": bench_lines, "ag-gemm-smoke/1": smoke_lines}


def main(path: str) -> int:
    """Print the report; its exit status."""
    report = json.loads(Path(path).read_text(encoding="utf-8"))
    print("\n".join(READERS[report["schema"]](report)))
    passed = report["passed"] if "passed" in report else report["exit_status"] == 0
    return 0 if passed else report.get("exit_status", 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
