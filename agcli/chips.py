"""What is known of each chip: core counts, on-chip memory, stated peaks, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from agcli.errors import UsageError

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """An accelerator's limits. Sizes are bytes a core; ``peak_tflops`` is dense fp16 of a device, None if unknown."""

    name: str
    cube_cores: int
    vector_cores: int
    l1_bytes: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int
    ub_bytes: int
    peak_tflops: float | None = None
    peak_source: str = ""


# Core counts and memory sizes: AscendNPU-IR, bishengir/include/bishengir/Dialect/HACC/Targets/NPUTargetSpec.td.
# Peaks of 910B: Ascend/msmodeling, tensor_cast/device.py; none is an official table.
_MSMODELING = "assumed: Ascend/msmodeling tensor_cast/device.py"


def _a2(name: str, cube_cores: int, peak: float | None = None) -> Chip:
    """Atlas A2 and A3 (arch dav-c220): L1 512, L0A 64, L0B 64, L0C 128, UB 192 KiB."""
    source = _MSMODELING if peak else ""
    return Chip(name, cube_cores, 2 * cube_cores, 512 * KIB, 64 * KIB, 64 * KIB, 128 * KIB, 192 * KIB, peak, source)


def _a5(name: str, cube_cores: int) -> Chip:
    """Ascend 950 (arch dav-c310): L1 512, L0A 64, L0B 64, L0C 256, UB 248 of 256 KiB (8 are the compiler's)."""
    return Chip(name, cube_cores, 2 * cube_cores, 512 * KIB, 64 * KIB, 64 * KIB, 256 * KIB, 248 * KIB)


def _all_chips() -> dict[str, Chip]:
    chips = [
        _a2("Ascend910B1", 24),
        _a2("Ascend910B2", 24, 376.0),
        _a2("Ascend910B2C", 24),
        _a2("Ascend910B3", 20, 313.0),
        _a2("Ascend910B4", 20, 280.0),
        _a2("Ascend910B4-1", 20),
    ]
    chips += [_a2(f"Ascend910_{n}", 20) for n in ("9362", "9363", "9372")]
    chips += [_a2(f"Ascend910_{n}", 24) for n in ("9381", "9382", "9391", "9392")]
    chips += [_a5(f"Ascend950PR_{n}", 28) for n in ("9579", "957a", "957b", "957c", "957d")]
    chips += [_a5(f"Ascend950PR_{n}", 32) for n in ("9589", "958a", "958b", "958c", "958d")]
    chips += [_a5(f"Ascend950PR_{n}", 36) for n in ("9599", "959a", "959b")]
    return {chip.name: chip for chip in chips}


CHIPS: dict[str, Chip] = _all_chips()
DEFAULT_SOC = "Ascend910B3"


def chip_by_name(name: str) -> Chip:
    """The chip called ``name`` (case does not matter). Raises UsageError naming the known ones."""
    for known, chip in CHIPS.items():
        if known.lower() == name.lower():
            return chip
    raise UsageError(f"unknown chip '{name}'; known are {', '.join(CHIPS)}")


def has_udma(chip: Chip) -> bool:
    """Whether ``putmem`` can mean the chip's own transfer engine: on Ascend 950 only (facts of the shmem library)."""
    return chip.name.startswith("Ascend950")
