"""Platform backends, one file each, behind the protocol in base.py."""
