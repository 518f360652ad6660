#!/usr/bin/env bash
# Check superres on a GPU, or train there, within a time limit:
#
#   bash scripts/device/run.sh check SECONDS [options of measure.py]
#   bash scripts/device/run.sh train SECONDS [options of train.py]
#
# Run it in the repository's root, after scripts/device/prepare.py. Each part has its own process and time limit, so one
# that fails or hangs leaves the others their turn; the shortest and most telling parts run first. Everything is written
# into OUT (build/device/out), at most 8 files of 16 MiB. DEVICE=cpu tries the scripts out where there is no GPU, with limits ten times
# as long.
set -u
if [[ $# -lt 2 || ! $1 =~ ^(check|train)$ || ! $2 =~ ^[0-9]+$ ]]; then
  echo "usage: bash scripts/device/run.sh check|train SECONDS [options]" >&2
  exit 2
fi
what=$1 seconds=$2 began=$(date +%s)
shift 2
python=${PYTHON:-python3} device=${DEVICE:-cuda} here=${PREPARED:-build/device}
work=${WORK:-/tmp/superres-device} # packages, and the run that is trained
slower=1 probe=(--probe-batches 64,128) kernel=()
exact=(--engines triton-bf16,triton) fast=(--engines triton-bf16) benchmark=("${fast[@]}") # plain alone would take the whole time
if [[ $device == cpu ]]; then
  slower=10 probe=(--probe-batches 2 --probe-steps 1) kernel=(--limit 2 --batches 1)
  benchmark=(--engines auto --batches 1) exact=() fast=()
  export TRITON_INTERPRET=1
fi
export OUT=${OUT:-$here/out} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
mkdir -p "$OUT" "$work"
: >"$work/$what-parts.txt"
exec > >(tee "$OUT/$what.log") 2>&1

# The machine may lack packages and has no network: the wheels were brought along.
if compgen -G "$here/wheels/*.whl" >/dev/null && [[ ! -d $work/packages ]]; then
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --target "$work/packages" \
    "$here"/wheels/*.whl || exit 3
fi
# Faces add up over the calls to a machine that stays, so that more of them travel than fit beside the tree.
mkdir -p "$work/faces"
cp "$here"/faces/* "$work/faces"/

export XDG_CACHE_HOME=$work/cache # all parts share the kernels that one has compiled
export PYTHONPATH=$PWD:$work/packages${PYTHONPATH:+:$PYTHONPATH}

left() { echo $((seconds - ($(date +%s) - began))); }

# part NAME LIMIT COMMAND...: run a command within its limit and what is left of the time, and record how it ended.
part() {
  local name=$1 limit=$(($2 * slower)) started code
  shift 2
  limit=$(($(left) < limit ? $(left) : limit))
  if ((limit < 5)); then
    echo "$name skipped: no time is left" >>"$work/$what-parts.txt"
    return 0
  fi
  echo "== $name (at most $limit s)"
  started=$(date +%s)
  timeout --kill-after 15 "$limit" "$@"
  code=$?
  echo "$name rc=$code seconds=$(($(date +%s) - started))" >>"$work/$what-parts.txt"
  return $code
}

measure() {
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" scripts/device/measure.py "$name" --device "$device" --data "$here/dev.npz" \
    --output "$OUT/$name.json" "$@"
}

[[ $device == cpu ]] || nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm --format=csv,noheader
git rev-parse HEAD 2>/dev/null
case $what in
  check)
    # One decode per engine, TF32, which attention kernel; what follows reads the kernels that it compiles.
    measure smoke 60 "${exact[@]}" "$@"
    # What compares tokens runs side by side, before what is timed, which runs alone.
    pids=()
    measure exact 110 "${exact[@]}" "$@" & pids+=($!)  # blocks = greedy, widths, batches, CPU = GPU
    measure threads 60 "${fast[@]}" "$@" & pids+=($!) # two threads decode at the same time
    part tests 110 "$python" -m pytest -v --tb=short --maxfail=20 -p no:cacheprovider tests/gpu/test_gpu.py tests/gpu/test_triton.py \
      -k "not fits_a_gpu and not compiled_anew" -n "${WORKERS:-8}" & pids+=($!)
    wait "${pids[@]}"
    part probe 60 "$python" scripts/device/train.py --device "$device" --prepared "$here" --probe "$OUT/probe.json" \
      "${probe[@]}"
    # superres benchmark images by block size and batch, beside other ways, and the limits
    measure benchmark 90 "${benchmark[@]}" "$@"
    measure stream 30 "${fast[@]}" "$@" # images per second of a refilled stream
    # Variants of the kernel: compiled side by side, compared and timed in the time that is left.
    part kernel "$(left)" "$python" scripts/device/one_launch.py --device "$device" --data "$here/dev.npz" \
      --seconds "$(($(left) - 10))" --output "$OUT/kernel.json" "${kernel[@]}"
    ;;
  train)
    # 35 s are left for imports, pictures and the checkpoint, and 10 for packing.
    part train $(($(left) - 10)) "$python" scripts/device/train.py --device "$device" --prepared "$here" \
      --faces "$work/faces" --output "$work/run" --seconds $(($(left) - 45)) "$@"
    # Without the optimiser's state, with which a run could go on: it would not fit.
    (cd "$work/run" && tar cf - checkpoint history.json curves.png | gzip -1) |
      split --bytes 15M --suffix-length 1 --numeric-suffixes - "$OUT/run.tar.gz."
    ;;
esac
echo "== parts"
cat "$work/$what-parts.txt"
echo "$(($(date +%s) - began)) s of $seconds s"
! grep -qE "skipped|rc=[^0]" "$work/$what-parts.txt"
