"""Show the driver's device nodes of the stand-in NPUs to every process that has this folder on its path."""

import os
from pathlib import Path

from agcli.backends import npu_needs

if "STANDIN_DEVICES" in os.environ:
    npu_needs.DEVICE_FOLDER = Path(os.environ["STANDIN_DEVICES"])
