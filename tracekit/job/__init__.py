"""Facts of the whole job, over processes: step times, stage windows, waits, traffic, rank groups."""
