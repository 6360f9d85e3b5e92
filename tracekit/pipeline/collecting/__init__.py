"""Collection of Nsight reports from Ray sessions and nodes."""
