"""What the three packages share: how command lines are read, files read and written safely, child processes."""
