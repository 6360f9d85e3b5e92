"""Questions about the memory of devices: its peak, its growth, what holds it, what the allocator does."""
