"""The version, read by the package, its metadata and every run it writes."""

__all__ = ["VERSION"]

VERSION = "0.2.0"
