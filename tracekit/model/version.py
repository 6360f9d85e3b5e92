"""The version of tracekit."""

VERSION = "0.1.0"
