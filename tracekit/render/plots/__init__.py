"""Charts drawn by matplotlib: `images` makes files and axes, `kinds` registers the painter of each kind of chart."""
