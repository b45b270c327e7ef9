# %% [markdown]
# # 405B on two nodes
#
# **Question.** Llama 3.1 405B in bf16 needs sixteen H100s, so two nodes. Is ladder worth its retraining there, or is
# another plan enough?
#
# **What was done.** Three plans under vLLM, with 1 to 128 requests in flight, 1024 + 512 tokens: TP 16 across both
# nodes, which sends every all-reduce over InfiniBand; two pipeline stages of TP 8; and, with half the bytes, fp8 on a
# single node. Each as standard and as ladder. Only predictions: no run of 405B was compared.

# %%
import matplotlib.pyplot as plt

from ladder_sim import Scenario, predict, sweep

plans = {
    "TP 16, two nodes": {"nodes": 2, "tp": 16},
    "TP 8, two stages": {"nodes": 2, "tp": 8, "pp": 2},
    "fp8, one node": {"tp": 8, "dtype": "fp8"},
}
load = {"model": "405b", "stack": "vllm", "concurrency": [1, 4, 16, 64, 128]}
tables = {name: sweep(None, {**load, **plan}, ["standard", "ladder"]) for name, plan in plans.items()}

# %% tags=["hide-input"]
figure, panel = plt.subplots(num="Tokens per second and GPU against time per token: standard (dashed), ladder (solid)")
for (name, table), colour in zip(tables.items(), ("C0", "C1", "C2"), strict=True):
    gpus = 8 if name == "fp8, one node" else 16
    for variant, line in (("standard", "--"), ("ladder", "-")):
        tpot, rate = 1e3 * table[f"{variant}.tpot_s"], table[f"{variant}.tokens_per_s"] / gpus
        panel.plot(tpot, rate, line, marker=".", color=colour, label=name if variant == "ladder" else None)
panel.set(xlabel="time per token, ms", ylabel="tokens/s per GPU", ylim=0)
panel.legend()

# %% tags=["remove-input"]
row = {requests: place for place, requests in enumerate(load["concurrency"])}
rates = {
    name: {variant: table[f"{variant}.tokens_per_s"] for variant in ("standard", "ladder")}
    for name, table in tables.items()
}
wide, stages, single = rates.values()
gains = {name: table["ladder.speedup"][row[64]] for name, table in tables.items()}
assert wide["standard"][row[4]] > stages["standard"][row[4]]
assert wide["standard"][row[16]] < stages["standard"][row[16]]
assert wide["ladder"][row[64]] > stages["ladder"][row[64]] > single["standard"][row[64]] > stages["standard"][row[64]]
assert wide["ladder"][row[128]] > stages["ladder"][row[128]]
print(f"""**What one sees.** With 64 requests in flight ladder makes TP 16 {gains["TP 16, two nodes"]:.2f} times as
fast, the stages {gains["TP 8, two stages"]:.2f} times and one node {gains["fp8, one node"]:.2f} times. As standard TP
16 is the better bf16 plan for a few requests only: from 16 in flight on two stages serve more, and fp8 serves more
than either on half of the GPUs ({single["standard"][row[64]]:.0f} tokens/s with 64 in flight, against
{stages["standard"][row[64]]:.0f} and {wide["standard"][row[64]]:.0f}). Ladder turns that around:
{wide["ladder"][row[64]]:.0f} tokens/s at TP 16, where the stages come to {stages["ladder"][row[64]]:.0f}, and with
128 in flight it is still ahead.

So the large gain across nodes is first of all a sign of a plan that nobody should choose as standard. Against the
best that one has without retraining, fp8 on one node, ladder at TP 16 serves
{wide["ladder"][row[64]] / single["standard"][row[64]]:.2f} times as many tokens with 64 in flight, on twice the GPUs.
What it does give is the shortest time per token in bf16.""")

# %%
for name, plan in plans.items():
    ladder = predict(Scenario(model="405b", stack="vllm", **plan), ["ladder"])["ladder"]
    print(f"{name:17}  one request: TPOT {1e3 * ladder.tpot_s:4.1f} ms with ladder, speedup {ladder.speedup.text}")

# %% [markdown]
# **What it does not show.** Messages of this size over this fabric were measured only far below and above it, so that
# they are marked *transferred* and the intervals across nodes are wide. Whether a 405B keeps its quality as ladder is
# not known; [`ladder-sim list quality ladder`](../adopt.md#quality) lists what is.
