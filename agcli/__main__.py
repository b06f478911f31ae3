"""``python -m agcli`` is ``ag-gemm``."""

from agcli.main import run

if __name__ == "__main__":
    run()
