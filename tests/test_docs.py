"""The documents: links lead somewhere, commands and options exist, and the picture shows what the kernel does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from agcli.main import app

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS: Any = typer.main.get_command(app)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_exist(document: Path) -> None:
    for line in re.findall(r"(?:ag-gemm|-m agcli) ([a-z]+\b[^`\n|#]*)", document.read_text(encoding="utf-8")):
        name, *rest = line.split()
        assert name in COMMANDS.commands, line
        command = COMMANDS.commands[name]
        if hasattr(command, "commands") and rest:
            command = command.commands[rest[0]]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", line))
        assert used <= known | {"--help"}, line


@pytest.fixture(scope="module")
def pictures() -> Any:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import make_pictures

        return make_pictures
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.fixture(scope="module")
def traced(pictures: Any) -> Any:
    return pictures.timed(pictures.trace())


def test_copies_of_one_iteration_are_beside_the_products_of_the_one_before(pictures: Any, traced: Any) -> None:
    spans, barriers = traced
    assert len(barriers) == 3
    for (_, _, unit), lane in spans.items():
        for span in lane:
            i = span.event.iteration
            if unit == "cube":
                assert span.event.kind == pictures.MULTIPLY
                assert span.begin >= barriers[i]
                assert i == 2 or span.end <= barriers[i + 1]
            else:
                assert (unit, span.event.kind) == ("vector0", pictures.COPY)
                assert span.end <= barriers[i]
                assert i == 0 or span.begin >= barriers[i - 1]


def test_everything_is_copied_and_multiplied_once(pictures: Any, traced: Any) -> None:
    spans, _ = traced
    problem, config = pictures.PROBLEM, pictures.CONFIG
    events = [span.event for lane in spans.values() for span in lane]
    tiles = (problem.m // config.comm_block_m) * (problem.k // config.comm_block_k)
    assert sum(event.kind == pictures.COPY for event in events) == tiles * problem.world * problem.world
    products = [event for event in events if event.kind == pictures.MULTIPLY]
    assert len(products) == problem.world * (problem.world * problem.m // config.block_m) * (
        problem.n // config.block_n
    )
    assert {event.units for event in products} == {problem.k // config.block_k}


def test_the_picture_is_made(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "docs" / "make_pictures.py"), str(tmp_path)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    made, kept = ((folder / "who-does-what-when.svg").read_text() for folder in (tmp_path, ROOT / "docs"))
    for text in ("to r0", "to r1", "barrier 2", "rank 1  core 1  cube", "iteration 2, slot 0"):
        assert made.count(text) == kept.count(text) > 0
