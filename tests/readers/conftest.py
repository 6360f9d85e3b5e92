"""What the tests of readers share."""

import pytest
from memory_builder import pickled
from memory_reading import read


@pytest.fixture
def tables_of(tmp_path):
    """A function that writes an object, or bytes, and reads it back."""

    def written_and_read(made, **more):
        path = tmp_path / "s.pickle"
        path.write_bytes(made if isinstance(made, bytes) else pickled(made))
        return read(path, **more)

    return written_and_read
