"""The price of tokens from the price of GPUs."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import UsageError

Rate = TypeVar("Rate", float, NDArray[np.float64])
# for the notes of answers with prices
PRICE_CAVEAT = "a token's price is that of GPUs that are never idle, at the rate shown: in service it costs more"
PRICE_HINT = "US dollars per GPU and hour, e.g. 2.5"


def token_price(usd_per_gpu_hour: float, gpus: float, tokens_per_s: Rate) -> Rate:
    """Return the US dollars for a million new tokens.

    Examples
    --------
    >>> round(token_price(2.0, 8, 1000.0), 2)
    4.44
    """
    return usd_per_gpu_hour * gpus / 3600.0 / tokens_per_s * 1e6


def check_price(usd_per_gpu_hour: float) -> float:
    """Require a price above 0 and below a million."""
    if not 0.0 < usd_per_gpu_hour < 1e6:
        raise UsageError(f"price {usd_per_gpu_hour:g}: must be above 0 and below 1e6", hint=PRICE_HINT)
    return usd_per_gpu_hour
