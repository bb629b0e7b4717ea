#compdef addend
# Zsh completion of the addend command: commands, options, their values, recipe files.
_addend() {
  local -a commands recipe_options
  commands=(
    'train:train a recipe'
    'check:prove the gradients of a recipe against one process'
    'plan:say what is reduced, when, over what, in how many bytes'
    'report:make the page of runs from their folders'
    'diff:say which addends the gradients of a dump hold'
    'bench:measure collectives and the reducer'
    'run:start ranks of an own program'
  )
  recipe_options=(
    '--help[what the command does, with an example]'
    '--version[which version this is]'
    '--json[one JSON document on standard output]'
    '*--set[replace a node of the recipe]:PATH=VALUE:'
    '1:recipe:_files -g "*.(yaml|yml)"'
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    _arguments '--help[all commands]' '--version[which version this is]'
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
    train)
      _arguments $recipe_options '--out[where metrics, checkpoints and the report go]:folder:_files -/' \
        '--resume[go on from the newest usable checkpoint]'
        '--overwrite[replace the run that the folder holds]'
        '--dump-step[write the addends and sums of step N, for addend diff]:number of the step:'
        '--force[with --resume: go on from the checkpoint of another model, data or schedule]'
      ;;
    plan) _arguments $recipe_options '--ranks-per-node[consecutive ranks that share a machine]:ranks' \
      '--picture[also draw who sends what to whom (SVG)]:file:_files' ;;
    check)
      _arguments $recipe_options '--steps[compare several steps]:number of steps:' '--dtype[of the proof]:dtype:(f64 f32 recipe)' \
        '--directional[a difference quotient instead of a reference]' '--out[also write the JSON document there]:file:_files' '--sabotage[plant every known mistake]'
      ;;
    report) _arguments '--help[what it shows]' '--out[where the page goes]:file:_files' '*:folder of a run:_files -/' ;;
    diff) _arguments '--help[what it says]' '--json[one JSON document]' '--reference[also compare with whole gradients, or another dump]:file or folder:_files' '--html[also draw the map of counts as a page]:file:_files' '--allow-identical[addends that are the same are meant to be]' '*:dump:_files' ;;
    bench) _arguments '--help[what it measures]' '--json[one JSON document]' '--peers[measure other libraries too]' \
        '--quick[small sizes, few rounds]' '--op[only this one]:operation:(all_reduce reduce_scatter all_gather reducer copy_in sharded_step update train_step parallel_step exchange grouped experts bridge startup attention products errors memory)' \
        '--ranks[numbers of ranks]:list:' '--largest[leave out larger sizes]:bytes:' ;;
    run) _arguments '--help[how ranks start]' '-n[number of ranks]:ranks:' '*:: :_normal' ;;
  esac
}
_addend "$@"
