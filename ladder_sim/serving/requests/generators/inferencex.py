"""Results of InferenceX: an object for each serving, with what it was measured on."""

from ladder_sim.serving.requests.generators.fields import JSON, count, number, times_s
from ladder_sim.serving.requests.result import Result
from ladder_sim.serving.requests.traffic import Lengths, Traffic

# requests of each client in an InferenceX serving, and the shortest length as a share of the longest: its scripts give
# --num-prompts 10 x concurrency and --random-range-ratio 0.8
_ROUNDS, _SHORTEST = 10, 0.8
# what else is known of its servers, by engine
_CAMPAIGNS = {"vllm": {"campaign": "inferencex-vllm"}}


def read(document: JSON) -> Result:
    """Read one serving."""
    concurrency = count(document, "conc")
    prompt, gen = (
        Lengths(kind="uniform", first=max(1.0, round(_SHORTEST * longest)), second=float(longest))
        for longest in (count(document, "isl"), count(document, "osl"))
    )
    figures = times_s(document)
    if document.get("output_tput_per_gpu"):
        figures["tokens_per_s_per_gpu"] = number(document, "output_tput_per_gpu")
    elif document.get("tput_per_gpu"):
        # of prompts and answers
        share = document["osl"] / (document["isl"] + document["osl"])
        figures["tokens_per_s_per_gpu"] = share * number(document, "tput_per_gpu")
    left_out = ""
    if document.get("spec_decoding", "none") not in ("", "none", None):
        left_out = f"speculative decoding ({document['spec_decoding']}): its acceptance is not in the file"
    elif document.get("disagg") in (True, "true"):
        left_out = "prefill and decode on GPUs of their own: how many have which is not in the file"
    words = {"model": "model", "hw": "system", "framework": "backend", "precision": "dtype", "tp": "tp", "ep": "ep"}
    return Result(
        tool="InferenceX",
        requests=Traffic(prompt=prompt, gen=gen, requests=_ROUNDS * concurrency, concurrency=concurrency),
        concurrency=concurrency,
        figures=figures,
        server={ours: document[theirs] for theirs, ours in words.items() if theirs in document}
        | {"dp_attention": document.get("dp_attention") in (True, "true")}
        | _CAMPAIGNS.get(str(document.get("framework")), {}),
        left_out=left_out,
    )
