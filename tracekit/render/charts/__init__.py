"""Charts as images, laid out once (`kinds`), then painted as SVG (`svg`) or by matplotlib (`images`)."""
