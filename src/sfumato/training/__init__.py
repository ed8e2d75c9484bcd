"""Training loops' shared parts: moving averages, schedules, checkpoints, run folders, profiling."""
