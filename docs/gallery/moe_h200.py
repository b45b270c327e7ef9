# %% [markdown]
# # Experts on H200
#
# **Question.** MiniMax M2.5, 229 B parameters of which 10 B work on a token, on eight H200s under vLLM: does ladder
# pay where experts take the time, and on which plan?
#
# **What was done.** First the prediction of standard next to the measured servings of this model at TP 8 in
# the table `serving-moe` of the package (aiconfigurator-core 0.12.0): 1,024 + 8,192 tokens, 8 to 32 requests in
# flight. Then ladder on three plans: tensor parallel throughout; whole experts on each GPU (EP 8); and attention for an
# eighth of the requests on each GPU, with the same experts, so that tokens are exchanged in place of all-reduces.

# %% tags=["hide-input"]
import csv

import matplotlib.pyplot as plt

from ladder_sim import Scenario, sweep
from ladder_sim.validation.dataset import read_table

engine = {"model": "minimax-m2.5", "cluster": "h200-sxm", "dtype": "fp8-block", "stack": "vllm"}
content, _ = read_table("serving-moe")
lines = content.decode().splitlines()
rows = [
    (int(float(row["concurrency"])), float(row["silicon_tpot_ms"]))
    for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    if (row["model_path"], row["system"], row["tp_size"]) == ("MiniMaxAI/MiniMax-M2.5", "h200_sxm", "8.0")
    and (row["isl"], row["osl"]) == ("1024", "8192")
]
measured = dict(sorted(rows))
table = sweep(Scenario(**engine, prompt=1024, gen=8192), {"concurrency": list(measured)}, "standard")
predicted = dict(zip(measured, 1e3 * table["standard.tpot_s"], strict=True))

# %% tags=["remove-input"]
errors = [predicted[requests] / measured[requests] - 1 for requests in measured]
print("| in flight | measured TPOT | predicted | error |\n|---|---|---|---|")
for requests, error in zip(measured, errors, strict=True):
    print(f"| {requests} | {measured[requests]:.1f} ms | {predicted[requests]:.1f} ms | {error:+.0%} |")

# %% tags=["hide-input"]
plans = {"TP 8": {}, "TP 8, EP 8": {"ep": 8}, "attention DP 8, EP 8": {"tp": 8, "attention_dp": 8, "ep": 8}}
load = {**engine, "concurrency": [8, 16, 32, 64, 128, 256], "prompt": 1024, "gen": 1024}
tables = {name: sweep(None, {**load, **plan}, ["standard", "ladder"]) for name, plan in plans.items()}

figure, panels = plt.subplots(
    1, 2, num="Three plans: tokens/s of standard (dashed) and ladder (solid), and the speedup"
)
for (name, table), colour in zip(tables.items(), ("C0", "C1", "C2"), strict=True):
    requests = table["concurrency"]
    for variant, line in (("standard", "--"), ("ladder", "-")):
        panels[0].plot(requests, table[f"{variant}.tokens_per_s"] / 8, line, color=colour)
    panels[1].plot(requests, table["ladder.speedup"], ".--" if name == "TP 8, EP 8" else ".-", color=colour, label=name)
for panel, title in zip(panels, ("tokens/s per GPU", "speedup of ladder"), strict=True):
    panel.set(xscale="log", xticks=requests, xticklabels=requests, xlabel="requests in flight", title=title)
    panel.minorticks_off()
panels[1].legend()

# %% tags=["remove-input"]
last = {
    name: {variant: table[f"{variant}.tokens_per_s"][-1] for variant in ("standard", "ladder")}
    for name, table in tables.items()
}
best = max(last, key=lambda name: last[name]["standard"])
gains = {name: table["ladder.speedup"] for name, table in tables.items()}
print(f"""**What one sees.** Standard's time per token is missed by {sum(map(abs, errors)) / len(errors):.0%} on
average. At TP 8 ladder gains {gains["TP 8"].min():.2f} to {gains["TP 8"].max():.2f}, with whole experts on each GPU
{gains["TP 8, EP 8"].min():.2f} to {gains["TP 8, EP 8"].max():.2f}: both have the same all-reduces. Under attention DP
a dispatch and a combine stand around the experts, and ladder gains {gains["attention DP 8, EP 8"].min():.2f} to
{gains["attention DP 8, EP 8"].max():.2f}. With 256 requests in flight standard serves most on {best},
{last[best]["standard"]:,.0f} tokens/s, and ladder at TP 8 {last["TP 8"]["ladder"]:,.0f}.""")

# %% [markdown]
# **What it does not show.** No run of ladder with experts was compared; the measured servings are all of standard.
# Tokens choose experts as in the measured tables, by a power law; `--set imbalance=` takes another. How good MiniMax
# M2.5 would be as ladder is not known; published of models with experts are FarSkip's ([quality](../adopt.md#quality)).
