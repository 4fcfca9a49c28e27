"""Many merchants in one process and on many hosts: their clients, their secrets, and the host of each account."""

from mobilemoney_async.merchants.merchants import Merchants, MerchantTransport

__all__ = ["MerchantTransport", "Merchants"]
