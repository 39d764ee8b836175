"""What a process keeps: caches in memory and on the disk, threads, versions."""
