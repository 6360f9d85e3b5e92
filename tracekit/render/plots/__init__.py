"""Charts drawn by matplotlib: `images` makes files and axes of them, `kinds` registers how each kind of chart is drawn."""
