"""Questions across ranks and roles: who waits for whom, what is unequal, what goes between them."""
