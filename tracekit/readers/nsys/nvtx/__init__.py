"""NVTX ranges and their payloads."""
