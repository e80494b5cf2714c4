"""A decode that is configured differently joins a running pair: it is asked directly, past the gateway."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.fleet import ask, generation
from pd_restarts.deployment import TCP, Deployment, get
from pd_restarts.records import reason
from sglang_pd.cluster.plan import LOOPBACK
from sglang_pd.cluster.ports import PortPicker
from sglang_pd.cluster.procfs import identify
from sglang_pd.cluster.restart import kill_trees

REQUESTS = 3
READY_S = 180.0
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Join:
    """``flags``: what it has beside the flags of the decodes that run."""

    flags: Sequence[str]

    def run(self, site: Deployment) -> None:
        model = next(one for one in site.plan.servers if one.role == "decode")
        port = PortPicker(site.plan.ports).pick_server()
        argv = list(model.argv)
        argv[argv.index("--port") + 1] = str(port)
        argv += self.flags
        log = site.folder.logs / "stranger.log"
        with log.open("wb") as output:
            env = {**os.environ, **TCP, **site.env, **model.env}
            stranger = subprocess.Popen(
                [sys.executable, *argv], stdout=output, stderr=output, env=env, start_new_session=True
            )
        identity = identify(stranger.pid)
        site.note(f"a decode with {' '.join(self.flags)} starts")
        try:
            url = f"http://{LOOPBACK}:{port}"
            deadline = time.monotonic() + READY_S
            while get(url + "/health")[0] != 200:
                if stranger.poll() is not None or time.monotonic() > deadline:
                    tail = log.read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"the other decode did not get ready:\n{tail}")
                time.sleep(0.2)
            site.note("it is ready")
            site.results["joined"] = [self._ask(site, url) for _ in range(REQUESTS)]
        finally:
            if identity is not None:
                kill_trees([identity])
            stranger.wait()
            site.note("it is gone")

    def _ask(self, site: Deployment, url: str) -> dict[str, object]:
        from concurrent.futures import ThreadPoolExecutor

        prefill = next(one for one in site.plan.servers if one.role == "prefill")
        room = random.getrandbits(62)
        body = generation(random.choices(range(32, 127), k=300))
        body |= {"bootstrap_host": LOOPBACK, "bootstrap_port": prefill.bootstrap_port, "bootstrap_room": room}
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(_answer, one + "/generate", body) for one in (prefill.url, url)]
        of_prefill, of_decode = (one.result() for one in both)
        site.note(f"its answer: {of_decode['status']} {of_decode['reason']}; prefill's: {of_prefill['status']}")
        return {"decode": of_decode, "prefill": of_prefill}


def _answer(url: str, body: dict[str, object]) -> dict[str, object]:
    try:
        answer = ask(url, body, PATIENCE_S)
    except TimeoutError:
        return {"status": None, "seconds": PATIENCE_S, "reason": "", "said": f"no answer within {PATIENCE_S:g} s"}
    said = "" if answer.status == 200 else answer.text[:1000]
    return {"status": answer.status, "seconds": round(answer.seconds, 2), "reason": reason(said), "said": said}
