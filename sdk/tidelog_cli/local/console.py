"""``tidelog console`` serves the web page of a cluster, wherever its nodes are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed
from tidelog_cli.local.listen_ports import os_reason, require_free_ports
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, parse_settings
from tidelog_cli.stores import DataDir, Metadata, Objects, require_stores, stores_in

CONSOLE_MODULES = ("aiohttp", "jinja2")
INSTALL = "pip install 'tidelog[console]'"


def console(
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    objects: Objects = None,
    node_http: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="A node's --http-port, for the page of faults; repeat it."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than 127.0.0.1 need logins.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 for a free one.")
    ] = 9640,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which browsers reach it; may be repeated."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="PEM of key and certificates: HTTPS."),
    ] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy on this machine speaks HTTPS for it.")
    ] = False,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting that the nodes start with."),
    ] = None,
) -> None:
    """Show the cluster on a web page until Ctrl-C; prints its address.

    Visitors log in with users of the cluster where nodes ask for a login: the context's own login
    is not used. Without the stores some pages say what they cannot show.
    """
    from tidelog_core.config import NodeConfig, parse_config

    try:
        from tidelog_console.running import run_console
        from tidelog_console.settings import ConsoleSettings
    except ModuleNotFoundError as absent:
        raise _absent(absent) from None
    require_free_ports(host, [port], "--port")
    found = connection()
    authority = found.get("ssl.truststore.location")
    metadata_url, objects_url = _locate(data_dir, metadata, objects)
    settings = ConsoleSettings(
        bootstrap_servers=bootstrap or found.bootstrap_servers,
        security_protocol=(found.get("security.protocol") or "PLAINTEXT").upper(),
        ca_file=None if authority is None else Path(authority),
        metadata_url=metadata_url,
        objects_url=objects_url,
        node_http=tuple(node_http or ()),
        host=host,
        port=port,
        host_names=tuple(host_name or ()),
        certificate=certificate,
        is_behind_proxy=behind_proxy,
        node_config=parse_config(NodeConfig, parse_settings("--set", setting or ())),
    )
    try:
        asyncio.run(run_console(settings, lambda url: print(f"console: {url}", flush=True)))
    except OSError as error:
        raise CommandFailed(f"cannot listen on {host}, port {port}: {os_reason(error)}") from None


def _locate(
    data_dir: Path | None, metadata: str | None, objects: str | None
) -> tuple[str | None, str | None]:
    """Return the stores' URLs; None for one that nothing names.

    Raises ``CommandFailed`` for a local path that does not exist.
    """
    found = connection()
    if data_dir is None and metadata is None and objects is None:
        folder = found.get("data.dir")
        data_dir = None if folder is None else Path(folder)
        metadata, objects = found.get("metadata.store"), found.get("object.store")
    if data_dir is not None:
        stores = stores_in(data_dir)
        metadata, objects = metadata or stores.metadata, objects or stores.objects
    require_stores(metadata=metadata)
    return metadata, objects


def _absent(error: ModuleNotFoundError) -> Exception:
    if error.name in CONSOLE_MODULES:
        return CommandFailed(f"the console is not installed ({error.name} is missing): {INSTALL}")
    return error
