"""``ag-gemm doctor``."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, TextIO

from agcli import options as opt

if TYPE_CHECKING:
    from agcli.backends.base import Need
    from agcli.doctor import Diagnosis


def doctor(
    backend: opt.Backend = opt.BackendName.AUTO,
    json: opt.JsonPath = None,
    debug: opt.Debug = False,
) -> int:
    """Say what this machine can run, what is missing, and how to get it. Exit 0 if --backend (auto: any) is ready."""
    from agcli.doctor import examine
    from agcli.outputs import check_writable, deliver, reserved_stdout

    check_writable(json, "--json")
    with reserved_stdout() as stdout:
        diagnosis = examine()
        reports = [(json, lambda: json_module.dumps(diagnosis.to_json(), indent=2) + "\n")]
        deliver(lambda stream: print_diagnosis(diagnosis, stream), reports, stdout)
    return diagnosis.exit_status(backend.value)


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO) -> None:
    """A table for the machine and one for each backend, then what ``auto`` means."""
    from agcli.screen import render_fields

    _print_needs("this machine", diagnosis.machine, stream)
    for platform in diagnosis.platforms:
        state = "ready" if diagnosis.ready(platform.name) else "not ready"
        stream.write("\n")
        _print_needs(f"backend {platform.name}: {state}", platform.needs, stream)
        render_fields(platform.inventory, stream, indent="  ")
    stream.write("\n")
    chosen = diagnosis.chosen
    render_fields([("--backend auto", f"means {chosen} here" if chosen else "finds no backend that is ready")], stream)


def _print_needs(title: str, needs: tuple[Need, ...], stream: TextIO) -> None:
    """A line a need in a pipe; on a terminal the cure below it, so that all fits one screen."""
    from agcli.screen import Screen, render_fields, render_table

    if Screen.of(stream).width is None:
        rows = [[need.name, "ok" if need.ok else "missing", need.found, "" if need.ok else need.cure] for need in needs]
        render_table(("need", "state", "found", "cure"), rows, title, stream)
        return
    stream.write(title + "\n")
    for need in needs:
        render_fields([(f"{'ok' if need.ok else 'missing':8}{need.name}", need.found)], stream, indent="  ")
        if not need.ok and need.cure:
            render_fields([("cure", need.cure)], stream, indent=" " * 10)
