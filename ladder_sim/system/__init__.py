"""What the three packages ask of the operating system: files read and written safely, child processes."""
