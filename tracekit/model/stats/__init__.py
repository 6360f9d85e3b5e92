"""Statistics without knowledge of traces: arrays in, frozen results out."""
