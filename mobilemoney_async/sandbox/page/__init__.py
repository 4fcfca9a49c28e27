"""Phone page (extra `sandbox`): customers' phones, the merchant's view, and the sandbox's controls."""
