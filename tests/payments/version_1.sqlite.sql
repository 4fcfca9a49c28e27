-- The tables of version 1, as the release that had them made them on SQLite.
CREATE TABLE mobilemoney_budgets (
	account TEXT NOT NULL,
	state TEXT NOT NULL,
	PRIMARY KEY (account)
);
CREATE TABLE mobilemoney_followed (
	account TEXT NOT NULL,
	transaction_id TEXT NOT NULL,
	follower TEXT NOT NULL,
	number BIGINT NOT NULL,
	hinted BIGINT NOT NULL,
	is_new BOOLEAN NOT NULL,
	has_deadline BOOLEAN NOT NULL,
	tracked_at DATETIME NOT NULL,
	until DATETIME NOT NULL,
	PRIMARY KEY (account, transaction_id, follower)
);
CREATE INDEX mobilemoney_followed_follower ON mobilemoney_followed (account, follower);
CREATE INDEX mobilemoney_followed_number ON mobilemoney_followed (account, number);
CREATE TABLE mobilemoney_leases (
	account TEXT NOT NULL,
	name TEXT NOT NULL,
	holder TEXT,
	epoch INTEGER NOT NULL,
	until DOUBLE NOT NULL,
	followed BIGINT NOT NULL,
	told BIGINT NOT NULL,
	PRIMARY KEY (account, name)
);
CREATE TABLE mobilemoney_logins (
	account TEXT NOT NULL,
	credentials TEXT NOT NULL,
	token TEXT,
	expires_at DATETIME,
	renew_from DOUBLE,
	good_until DOUBLE,
	failure TEXT,
	paused_until DOUBLE,
	pause_length DOUBLE,
	refused_anew DOUBLE,
	holder TEXT,
	held_until DOUBLE,
	written DOUBLE NOT NULL,
	PRIMARY KEY (account, credentials)
);
CREATE TABLE mobilemoney_news (
	account TEXT NOT NULL,
	number BIGINT NOT NULL,
	transaction_id TEXT NOT NULL,
	is_final BOOLEAN NOT NULL,
	"transaction" TEXT,
	error TEXT,
	lag DOUBLE,
	at DATETIME NOT NULL,
	PRIMARY KEY (account, number)
);
CREATE INDEX mobilemoney_news_at ON mobilemoney_news (account, at);
CREATE INDEX mobilemoney_news_transaction ON mobilemoney_news (account, transaction_id);
CREATE TABLE mobilemoney_payments (
	id INTEGER NOT NULL,
	account TEXT NOT NULL,
	"key" TEXT NOT NULL,
	type TEXT NOT NULL,
	phone_number TEXT NOT NULL,
	amount TEXT NOT NULL,
	extra_digest TEXT NOT NULL,
	state TEXT NOT NULL,
	attempt INTEGER NOT NULL,
	created_at DATETIME NOT NULL,
	changed_at DATETIME NOT NULL,
	sent_at DATETIME,
	stale_at DATETIME,
	ended_at DATETIME,
	transaction_id TEXT,
	reference TEXT,
	status TEXT,
	"transaction" TEXT,
	acknowledgement TEXT,
	is_adopted BOOLEAN NOT NULL,
	walks INTEGER NOT NULL,
	walked_at DATETIME,
	candidates TEXT,
	error TEXT,
	PRIMARY KEY (id),
	CONSTRAINT mobilemoney_payments_key UNIQUE (account, "key")
);
CREATE INDEX mobilemoney_payments_created ON mobilemoney_payments (account, created_at, id);
CREATE INDEX mobilemoney_payments_state ON mobilemoney_payments (account, state, created_at, id);
CREATE UNIQUE INDEX mobilemoney_payments_transaction ON mobilemoney_payments (account, transaction_id);
CREATE UNIQUE INDEX mobilemoney_payments_unidentified ON mobilemoney_payments (account, type, phone_number, amount) WHERE state IN ('SENDING', 'UNKNOWN', 'ABSENT');
CREATE TABLE mobilemoney_schema (
	version INTEGER NOT NULL
);
CREATE TABLE mobilemoney_history (
	id INTEGER NOT NULL,
	payment_id INTEGER NOT NULL,
	at DATETIME NOT NULL,
	what TEXT NOT NULL,
	source TEXT NOT NULL,
	detail TEXT,
	PRIMARY KEY (id),
	FOREIGN KEY(payment_id) REFERENCES mobilemoney_payments (id)
);
CREATE INDEX ix_mobilemoney_history_payment_id ON mobilemoney_history (payment_id);
INSERT INTO mobilemoney_schema (version) VALUES (1);
