"""What goes wrong in captures: problems as data, the signs of each, and the sessions of Ray."""
