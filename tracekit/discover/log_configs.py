"""Configuration files that are read with the log next to them: they are not skipped files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracekit.discover.arguments import UnreadFile
from tracekit.model.inputs.sources import Source

CONFIG_FILES = (".hydra/config.yaml", "files/config.yaml", "config.yaml")
"""Places of a run's configuration next to its log: Hydra's, that of a W&B run, that next to W&B's `output.log`."""

_SETTINGS_READERS = frozenset({"driver_log", "tensorboard", "wandb"})


def drop_log_configs(ignored: Iterable[UnreadFile], sources: Iterable[Source]) -> Iterator[UnreadFile]:
    """Drop the configurations that are read with a log, and Hydra's hidden folder, unless the user excluded them."""
    folders = {source.path.parent for source in sources if source.reader in _SETTINGS_READERS}
    read = {folder / name for folder in folders for name in (*CONFIG_FILES, ".hydra")}
    return (file for file in ignored if file.path not in read or file.reason.code == "excluded")
