"""Many merchants in one process and on many hosts: their clients, their secrets, and who serves which account."""

from mobilemoney_async.merchants.merchants import Merchants, MerchantTransport

__all__ = ["MerchantTransport", "Merchants"]
