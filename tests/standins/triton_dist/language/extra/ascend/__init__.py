"""Ascend's part."""
