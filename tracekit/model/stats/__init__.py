"""Statistics without any knowledge of traces: arrays in, frozen results out."""
