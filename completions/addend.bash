# Bash completion of the addend command: commands, options, their values, recipe files.
_addend() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} options="--help --version" i
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "train check plan report diff bench run --help --version" -- "$current")
    return
  fi
  if [ "$command" = run ]; then
    for ((i = 2; i < COMP_CWORD; i++)); do
      if [ "${COMP_WORDS[i]}" = -- ]; then # behind it stands the user's own command line
        compopt -o filenames 2>/dev/null
        if ((i + 1 == COMP_CWORD)); then
          mapfile -t COMPREPLY < <({ compgen -c -- "$current"; compgen -f -- "$current"; } | sort -u)
        else
          mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        return
      fi
    done
  fi
  case $previous in
    --dtype) mapfile -t COMPREPLY < <(compgen -W "f64 f32 recipe" -- "$current") && return ;;
    --set) compopt -o nospace 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -S = -W "name mesh data.seq data.text data.valid model.layers model.d_model model.heads
        train.global_batch train.microbatches train.steps train.lr train.clip train.seed precision.param precision.grad
        precision.reduce precision.accumulate shard.zero shard.bucket_mib evaluate.samples evaluate.every
        checkpoint.every checkpoint.keep model.weights" -- "$current") && return ;;
    --steps | --dump-step | -n | --ranks-per-node) return ;;
    --reference | --html) compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$current") && return ;;
    --out | -o | --picture) compopt -o filenames 2>/dev/null; local kind=-f
      [ "$command" = train ] && kind=-d
      mapfile -t COMPREPLY < <(compgen $kind -- "$current") && return ;;
  esac
  case $command in
    train) options+=" --json --set --out --resume --force --overwrite --dump-step" ;;
    plan) options+=" --json --set --ranks-per-node --picture" ;;
    report) options+=" --out" ;;
    diff) options+=" --json --reference --html --allow-identical" ;;
    check) options+=" --json --set --steps --dtype --directional --sabotage --out" ;;
    bench) options+=" --json --peers --quick --op --ranks --largest" ;;
    run) options+=" -n --" ;;
    *) return ;;
  esac
  if [[ $current == -* || $command == bench || $command == run ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [ "$command" = report ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -d -- "$current")
  elif [ "$command" = diff ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <({ compgen -f -X "!*.safetensors" -- "$current"; compgen -d -- "$current"; } | sort -u)
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <({ compgen -f -X "!*.@(yaml|yml)" -- "$current"; compgen -d -- "$current"; } | sort -u)
  fi
}
shopt -s extglob
complete -F _addend addend
