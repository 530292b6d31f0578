#!/bin/sh
# SPARTAN's few-shot protocol (Deshpande et al., 2022, appendix B, after Gao et al., 2021): 200 examples, 1000 steps, 3 seeds.
#
#   exports/recipes/spartan-few-shot.sh BACKBONE TRAIN TEST METHOD OUT [more options of edgepeft train]
#   exports/recipes/spartan-few-shot.sh roberta-base rte/train.jsonl rte/validation.jsonl spartan exports/rte-few-shot
#
# The paper takes learning rates from its appendix A; here they are the method's defaults unless --lr is given. The checkpoint is chosen on
# a tenth of TRAIN that is not among the 200; TEST is only reported.
set -eu
[ $# -ge 5 ] || { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }
backbone=$1 train=$2 test=$3 method=$4 out=$5
shift 5
for seed in ${SEEDS:-0 1 2}; do
    edgepeft train --backbone "$backbone" --data "$train" --test "$test" --task "few-shot-$method" --method "$method" \
        --few-shot "${EXAMPLES:-200}" --steps "${STEPS:-1000}" --seed "$seed" --out "$out/$method-seed-$seed" "$@"
done
python "$(dirname "$0")/summary.py" "$out/$method"-seed-*
