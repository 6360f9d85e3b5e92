"""Questions about where the time of steps and stages went, on the GPU and on the host."""
