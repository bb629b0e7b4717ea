# Fish completion of the addend command: commands, options, their values, recipe files.
complete -c addend -f
complete -c addend -n __fish_use_subcommand -a train -d 'train a recipe'
complete -c addend -n __fish_use_subcommand -a check -d 'prove the gradients of a recipe against one process'
complete -c addend -n __fish_use_subcommand -a plan -d 'say what is reduced, when, over what, in how many bytes'
complete -c addend -n __fish_use_subcommand -a bench -d 'measure collectives and the reducer'
complete -c addend -n __fish_use_subcommand -a run -d 'start ranks of an own program'
complete -c addend -l help -d 'what the command does, with an example'
complete -c addend -n '__fish_seen_subcommand_from train check plan' -a '(__fish_complete_suffix .yaml .yml)'
complete -c addend -n '__fish_seen_subcommand_from train check plan bench' -l json -d 'one JSON document on standard output'
complete -c addend -n '__fish_seen_subcommand_from train check plan' -l set -x -d 'replace a node of the recipe: PATH=VALUE'
complete -c addend -n '__fish_seen_subcommand_from check' -l steps -x -d 'compare several steps'
complete -c addend -n '__fish_seen_subcommand_from check' -l dtype -x -a 'f64 f32 recipe' -d 'of the proof'
complete -c addend -n '__fish_seen_subcommand_from check' -l directional -d 'a difference quotient instead of a reference'
complete -c addend -n '__fish_seen_subcommand_from check' -l sabotage -d 'plant every known mistake'
complete -c addend -n '__fish_seen_subcommand_from bench' -l peers -d 'measure other libraries too'
complete -c addend -n '__fish_seen_subcommand_from run' -s n -x -d 'number of ranks'
complete -c addend -n '__fish_seen_subcommand_from run; and contains -- -- (commandline -opc)' -F
