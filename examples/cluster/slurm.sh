#!/bin/bash
# A run of recipe.toml under Slurm, with a rank of the learner for each GPU of the first node, and an engine for each GPU
# of the other nodes.
#   sbatch examples/cluster/slurm.sh
# Without GPUs: two ranks, and an engine on each other node.
#   sbatch --gpus-per-node=0 --ntasks-per-node=2 --cpus-per-task=1 examples/cluster/slurm.sh
# Engines of vLLM, here of two GPUs each; the interpreter is that of vLLM's environment, on each of their nodes:
#   ENGINE='{ kind = "Vllm", tensor_parallel_size = 2 }' ENGINES=4 ENGINE_PYTHON=.venv-vllm/bin/python \
#     sbatch examples/cluster/slurm.sh
# All nodes see this directory, with the recipe, the models and the runs, and have groupwise in their PATH.
#SBATCH --job-name=groupwise
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
set -euo pipefail

GPUS=${SLURM_GPUS_ON_NODE:-0}
MODEL=${MODEL:-calculator} # the recipe's
RECIPE=${RECIPE:-recipe.toml}
RANKS=${RANKS:-$((GPUS > 0 ? GPUS : 2))} # a power of two
ENGINES=${ENGINES:-$((GPUS > 0 ? GPUS : 1))} # of each other node
ENGINE=${ENGINE:-Native} # or Vllm
ENGINE_PYTHON=${ENGINE_PYTHON:-} # of the engine Vllm
DTYPE=${DTYPE:-$([ "$GPUS" -gt 0 ] && echo bfloat16 || echo float32)}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

umask 077 # the secret and the key have mode 600
[ -f secret ] || python -c 'import secrets; print(secrets.token_hex(32))' > secret
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Engines. Port 0 is a free one; each engine prints its address.
declare -A steps
for node in "${nodes[@]:1}"; do
  rm -f "engine-$node.log"
  srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap \
    groupwise serve "$MODEL" --engine "$ENGINE" --engine-python "$ENGINE_PYTHON" --replicas "$ENGINES" --dtype "$DTYPE" \
    --listen 0.0.0.0:0 --secret-file secret --key key.pem > "engine-$node.log" 2>&1 &
  steps[$node]=$!
done

addresses="" hosts=""
for node in "${nodes[@]:1}"; do
  for ((second = 0; second < 600; second++)); do
    mapfile -t found < <(sed -n 's/.* is served at \(.*\); Ctrl-C ends/\1/p' "engine-$node.log" 2>/dev/null || true)
    [ "${#found[@]}" -lt "$ENGINES" ] && kill -0 "${steps[$node]}" 2>/dev/null || break
    sleep 1
  done
  [ "${#found[@]}" -ge "$ENGINES" ] || { echo "no engines on $node:" >&2; cat "engine-$node.log" >&2; exit 1; }
  for address in "${found[@]}"; do addresses+="'$address', "; done
  hosts+=" --engine-host ${found[0]%%:*}"
done

# The learner: the same command in each rank. Rank 0 samples and writes; the others take its optimizer steps.
export ADDRESSES=$addresses HOSTS=$hosts RECIPE RANKS DTYPE
export WORLD_SIZE=$RANKS MASTER_PORT=${MASTER_PORT:-7001}
MASTER_ADDR=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap hostname -I | cut -d' ' -f1)
export MASTER_ADDR
srun --nodes=1 --ntasks="$RANKS" --nodelist="${nodes[0]}" --overlap --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
  groupwise train "$RECIPE" --machine.dtype "$DTYPE" --cluster.launch external --cluster.ranks "$RANKS" \
    --engine "{ kind = \"Served\", replicas = 0, batch_invariant = false, addresses = [$ADDRESSES] }" $HOSTS --engine-secret secret
'
