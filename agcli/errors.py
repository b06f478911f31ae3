"""The errors a user can meet. Each carries the exit status that the command ends with."""

from __future__ import annotations

import signal


class AgGemmError(Exception):
    """Base of all errors with a message meant for the user: what is wrong, the values, what to do."""

    exit_status = 3


class UsageError(AgGemmError, ValueError):
    """What was asked cannot be right: a bad size, option or operand. Exit status 2."""

    exit_status = 2


class EnvironmentFault(AgGemmError, RuntimeError):
    """The machine cannot do it: no such device, not enough memory, a rank died, a timeout. Exit status 3."""

    exit_status = 3


class KernelFault(AgGemmError, RuntimeError):
    """The kernel broke a rule of the hardware or of the programming model. Exit status 1.

    ``rule`` names the rule for programs, ``what`` is the message without its place, ``site`` the line of the kernel.
    """

    exit_status = 1

    def __init__(self, text: str, rule: str = "misuse", what: str = "", site: object = None) -> None:
        super().__init__(text)
        self.rule = rule
        self.what = what or text
        self.site = site


class Interrupted(KeyboardInterrupt):
    """The run was stopped by a signal, and everything is cleaned up. ``signum`` is the first signal that came."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum
