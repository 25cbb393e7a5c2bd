#compdef weir
# Completions of weir for zsh, printed by: weir completions zsh

_weir() {
    local -a commands
    commands=(
        @COMMANDS@
    )
    if ((CURRENT == 2)) && [[ $words[2] != -* ]]; then
        _describe command commands
        return
    fi
    local command=$words[2]
    if [[ $command != -* ]]; then
        shift words
        ((CURRENT--))
    fi
    case $command in
@CASES@
        *)
            _arguments -s @OPTIONS@ ;;
    esac
}

if [[ $funcstack[1] == _weir ]]; then
    _weir "$@"
else
    compdef _weir weir
fi
