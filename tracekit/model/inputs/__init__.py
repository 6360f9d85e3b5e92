"""What is known of inputs before they are read."""
