"""A worker with capture's profiler, as verl's workers have it."""

from capture import DistProfiler, ProfilerConfig


class Worker:
    """A worker of one rank and role, profiled by one tool."""

    def __init__(self, folder, tool="torch", role="actor", rank=0, **tool_config):
        config = ProfilerConfig(tool=tool, enable=True, all_ranks=True, save_path=str(folder), tool_config=tool_config)
        self.profiler = DistProfiler(rank, config, save_file_prefix=role)

    @DistProfiler.annotate(role="actor_update")
    def update(self):
        pass

    @DistProfiler.annotate(role="compute_log_prob")
    def log_prob(self):
        pass

    def step(self, number):
        self.profiler.start(role="train", profile_step=number)
        self.update()
        self.profiler.stop()
