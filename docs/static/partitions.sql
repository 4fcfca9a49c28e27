-- Divides the tables of a store by account, on PostgreSQL: see docs/platform.md.
DO $$
DECLARE
  parent text;
  indexes text[];
BEGIN
  FOREACH parent IN ARRAY ARRAY[
    'mobilemoney_payment_records', 'mobilemoney_payment_history',
    'mobilemoney_changes', 'mobilemoney_consumers', 'mobilemoney_retries',
    'mobilemoney_batches', 'mobilemoney_batch_lines', 'mobilemoney_unmatched',
    'mobilemoney_lives', 'mobilemoney_lost_times', 'mobilemoney_accounts',
    'mobilemoney_subscriptions', 'mobilemoney_erasures'
  ] LOOP
    SELECT array_agg(coalesce(
             format('ALTER TABLE %I ADD ', parent)
               || pg_get_constraintdef(c.oid),
             pg_get_indexdef(i.indexrelid)))
      INTO indexes
      FROM pg_index i LEFT JOIN pg_constraint c ON c.conindid = i.indexrelid
      WHERE i.indrelid = parent::regclass;
    EXECUTE format('ALTER TABLE %I RENAME TO mobilemoney_moving', parent);
    EXECUTE format(
      'CREATE TABLE %I (LIKE mobilemoney_moving INCLUDING DEFAULTS)'
        ' PARTITION BY HASH (account)',
      parent);
    FOR part IN 0..15 LOOP
      EXECUTE format(
        'CREATE TABLE %I PARTITION OF %I'
          ' FOR VALUES WITH (MODULUS 16, REMAINDER %s)',
        parent || '_' || part, parent, part);
    END LOOP;
    EXECUTE format('INSERT INTO %I SELECT * FROM mobilemoney_moving', parent);
    DROP TABLE mobilemoney_moving;
    FOR place IN 1..cardinality(indexes) LOOP
      EXECUTE indexes[place];
    END LOOP;
  END LOOP;
END $$;
