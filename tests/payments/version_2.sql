-- What the migration to version 2 changed in the tables of version 1, on either database.
ALTER TABLE mobilemoney_payments ADD COLUMN external_id TEXT;
CREATE INDEX mobilemoney_payments_external_id ON mobilemoney_payments (account, external_id) WHERE length(external_id) <= 200;
CREATE INDEX mobilemoney_payments_reference ON mobilemoney_payments (account, reference) WHERE length(reference) <= 200;
CREATE INDEX mobilemoney_payments_released ON mobilemoney_payments (account, phone_number, type, amount) WHERE (attempt > 1 OR state = 'RELEASED');
UPDATE mobilemoney_schema SET version = 2;
