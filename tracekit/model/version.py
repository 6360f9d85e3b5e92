"""The version of tracekit, in one place."""

VERSION = "0.1.0"
