#!/usr/bin/env bash
# Trains on a GPU what the documentation's tables still lack, in order of importance.
#
#     experiments/gpu.sh DATA [OUT] [SECONDS]
#
# Stops after SECONDS (default 570) and exits with 75 while something is left; the same command then continues, from the
# checkpoints of trainings that were cut off. Trainings of a stage share the device. Result files, with commit, device and
# the hash of the raw logs, are in OUT/results; copy them to docs/results, then: python docs/tools/render.py.
# SMALL=1 checks every stage in minutes on a CPU with narrow networks and few records; ONLY="figure-3 faces" takes these.
set -u
data=$1
out=${2:-runs/gpu}
deadline=$((SECONDS + ${3:-570}))
finished=0
mkdir -p "$out/results"

sizes=() scale=full
if [ "${SMALL:-}" ]; then
  sizes=(--small --records 200 --images 60 --trainings 1 --device cpu) scale=small
fi

# stage NAME COMMAND…: run a command of sfumato in the time that is left; it counts as finished when it exits with 0.
stage() {
  local name=$1 left=$((deadline - SECONDS))
  shift
  case " ${ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
  [ -e "$out/$name.finished" ] && return
  if [ "$left" -lt 30 ]; then
    finished=75
    return
  fi
  echo "== $name, $left seconds left" >&2
  if timeout "$left" sfumato "$@" --data "$data" --out "$out/$name" --results "$out/results" \
    --time-limit "$(((left - 20) / 60))"; then
    touch "$out/$name.finished"
  else
    finished=75
  fi
}

# experiments NAME FILE TOGETHER [EXPERIMENT…]: the named experiments of a file, or all.
experiments() {
  local name=$1 file=$2 together=$3 only=()
  shift 3
  for one in "$@"; do only+=(--only "$one"); done
  stage "$name" experiment run "$(dirname "$0")/$file" "${only[@]}" --together "$together" "${sizes[@]}"
}

stage figure-3 reproduce dppm figure-3 --scale "$scale"
experiments faces faces.toml 6 dppm-faces dpaf-faces dp-lflow-faces-64 dp2-vae-faces-64 dp-merf-faces real-faces
experiments faces-1 faces.toml 4 dppm-faces-1 dp-lflow-faces dp2-vae-faces real-faces-32
experiments faces-person faces.toml 3 dppm-faces-per-person dpaf-faces-per-person dp-lflow-faces-per-person
experiments dppm-published published.toml 3 dppm-published-curve dppm-sliced
experiments dpaf-published published.toml 3 dpaf-adversarial dpaf-published-curve
experiments dp2-vae-published published.toml 1 dp2-vae-published-1000
experiments diffusion dp-diffusion.toml 1 dp-diffusion dp-diffusion-mnist dp-diffusion-1 dp-diffusion-fashion-1
experiments ablations dp-diffusion.toml 3 dp-diffusion-latent dp-diffusion-procedural dp-diffusion-none \
  dp-diffusion-without-teacher
experiments frontier dp-diffusion.toml 1 dp-diffusion-frontier dp-diffusion-long
experiments diffusion-faces dp-diffusion.toml 1 dp-diffusion-faces
experiments dppm-published-faces published.toml 1 dppm-published-faces
[ "$finished" = 0 ] && echo "Everything is finished: $out/results" >&2
exit "$finished"
