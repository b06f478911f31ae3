"""Entry point of ``ag-gemm`` and of ``python -m agcli``: signals are looked after before anything is loaded."""

from agcli import early


def run() -> None:
    """Run the command line of this process and end it with the exit status."""
    early.exit_at_once()
    from agcli import main

    main.run()


if __name__ == "__main__":
    run()
