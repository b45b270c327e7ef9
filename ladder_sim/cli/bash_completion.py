"""The script by which bash completes words, printed for ``eval "$(_LADDER_SIM_COMPLETE=source_bash ladder-sim)"``.

bash splits a line at every character of COMP_WORDBREAKS, ":" and "@" among them, which names hold (``token-split:2``,
``vllm@0.17``), and replaces what stands behind the last of them. typer's script gives and takes such parts as words.
"""

SCRIPT = r"""_ladder_sim_completion() {
    local rest=$COMP_LINE part word reply
    local -a words=()
    # parts with no space between them are one word
    for part in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} == 0 || $rest == [[:space:]]* ]]; then
            rest=${rest#"${rest%%[![:space:]]*}"}
            words+=("$part")
        else
            words[-1]+=$part
        fi
        rest=${rest#"$part"}
    done
    word=${words[-1]}
    # what bash leaves as it is
    local kept=${word%"${word##*["$COMP_WORDBREAKS"]}"} IFS=$'\n'
    COMPREPLY=()
    for reply in $(
        env COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) _LADDER_SIM_COMPLETE=complete_bash "$1"
    ); do
        COMPREPLY+=("${reply#"$kept"}")
    done
}

complete -o default -F _ladder_sim_completion ladder-sim
"""
