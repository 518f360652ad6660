#!/usr/bin/env bash
# Check superres on a GPU, or train there, within a time limit:
#
#   bash scripts/device/run.sh check SECONDS [options of superres benchmark images and kernel.py]
#   bash scripts/device/run.sh train SECONDS [COMMAND of superres train] [its options]
#
# Without a command, `train` continues the checkpoint that the faces were packed for. Run it in the
# repository's root, after `python scripts/device/faces.py pack`. Each part has its own process and
# time limit, so one that fails or hangs leaves the others their turn. Everything is written into OUT
# (build/device/out), at most 8 files of 16 MiB. DEVICE=cpu tries the script out where there is no
# GPU, with limits ten times as long.
set -u
if [[ $# -lt 2 || ! $1 =~ ^(check|train)$ || ! $2 =~ ^[0-9]+$ ]]; then
  echo "usage: bash scripts/device/run.sh check|train SECONDS [options]" >&2
  exit 2
fi
what=$1 seconds=$2 began=$(date +%s)
shift 2
python=${PYTHON:-python3} device=${DEVICE:-cuda} here=${PREPARED:-build/device}
work=${WORK:-/tmp/superres-device} # packages, caches, and the run that is trained
slower=1 engine=triton-bf16 kernel=() benchmark=(--minutes 1.2)
if [[ $device == cpu ]]; then
  slower=10 engine=plain kernel=(--limit 2 --batches 1) benchmark=(--batches 1)
  export TRITON_INTERPRET=1
fi
export OUT=${OUT:-$here/out} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$OUT" "$work/faces"
: >"$work/$what-parts.txt"
exec > >(tee "$OUT/$what.log") 2>&1

# The machine may lack packages and has no network: the wheels were brought along.
if compgen -G "$here/wheels/*.whl" >/dev/null && [[ ! -d $work/packages ]]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
    --target "$work/packages" "$here"/wheels/*.whl || exit 3
fi
export XDG_CACHE_HOME=$work/cache # all parts share the kernels that one has compiled
export PYTHONPATH=$PWD:$work/packages${PYTHONPATH:+:$PYTHONPATH}

left() { echo $((seconds - ($(date +%s) - began))); }

# part NAME LIMIT COMMAND...: run a command within its limit and what is left of the time, and
# record how it ended.
part() {
  local name=$1 limit=$(($2 * slower)) started code
  shift 2
  limit=$(($(left) < limit ? $(left) : limit))
  if ((limit < 5)); then
    echo "$name skipped: no time is left" >>"$work/$what-parts.txt"
    return 0
  fi
  echo "== $name (at most $limit s)" >&2
  started=$(date +%s)
  timeout --kill-after 15 "$limit" "$@"
  code=$?
  echo "$name rc=$code seconds=$(($(date +%s) - started))" >>"$work/$what-parts.txt"
  return $code
}

if [[ $device != cpu ]]; then
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader
fi
git rev-parse HEAD 2>/dev/null
case $what in
  check)
    # The kernel is built and compared with the plain engine, before what is timed, which runs alone.
    part tests 200 "$python" -m pytest -v --tb=short --maxfail=20 -p no:cacheprovider tests/gpu \
      -k "not fits_a_gpu and not compiled_anew" -n "${WORKERS:-8}"
    part benchmark 110 "$python" -m superres benchmark images --device "$device" --engine "$engine" \
      --data "$here/dev.npz" --busy --json "${benchmark[@]}" "$@" >"$OUT/benchmark.json"
    # Variants of the kernel: compiled side by side, compared and timed in the time that is left.
    part kernel "$(left)" "$python" scripts/device/kernel.py --device "$device" \
      --data "$here/dev.npz" --seconds "$(($(left) - 10))" --output "$OUT/kernel.json" \
      "${kernel[@]}" "$@"
    ;;
  train)
    command=(heads --start "$(cat "$here/checkpoint.txt")" --head-positions 192)
    if [[ ${1:-} =~ ^(base|heads|distil|ladder)$ ]]; then
      command=("$@")
      set --
    fi
    # A stage ends with its minutes; a recipe stops, and the same call goes on where it stands.
    length=(--minutes)
    if [[ ${command[0]} == ladder ]]; then
      length=(--piece-minutes)
    else
      command+=(--optimizer muon --precision bf16 --warmup-steps 100)
    fi
    # Faces add up over the calls to a machine that stays: more of them than travel at once.
    cp "$here"/faces/* "$work/faces"/
    part faces 60 "$python" scripts/device/faces.py unpack "$work/faces" "$work/faces.npz"
    # 10 s are left for packing, and 20 for the end of the last step and the checkpoint.
    length+=("$(awk "BEGIN {print ($(left) - 30) / 60}")")
    [[ " $* " == *" --steps "* ]] && length=()
    part train $(($(left) - 10)) "$python" -m superres train "${command[@]}" --device "$device" \
      --data "$work/faces.npz" --dev "$here/dev.npz" --output "$work/run" "${length[@]}" "$@"
    # Without the optimiser's state, with which a run could go on, and the pictures: they do not fit.
    tar cf - -C "$work/run" --exclude state --exclude own . | gzip -1 |
      split --bytes 15M --suffix-length 1 --numeric-suffixes - "$OUT/run.tar.gz."
    ;;
esac
echo "== parts"
cat "$work/$what-parts.txt"
echo "$(($(date +%s) - began)) s of $seconds s"
! grep -qE "skipped|rc=[^0]" "$work/$what-parts.txt"
