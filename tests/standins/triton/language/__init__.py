"""The simulator's ``tl``."""

from agcli.simulator.language import namespace

globals().update(namespace())
