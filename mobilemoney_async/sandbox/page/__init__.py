"""Phone page (extra `sandbox`): customers' phones, the merchant's view, and the sandbox's controls."""

from mobilemoney_async.sandbox.page.app import create_page

__all__ = ["create_page"]
