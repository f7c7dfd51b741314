"""`rowferry server`: a member of the fleet with its faces, until it is told to drain."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rowferry import __version__
from rowferry.errors import BadOption, RowferryError
from rowferry.face.cli.options.address import (
    given_address,
    given_addresses,
    meta_with_secrets,
)
from rowferry.face.cli.options.secrets import (
    SecretKeyFile,
    VaultAddr,
    VaultCa,
    VaultNamespace,
    VaultRoleId,
    VaultSecretIdFile,
    VaultTokenFile,
    given_keys,
)
from rowferry.face.cli.options.spark import (
    SparkConf,
    SparkMaster,
    read_settings,
    settings_with_secrets,
)
from rowferry.face.cli.output import consoles
from rowferry.face.cli.run import WORK_DIR
from rowferry.face.cli.signals import stop_on_signal
from rowferry.face.cli.warm import compile_kernels

if TYPE_CHECKING:
    from rowferry.face.bearer import TokenIssuer
    from rowferry.face.gate import Tls

LOG = logging.getLogger(__name__)


def server_command(
    addr: Annotated[
        str, typer.Option(help="Where REST, metrics and the web page are served: HOST:PORT")
    ] = "127.0.0.1:8300",
    grpc_addr: Annotated[
        str, typer.Option(help="Where gRPC is served: HOST:PORT; empty: nowhere")
    ] = "127.0.0.1:8301",
    advertise_addr: Annotated[
        str | None, typer.Option(help="How others reach this server; default: --addr")
    ] = None,
    meta: Annotated[
        str | None,
        typer.Option(
            envvar="ROWFERRY_META",
            callback=given_address,
            help="Meta database of the fleet; default: sqlite:///.rowferry/meta.db",
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(
            callback=given_addresses,
            help="For requests that name no source: URI, or ID=URI; may be repeated",
        ),
    ] = None,
    spark_master: SparkMaster = "local[*]",
    spark_conf: SparkConf = None,
    work_dir: Annotated[
        Path, typer.Option(help="Spark's logs and, unless --meta is given, the meta database")
    ] = WORK_DIR,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file: certificate chain")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file: the certificate's key")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file: let in only clients with its certificates")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with tokens that clients may bring")
    ] = None,
    users_file: Annotated[
        Path | None, typer.Option(help="File with users, their roles and hashed passwords")
    ] = None,
    oidc_issuer: Annotated[
        str | None, typer.Option(help="Whose signed tokens are believed: the claim iss")
    ] = None,
    oidc_audience: Annotated[
        str | None, typer.Option(help="For whom they must be made: the claim aud")
    ] = None,
    oidc_jwks: Annotated[
        str | None,
        typer.Option(help="Its keys: a JWKS file, or an https:// address; default: it tells"),
    ] = None,
    oidc_role_claim: Annotated[
        str, typer.Option(help="The claim that holds rowferry-viewer, -operator or -admin")
    ] = "roles",
    server_name: Annotated[
        list[str] | None,
        typer.Option(help="A further name of this server, for browsers; may be repeated"),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address or network whose X-Forwarded-… is believed; may be repeated"),
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open-to-all", help="Serve other machines without any login")
    ] = False,
    allow_root: Annotated[
        list[Path] | None,
        typer.Option(help="Directory below which file:// sinks may write; may be repeated"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Whom HTTP sinks, registries, token URLs and object stores may reach: HOST, "
            "HOST:PORT, *.DOMAIN, a network, or *; may be repeated"
        ),
    ] = None,
    allow_env: Annotated[
        list[str] | None,
        typer.Option(help="Environment variable that options may name; may be repeated"),
    ] = None,
    allow_file: Annotated[
        list[Path] | None,
        typer.Option(help="File, or directory of files, that options may name; may be repeated"),
    ] = None,
    allow_vault: Annotated[
        list[str] | None,
        typer.Option(
            help="Path of the secret store, MOUNT/PATH, below which references may name secrets; "
            "may be repeated"
        ),
    ] = None,
    secret_key_file: SecretKeyFile = None,
    vault_addr: VaultAddr = None,
    vault_token_file: VaultTokenFile = None,
    vault_role_id: VaultRoleId = None,
    vault_secret_id_file: VaultSecretIdFile = None,
    vault_namespace: VaultNamespace = "",
    vault_ca: VaultCa = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON")] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Log to this file instead of standard error")
    ] = None,
    log_max_mb: Annotated[
        int, typer.Option(help="A log file that is larger is put aside, another one begun", min=1)
    ] = 20,
    log_files: Annotated[
        int, typer.Option(help="How many log files are kept beside the present one", min=0)
    ] = 5,
) -> None:
    """Run changefeeds, together with all other servers on the same meta database.

    SIGTERM or Ctrl-C drains: each changefeed stops at its next border and is left to the others.
    A second signal ends the server at once; nothing is lost then, either.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # Spark's Java is started later
    # Imported here: other commands should not wait for what only servers need.
    from rowferry.columnar.lean_arrow import look_for_no_pandas

    look_for_no_pandas()
    from rowferry.control.feed.running import Conditions
    from rowferry.control.fleet.memory import set_start_apart, share_allocators
    from rowferry.control.fleet.server import Member
    from rowferry.control.operator.operations import Operations
    from rowferry.control.store.sql_store import open_store
    from rowferry.face import rpc
    from rowferry.face.descriptors import raise_descriptor_limit
    from rowferry.face.gate import Gate
    from rowferry.face.json_log import redacted
    from rowferry.face.log_file import LogLimits, log_to_file
    from rowferry.face.names import ServerNames, refuse_open_door
    from rowferry.face.rest.app import About, create_app
    from rowferry.face.rest.serving import BoundAddress, serve
    from rowferry.face.sources import Sources
    from rowferry.secrets.environment import given_sources
    from rowferry.spark.session import open_session
    from rowferry.spark.shared import SharedSpark, with_a_spare
    from rowferry.spec.reach import Reach

    share_allocators()
    issuer = _issuer(oidc_issuer, oidc_audience, oidc_jwks, oidc_role_claim)
    settings, tls = read_settings(spark_conf or []), _tls(tls_cert, tls_key, tls_ca)
    gate, sources = Gate.read(token_file, users_file, issuer), Sources.parse(source or [])
    names = ServerNames.read(
        [a for a in (addr, advertise_addr) if a], server_name or [], trusted_proxy or []
    )
    if gate.is_open and tls_ca is None and not open_to_all:
        refuse_open_door(addr, "--addr")
        if grpc_addr:
            refuse_open_door(grpc_addr, "--grpc-addr")
    raise_descriptor_limit()
    reach = Reach(
        roots=tuple(str(root.absolute()) for root in allow_root or ()),
        hosts=tuple(allow_host or ()),
        env=tuple(allow_env or ()),
        files=tuple(str(file.absolute()) for file in allow_file or ()),
        vault=tuple(allow_vault or ()),
    )
    keys = given_keys(secret_key_file)
    secrets = given_sources(
        vault_addr, vault_token_file, vault_role_id, vault_secret_id_file, vault_namespace, vault_ca
    )
    settings = settings_with_secrets(settings, secrets)
    work_dir = work_dir.absolute()
    url = meta_with_secrets(meta or f"sqlite:///{work_dir / 'meta.db'}", secrets)
    master = with_a_spare(spark_master)
    work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log_file is None:
        _log(log_json)
    else:
        log_to_file(log_file.absolute(), LogLimits(log_max_mb, log_files), log_json)
    LOG.info("rowferry %s serves as process %d", __version__, os.getpid())
    compile_kernels(consoles()[1])
    failed: list[RowferryError] = []
    with ExitStack() as open_things, stop_on_signal(_tell_draining) as stop:
        store = open_store(url, keys=keys)
        open_things.callback(store.close)
        # Requests have connections of their own: however many wait, leases are renewed.
        asked = open_store(url, keys=keys)
        open_things.callback(asked.close)
        spark = SharedSpark(
            lambda: open_session("rowferry server", work_dir / "logs", master, settings)
        )
        open_things.callback(spark.close)
        place = BoundAddress(addr)
        open_things.callback(place.close)
        member = Member(
            store,
            advertise_addr or place.address,
            Conditions(spark.runner, reach=reach, secrets=secrets),
            hide=redacted,
        )
        operations = Operations(
            asked,
            reach=reach,
            secrets=secrets,
            here=member.last_changes,
            tables_here=member.target_tables,
        )
        about = About(member.address, __version__, time.time(), member.holder.instance)
        rest = open_things.enter_context(
            serve(create_app(operations, about, gate, sources, names), place, tls)
        )
        line = f"serving at {rest.url}"
        if grpc_addr:
            calls = open_things.enter_context(rpc.serve(operations, grpc_addr, tls, gate, sources))
            line += f", gRPC at {calls.address}"

        def give_up(error: RowferryError) -> None:
            failed.append(error)
            stop.set()

        spark.start(give_up)
        consoles()[0].print(line, markup=False, soft_wrap=True)
        set_start_apart()
        member.run(stop)
    if failed:
        raise failed[0]


def _tell_draining() -> None:
    consoles()[1].print(
        "draining: changefeeds stop after their micro-batches; again to stop now",
        markup=False,
        soft_wrap=True,
    )


def _issuer(
    issuer: str | None, audience: str | None, jwks: str | None, role_claim: str
) -> TokenIssuer | None:
    from rowferry.face.bearer import TokenIssuer

    given = [one for one in (issuer, audience, jwks) if one]
    if not given:
        return None
    if not issuer or not audience:
        raise BadOption("signed tokens need --oidc-issuer and --oidc-audience")
    return TokenIssuer(issuer, audience, jwks, role_claim)


def _tls(cert: Path | None, key: Path | None, authority: Path | None) -> Tls | None:
    from rowferry.face.gate import Tls

    if cert is None and key is None and authority is None:
        return None
    if cert is None or key is None:
        raise BadOption("TLS needs both --tls-cert and --tls-key")
    return Tls(cert, key, authority)


def _log(as_json: bool) -> None:
    """Send log lines to standard error."""
    from rowferry.face.json_log import PlainFormatter, log_json

    if as_json:
        log_json()
        return
    lines = logging.StreamHandler()
    lines.setFormatter(PlainFormatter())
    logging.basicConfig(handlers=[lines], level=logging.INFO, force=True)
    for chatty in ("py4j", "alembic", "uvicorn", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
