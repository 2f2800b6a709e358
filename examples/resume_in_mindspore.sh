#!/bin/sh
# A GCN begins in PyTorch on two ranks and goes on in MindSpore on one: checkpoints know no framework and no parts.
set -e
dataset=${1:-cora}
checkpoints=checkpoints-torch-mindspore
unilaunch launch -n 2 --backend torch --dataset "$dataset" --epochs 20 \
    --checkpoint-dir "$checkpoints" --checkpoint-every 10
unilaunch launch -n 1 --backend mindspore --dataset "$dataset" --epochs 40 \
    --checkpoint-dir "$checkpoints" --checkpoint-every 10 --resume
