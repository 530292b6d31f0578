#!/bin/sh
# Compacter's low-resource sizes (Mahabadi et al., 2021, section 5.6 and its appendix): 100 to 4000 examples for 1000 to 25 epochs, 5 seeds.
#
#   exports/recipes/compacter-low-resource.sh BACKBONE TRAIN TEST METHOD OUT [more options of edgepeft train]
#   exports/recipes/compacter-low-resource.sh roberta-base sst2/train.jsonl sst2/validation.jsonl compacter++ exports/sst2-sizes
#
# The paper's model is T5-base. A size that TRAIN does not have ends with train's message. SIZES="100:1000 500:200" chooses some.
set -eu
[ $# -ge 5 ] || { sed -n '4,5s/^# *//p' "$0" >&2; exit 2; }
backbone=$1 train=$2 test=$3 method=$4 out=$5
shift 5
for size in ${SIZES:-100:1000 500:200 1000:100 2000:50 4000:25}; do
    examples=${size%:*}
    for seed in ${SEEDS:-0 1 2 3 4}; do
        edgepeft train --backbone "$backbone" --data "$train" --test "$test" --task "low-resource" --method "$method" \
            --few-shot "$examples" --epochs "${size#*:}" --seed "$seed" --out "$out/$method-$examples-seed-$seed" "$@"
    done
    python "$(dirname "$0")/summary.py" "$out/$method-$examples"-seed-*
done
