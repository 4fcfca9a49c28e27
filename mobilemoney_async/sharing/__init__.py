"""Parts that the processes of one merchant share through the database: rate budget, login, poller."""
