"""The page without scripts: the answer, findings with advice, top kernels, notes, and all tables, folded."""
