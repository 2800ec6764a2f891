#!/bin/bash
# Train on two nodes of Slurm; before the time limit, and when it is preempted, the job saves, and is queued again.
#
#     sbatch slurm.sh --epochs 90
#
# Two minutes before the limit Slurm sends SIGUSR1 to each process of the step, the loader's workers included, which
# ignore it: train_ddp.py saves after the next step and ends with 85. `srun` starts each rank by itself: torchrun would
# end at SIGUSR1. DATASET and CHECKPOINT are seen by all nodes; the cache of a dataset in a bucket is each node's own.

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

# Ranks that were told to end need a moment more than the first of them, and 85 must stay the highest exit code. After a
# rank that fails, srun ends the others in --wait seconds. It does not take the cores of a task from sbatch by itself.
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
