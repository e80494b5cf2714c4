#!/usr/bin/env bash
# Installs units for one prefill, one decode and the gateway on this machine:
#
#   sudo deploy/systemd/install.sh --model /models/DeepSeek-V4-Flash [--flags "--cuda-graph-max-bs-decode 96"] [--root DIR]
#
# What it can find out it does not ask: Python (of the sglang-pd on PATH, or of --python), the GPUs (the first half for
# prefill, the second for decode, tensor parallel over each half), free ports. Files in /etc/sglang-pd that are there
# already stay as they are. --root DIR writes below DIR, and starts nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model='' flags='' root='' python=''
while (($#)); do
  case $1 in
  --model) model=${2:?--model needs a folder} ;;
  --flags) flags=${2?--flags needs flags, in quotes} ;;
  --root) root=${2:?--root needs a folder} ;;
  --python) python=${2:?--python needs a file} ;;
  *)
    echo "install.sh: $1 is not possible; allowed: --model, --flags, --root, --python" >&2
    exit 2
    ;;
  esac
  shift 2
done

fail() { echo "install.sh: $*" >&2; exit 1; }
[[ -n $model ]] || fail "--model is missing: the folder of the model"
[[ -f $model/config.json ]] || fail "--model $model has no config.json; give a folder with config.json, weights and tokenizer"
model=$(cd "$model" && pwd)
if [[ -z $python ]]; then
  command -v sglang-pd >/dev/null || fail "no sglang-pd on PATH; activate its environment, or give --python"
  python=$(dirname "$(command -v sglang-pd)")/python
fi
[[ -x $python ]] || fail "--python $python cannot be run"
"$python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("sglang", "sglang_pd", "smg"))))' ||
  fail "$python has no sglang-pd, sglang or smg; install the package there"
[[ -n $root || $EUID == 0 ]] || fail "it writes to /etc and /usr/local; run it as root"

cards=0
if command -v nvidia-smi >/dev/null; then cards=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU ') || true; fi
half=$((cards / 2))
if ((cards == 1)); then fail "one GPU cannot be both prefill and decode; write /etc/sglang-pd by hand for several machines"; fi
if ((cards % 2)); then echo "install.sh: $cards GPUs: the last one is left out" >&2; fi
prefill_cards='' decode_cards=''
if ((half)); then
  prefill_cards="--tp-size $half --base-gpu-id 0"
  decode_cards="--tp-size $half --base-gpu-id $half"
fi

# The first free ports from a number on.
port_from=$((30000 - 1))
next_port() {
  port=$((port_from + 1))
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  port_from=$port
}
next_port; gateway_port=$port
next_port; prefill_port=$port
next_port; decode_port=$port
port_from=8997; next_port; bootstrap_port=$port

etc=$root/etc/sglang-pd
keep() { # keep FILE: write standard input there, unless there is one
  if [[ -e $1 ]]; then cat >/dev/null; echo "kept     $1"; else cat >"$1"; echo "written  $1"; fi
}
mkdir -p "$etc" "$root/usr/local/lib/sglang-pd" "$root/etc/systemd/system"
# It may hold an API key.
chmod 750 "$etc"
keep "$etc/common.env" <<END
# For every unit. Variables of docs/environment.md go here as well; prefill and decode must agree on most of them.
PD_PYTHON=$python
PD_MODEL=$model
PD_HOST=127.0.0.1
PD_FLAGS="$flags"
END
keep "$etc/prefill-0.env" <<END
PD_PORT=$prefill_port
PD_BOOTSTRAP_PORT=$bootstrap_port
PD_ROLE_FLAGS="$prefill_cards"
END
keep "$etc/decode-0.env" <<END
PD_PORT=$decode_port
PD_ROLE_FLAGS="$decode_cards"
END
keep "$etc/gateway.env" <<END
PD_PORT=$gateway_port
PD_WORKERS="--prefill http://127.0.0.1:$prefill_port $bootstrap_port --decode http://127.0.0.1:$decode_port"
PD_GATEWAY_FLAGS="$(tr '\n' ' ' <"$here/gateway-flags")"
END
install -m 755 "$here/serve" "$root/usr/local/lib/sglang-pd/serve"
install -m 644 "$here"/*.service "$root/etc/systemd/system/"
if [[ -n $root ]]; then exit 0; fi

id sglang-pd >/dev/null 2>&1 || useradd --system --home-dir /var/lib/sglang-pd --shell /usr/sbin/nologin sglang-pd
chgrp -R sglang-pd "$etc"
systemctl daemon-reload
systemctl enable --now sglang-pd-prefill@0 sglang-pd-decode@0 sglang-pd-gateway
echo "Started. Look at it with: sglang-pd top --prefill http://127.0.0.1:$prefill_port --decode http://127.0.0.1:$decode_port"
