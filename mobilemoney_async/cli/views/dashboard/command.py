"""`mobilemoney dashboard`: serve a read-only page of a store on loopback. It sends nothing and writes nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from mobilemoney_async.cli.failures import WrongUsage
from mobilemoney_async.cli.options import AllAccounts, Service, with_service
from mobilemoney_async.cli.sandbox import run_server, until_stopped
from mobilemoney_async.cli.stores import OF_THE_STORE, find_store, open_store_of

Port = Annotated[int, typer.Option(min=0, max=65535, help="TCP port on loopback; 0 takes a free one.")]


@with_service(*OF_THE_STORE)
def dashboard(*, port: Port = 8766, all_accounts: AllAccounts = False, service: Service) -> None:
    """Serve a read-only page of your store on this machine, until Ctrl-C. Needs no service.

    It shows today's payments, those that need someone, the queue and the rate limit. It sends nothing, and writes
    nothing into the store. It has no password: whoever has an account on this machine can open it. With --all-accounts
    it lists the accounts that need someone, and opens one.
    """
    try:
        from mobilemoney_async.cli.views.dashboard.page import AccountsBoard, Board, create_page
        from mobilemoney_async.sandbox.server import serve
    except ImportError as exc:
        raise WrongUsage('the page needs an extra: pip install "mobilemoney-async[sandbox]"') from exc
    import anyio

    store = open_store_of(find_store(service))

    async def run() -> None:
        board = (AccountsBoard if all_accounts else Board)(store, service)
        await board.look_again()
        page = serve(create_page(board), host="127.0.0.1", port=port, background=anyio.sleep_forever)
        async with page as url, anyio.create_task_group() as tasks:
            tasks.start_soon(board.follow)
            print(f"dashboard of {board.name}: {url}/", flush=True)
            await until_stopped()
            tasks.cancel_scope.cancel()
        print("stopped", flush=True)

    try:
        run_server("dashboard", run, "127.0.0.1", port)
    finally:
        store.close()
