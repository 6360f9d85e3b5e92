"""Questions about kernels and operators: which take the time, on what shapes, in which modules, copies among them."""
