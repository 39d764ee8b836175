"""State of a process: caches in memory and on the disk, threads, versions."""
