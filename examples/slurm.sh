#!/bin/bash
# Train on two nodes of Slurm. Before the time limit, and when it is preempted, the job saves and requeues itself.
#
#     sbatch slurm.sh --epochs 90
#
# Two minutes before the limit Slurm sends SIGUSR1 to each process of the step, the loader's workers included, which
# ignore it: train_ddp.py saves after the next step and ends with 85. `srun` starts the ranks, because torchrun would
# end at SIGUSR1. All nodes must see DATASET and CHECKPOINT; each node has its cache of a dataset in a bucket.

#SBATCH --job-name=photos256
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append

set -u
EXAMPLES=${EXAMPLES:-$SLURM_SUBMIT_DIR}
DATASET=${DATASET:-photos256}
CHECKPOINT=${CHECKPOINT:-run.pt}
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-29500}
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Ranks end at slightly different times, and 85 must stay the highest exit code. When a rank fails, srun ends the others
# after --wait seconds. srun does not inherit --cpus-per-task from sbatch.
srun --kill-on-bad-exit=0 --wait=60 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c '
    trap "" USR1  # Python would end at it before train_ddp.py has its handler
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=$SLURM_NTASKS_PER_NODE
    exec python "$@"
' rank "$EXAMPLES/train_ddp.py" "$DATASET" --checkpoint "$CHECKPOINT" --workers "$SLURM_CPUS_PER_TASK" "$@"
code=$?

if [ "$code" -eq 85 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
