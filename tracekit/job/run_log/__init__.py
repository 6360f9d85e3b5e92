"""The log of an RL run by itself: its trainer, its GPUs, the stages of its steps, and the steps that count."""
