#!/bin/bash
# A run of recipe.toml under Slurm: the learner's two ranks on the first node, and an engine on each other node.
#   sbatch examples/cluster/slurm.sh
# All nodes see this directory, with the recipe, the models and the runs, and have groupwise in their PATH.
#SBATCH --job-name=groupwise
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
set -euo pipefail

MODEL=${MODEL:-calculator} # the recipe's
RECIPE=${RECIPE:-recipe.toml}
RANKS=2
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

umask 077 # the secret and the key have mode 600
[ -f secret ] || python -c 'import secrets; print(secrets.token_hex(32))' > secret
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# Engines. Port 0 is a free one; each engine prints its address.
for node in "${nodes[@]:1}"; do
  rm -f "engine-$node.log"
  srun --nodes=1 --ntasks=1 --nodelist="$node" --overlap \
    groupwise serve "$MODEL" --listen 0.0.0.0:0 --secret-file secret --key key.pem > "engine-$node.log" 2>&1 &
done

addresses="" hosts=""
for node in "${nodes[@]:1}"; do
  for ((second = 0; second < 600; second++)); do
    address=$(sed -n 's/.* is served at \(.*\); Ctrl-C ends/\1/p' "engine-$node.log" 2>/dev/null || true)
    [ -z "$address" ] || break
    sleep 1
  done
  [ -n "$address" ] || { echo "no engine on $node:" >&2; cat "engine-$node.log" >&2; exit 1; }
  addresses+="'$address', "
  hosts+=" --engine-host ${address%%:*}"
done

# The learner: the same command in each rank. Rank 0 samples and writes; the others take its optimizer steps.
export ADDRESSES=$addresses HOSTS=$hosts RECIPE RANKS
export WORLD_SIZE=$RANKS MASTER_PORT=${MASTER_PORT:-7001}
MASTER_ADDR=$(srun --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" --overlap hostname -I | cut -d' ' -f1)
export MASTER_ADDR
srun --nodes=1 --ntasks="$RANKS" --nodelist="${nodes[0]}" --kill-on-bad-exit=1 bash -c '
  export RANK=$SLURM_PROCID
  groupwise train "$RECIPE" --cluster.launch external --cluster.ranks "$RANKS" \
    --engine "{ kind = \"Served\", replicas = 0, addresses = [$ADDRESSES] }" $HOSTS --engine-secret secret
'
