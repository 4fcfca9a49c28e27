"""What several tests stand on: fakes, servers and checks that are tested themselves."""
