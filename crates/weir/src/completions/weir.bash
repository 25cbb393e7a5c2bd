# Completions of weir for bash, printed by: weir completions bash

_weir_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}

_weir_paths() {
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "$1" -- "$cur")
}

# Completes the value of the option $1, if it takes one.
_weir_value() {
    case $1 in
@VALUES@
    esac
    return 1
}

_weir() {
    local cur=${COMP_WORDS[COMP_CWORD]} words= command= position=0 at
    COMPREPLY=()
    if [[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]]; then
        command=${COMP_WORDS[1]}
    fi
    if [[ $COMP_CWORD -gt 1 ]] && _weir_value "$command:${COMP_WORDS[COMP_CWORD - 1]}"; then
        return
    fi
    if [[ $cur == -* ]]; then
        case $command in
@OPTIONS@
        esac
        _weir_words "$words"
        return
    fi
    # How many arguments there are up to this one: neither options nor their values.
    for ((at = 1; at <= COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -* ]] && continue
        ((at > 1)) && (_weir_value "$command:${COMP_WORDS[at - 1]}" >/dev/null) && continue
        ((position++))
    done
    case $command:$((position - 1)) in
        :0) [[ $COMP_CWORD == 1 ]] && _weir_words '@COMMANDS@' ;;
@ARGUMENTS@
    esac
}

complete -F _weir weir
