"""Results for CI systems: annotations, step outputs, JUnit XML and the comment of a pull request."""
