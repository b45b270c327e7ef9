"""What a server is asked for: requests, and the SLO about their times.

`traffic` draws requests, with `lengths`. `traces` reads them as they came, in the units that `trace_format` recognises.
`results` reads what a load generator measured of them, by the reader that `generators` has for each: a `result`.
"""
