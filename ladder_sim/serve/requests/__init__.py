"""What a server is asked for: requests, and the promise about their times.

`traffic` draws requests, with `lengths`. `traces` and `results` read them: as they came, and with what a load generator
measured of them.
"""
