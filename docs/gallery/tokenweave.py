# %% [markdown]
# # Ladder against TokenWeave
#
# **Question.** TokenWeave hides communication without retraining: it splits a batch into two parts that take turns,
# and fuses all-reduce, residual add and norm into one kernel. How much of ladder's gain does one get that way, for
# long prompts?
#
# **What was done.** TokenWeave's authors published prefills of Llama 3.3 70B under vLLM on 4 and 8 H100s, with both
# techniques, and with all-reduces left out (figure 11 of microsoft/tokenweave; `tests/data/tokenweave_prefill.csv`).
# The same prefills are predicted; ladder, which nobody has measured there, is predicted next to them. Those runs
# launch kernel by kernel, which the stack `vllm` does not know: two figures are set for that, as [the table of all
# rows](../evidence.md#techniques) explains.

# %%
import csv
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt

from ladder_sim import Scenario, predict
from ladder_sim.costs.profile_file import load_profile

overheads = {"kernel_gap_s": 4.3e-6, "eager_launch_s": 31.9e-6}
eager = replace(load_profile("h100-sxm-vllm"), overheads=overheads)
rows = list(csv.DictReader(Path("../../tests/data/tokenweave_prefill.csv").read_text("utf-8").splitlines()))
gains = []
for row in rows:
    prefill = {"model": "70b", "stack": "vllm", "allreduce": "multimem", "gen": 1}
    prefill |= {"tp": int(row["tp"]), "prompt": int(row["prompt"])}
    plain = predict(Scenario(**prefill), ["standard", "ladder", "upper-bound"], profile=eager)
    both = predict(Scenario(**prefill, technique="fused-norm+token-split"), ["standard"], profile=eager)["standard"]
    fused = predict(Scenario(**prefill, technique="fused-norm"), ["ladder"], profile=eager)["ladder"]
    standard_s = plain["standard"].ttft_s
    gains.append(
        {
            "tp": prefill["tp"],
            "prompt": prefill["prompt"],
            "measured": float(row["ttft_ms"]) / float(row["overlapped_ms"]),
            "free, measured": float(row["ttft_ms"]) / float(row["without_allreduce_ms"]),
            "TokenWeave": standard_s / both.ttft_s,
            "ladder": standard_s / plain["ladder"].ttft_s,
            "ladder + fused-norm": standard_s / fused.ttft_s,
            "no communication": standard_s / plain["upper-bound"].ttft_s,
        }
    )

# %% tags=["hide-input"]
figure, panels = plt.subplots(
    1, 2, sharey=True, num="Gain of a prefill over standard: measured (dots), predicted (lines)"
)
for panel, tp in zip(panels, (4, 8), strict=True):
    chosen = [gain for gain in gains if gain["tp"] == tp]
    prompts = [gain["prompt"] for gain in chosen]
    panel.plot(prompts, [gain["measured"] for gain in chosen], "o", color="C1", label="TokenWeave, measured")
    for name, colour, line in (
        ("TokenWeave", "C1", "-"),
        ("ladder", "C0", "-"),
        ("ladder + fused-norm", "C0", "--"),
        ("no communication", "C2", ":"),
    ):
        panel.plot(prompts, [gain[name] for gain in chosen], line, color=colour, label=name)
    panel.set(xscale="log", xlabel="tokens of the prompt", title=f"TP {tp}")
    panel.set_xticks(prompts[::2], [f"{prompt // 1024}k" for prompt in prompts[::2]])
    panel.minorticks_off()
panels[0].set_ylabel("times as fast")
panels[1].legend(fontsize="small")

# %% tags=["remove-input"]
errors = [abs(gain["TokenWeave"] / gain["measured"] - 1) for gain in gains]
at = {gain["prompt"]: gain for gain in gains if gain["tp"] == 8}
long, short = at[16384], at[1024]
assert long["measured"] > long["free, measured"] > long["ladder"]
assert short["ladder"] > short["measured"]
print(f"""**What one sees.** TokenWeave's gain is predicted with a mean error of {sum(errors) / len(errors):.1%} over
{len(gains)} rows. For a prompt of 16k tokens on eight GPUs it was measured at {long["measured"]:.2f}, more than the
{long["free, measured"]:.2f} measured without any all-reduce: the norms, which otherwise every rank computes for all
tokens, become cheaper too. Ladder alone is predicted at {long["ladder"]:.2f} there, and at
{long["ladder + fused-norm"]:.2f} with the same fused norms. For 1k tokens half a batch no longer fills the GPU:
TokenWeave was measured at {short["measured"]:.2f}, ladder is predicted at {short["ladder"]:.2f}.

So for long prompts one gets more from TokenWeave, without retraining, than from ladder alone. Decode is where ladder
is ahead: there a batch is too small to be split, and the fused norms are what is left.""")

# %%
chat = {"model": "70b", "stack": "vllm", "concurrency": 16}
plain = predict(Scenario(**chat), ["standard", "ladder"])
both = predict(Scenario(**chat, technique="fused-norm+token-split"), ["standard"])["standard"]
assert both.tpot_s > plain["ladder"].tpot_s
for name, prediction in {"standard": plain["standard"], "TokenWeave": both, "ladder": plain["ladder"]}.items():
    print(f"{name:10}  16 requests in flight: {1e3 * prediction.tpot_s:.1f} ms per token")

# %% [markdown]
# **What it does not show.** One of the two figures set by hand is fitted to one of these rows, the shortest prefill
# in two parts. Other models and batches that TokenWeave published are not part of this study. Real engines decide by
# the size of a batch whether to split it. [`ladder-sim versus`](../questions/ladder-pays.md) ranks every technique and
# wiring for a scenario of your own.
