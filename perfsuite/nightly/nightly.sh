#!/usr/bin/env bash
# The night of `perfsuite nightly`, whose help lists the settings and exit codes. PYTHON is the
# Python that has perfsuite. It is a script because the shell handles signals of a group best.
set -uo pipefail
set -m # the run has a process group of its own, or it would not hear INT in the background

out=${PERF_OUT:-perf-night} python=${PYTHON:-python3} device=${PERF_DEVICE:-auto}
tier=${PERF_TIER:-nightly} nights=${PERF_NIGHTS:-5}
if ! [[ ${PERF_DOCTOR:-stop} =~ ^(stop|warn)$ && $nights =~ ^[0-9]+$ ]]; then
    echo "nightly: PERF_DOCTOR is stop or warn, PERF_NIGHTS a number; not '${PERF_DOCTOR:-}' and '$nights'"
    exit 4
fi
mkdir -p "$out" || exit 21
# Of two nights at once the second would delete what the first one reports.
exec 9<"$out"
if command -v flock >/dev/null && ! flock -n 9; then
    echo "nightly: another night writes to $out"
    exit 21
fi
# What an earlier night left: its run is kept in .perfsuite, and its report can be made again.
rm -rf "$out/reports" "$out"/*.jsonl.gz "$out"/{proposal.*,summary.md,verdict.json,junit.xml}

perfsuite() { "$python" -m perfsuite.cli "$@"; }
say() { echo "nightly: $*"; }

perfsuite doctor --strict --device "$device" --tier "$tier" </dev/null >"$out/doctor.txt" 2>&1
case $? in
0) ;;
20)
    grep '^Would spoil' "$out/doctor.txt"
    if [ "${PERF_DOCTOR:-stop}" = stop ]; then
        say "not measured: see $out/doctor.txt"
        exit 20
    fi
    ;;
*)
    cat "$out/doctor.txt"
    exit 21
    ;;
esac

# Runs lie below the project's root; this folder may be one below it.
root=$("$python" -c 'from perfsuite.run.project import find_project; print(find_project().root)')
reports=$out/reports
[ "$root" = "$(pwd -P)" ] || reports=$(cd "$out" && pwd -P)/reports

run=
stop() { [ -n "$run" ] && kill -INT "$run" 2>/dev/null; }
trap stop INT TERM HUP
options=(--perf-resume=auto "--perf-tier=$tier" "--perf-device=$device")
[ -n "${PERF_TIME:-}" ] && options+=("--perf-time=$PERF_TIME")
[ -n "${PERF_SHARD:-}" ] && options+=("--perf-shard=$PERF_SHARD")
# Where this script was itself put in the background (&, nohup), INT is ignored, by Python as well.
heed='import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])'
"$python" -c "$heed" -m pytest --perf "${options[@]}" \
    "--junitxml=$out/junit.xml" "--perf-report=$reports" "$@" </dev/null &
run=$!
# A signal ends the waiting, not the run.
code=0
wait "$run" || code=$?
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
[ "$code" -gt 128 ] && { wait "$run" 2>/dev/null || [ $? -eq 127 ] || code=$?; }
run=
trap - INT TERM HUP

# This night's file: an earlier one is no result of it, though it sorts last if the clock was set.
newest=$(find .perfsuite/runs "$root/.perfsuite/runs" -name '*.jsonl' -newer "$out/doctor.txt" 2>/dev/null | sort | tail -n 1)
if [ -z "$newest" ]; then
    say "nothing was measured: ended with $code"
    exit "$code"
fi
gzip -c "$newest" >"$out/$(basename "$newest").gz"
report="$out/reports/$(basename "$newest" .jsonl)"
if [ "$code" -eq 2 ] || [ ! -d "$report" ]; then
    case $(tail -n 1 "$newest") in
    '{"kind":"end",'*) say "no report here: ended with $code when all was measured: perfsuite report $(basename "$newest" .jsonl)" ;;
    *) say "no report: ended with $code before all was measured; start again to go on" ;;
    esac
    exit "$code"
fi
cp "$report/summary.md" "$report/verdict.json" "$out/"

# A shard proposes nothing: the merged run does.
if [ "$nights" -gt 0 ] && [ -z "${PERF_SHARD:-}" ]; then
    # In a copy: what nobody has reviewed is no yardstick for the next night.
    scratch=$(mktemp -d)
    folder=$(perfsuite baseline folders | head -n 1) # the one that is written to
    name=${folder#"$(pwd -P)/"}
    case $name in /* | *..*) name=$(basename "$folder") ;; esac # one that lies elsewhere
    mkdir -p "$scratch/a/$name" "$scratch/b/$name"
    [ -d "$folder" ] && cp -R "$folder/." "$scratch/a/$name/" && cp -R "$folder/." "$scratch/b/$name/"
    perfsuite baseline propose --nights "$nights" --baselines "$scratch/b/$name" \
        --output "$out/proposal.md" >"$out/proposal.txt" 2>&1 ||
        say "nothing proposed: $(grep -v "^not read: " "$out/proposal.txt" | head -n 1)"
    (cd "$scratch" && diff -ruN "a/$name" "b/$name") >"$out/proposal.patch" # for git apply
    rm -rf "$scratch"
fi
say "ended with $code; everything is in $out"
exit "$code"
