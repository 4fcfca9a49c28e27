"""Configuration of a program or a command: profiles of `mobilemoney.toml`, and the environment."""
