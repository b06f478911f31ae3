"""A stand-in for the command line: ``torchrun ... -m joined_main TARGET PAYLOAD TIMEOUT_S`` joins and reports."""

from __future__ import annotations

import json
import os
import sys

from agcli.errors import AgGemmError, Interrupted
from agcli.jobenv import detect_job
from agcli.join import run_joined
from agcli.outcome import Job, failure


def main() -> None:
    target, payload, timeout_s = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    try:
        env = detect_job(os.environ)
        assert env is not None
        joined = run_joined(Job(target, payload), env, timeout_s=timeout_s)
    except Interrupted as e:
        sys.exit(128 + e.signum)
    except AgGemmError as e:
        print(e, file=sys.stderr)
        sys.exit(e.exit_status)
    error = failure(joined.results, timeout_s)
    if joined.speaks:
        print(json.dumps({"results": [r.to_json() for r in joined.results], "error": error and str(error)}), flush=True)
    joined.leave(error.exit_status if error else 0)


if __name__ == "__main__":
    main()
