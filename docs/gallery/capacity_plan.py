# %% [markdown]
# # A capacity plan
#
# **Question.** A service of Llama 3.3 70B on H100s promises 95 % of its users a first token within 500 ms and 20 ms
# per further token. 20 requests a second come at the busiest hour. How many GPUs, and what do ladder or fused norms
# change?
#
# **What was done.** Requests of about 1,000 + 128 tokens (lengths are drawn) arrive at random; replicas of TP 8 under
# vLLM are simulated request by request. `capacity` finds the rate at which one replica breaks the SLO, and
# the replicas that 20 requests a second need.

# %%
import matplotlib.pyplot as plt

from ladder_sim import Scenario, capacity

load = {"prompt": "uniform:512:1536", "gen": "uniform:64:192", "rate": 20.0, "requests": 100}
bounds_s = {"ttft_p95_s": 0.5, "tpot_p95_s": 0.02}
options = {
    "standard": Scenario(model="70b", stack="vllm"),
    "standard + fused-norm": Scenario(model="70b", stack="vllm", technique="fused-norm"),
    "ladder": Scenario(model="70b", stack="vllm"),
}
fleets = {}
for name, scenario in options.items():
    variant = name.split()[0]
    need = capacity(scenario, variant, slo=bounds_s, tp=8, pp=1, seeds=2, curves=True, **load)
    fleets[name] = need[variant]

# %% tags=["hide-input"]
figure, panels = plt.subplots(1, 2, num="Bounds against the rate of one replica; dotted: the SLO")
for place, (panel, (bound, bound_s)) in enumerate(zip(panels, bounds_s.items(), strict=True)):
    for name, fleet in fleets.items():
        rates = sorted(fleet.curve)
        panel.plot(rates, [1e3 * fleet.curve[rate][place] for rate in rates], ".-", label=name)
    panel.axhline(1e3 * bound_s, linestyle=":", color="black")
    panel.set(xlabel="requests/s of one replica", title=f"{bound.removesuffix('_s')}, ms", ylim=(0, 2e3 * bound_s))
panels[0].legend()

# %% tags=["remove-input"]
print("| | GPUs (90 %) | requests/s of one replica (90 %) | breaks first |\n|---|---|---|---|")
for name, fleet in fleets.items():
    gpus, limit = fleet.gpus, fleet.rate_limit
    cells = f"{gpus.value:.0f} ({gpus.low:.0f}-{gpus.high:.0f}) | {limit.value:.1f} ({limit.low:.1f}-{limit.high:.1f})"
    print(f"| {name} | {cells} | {', '.join(fleet.need.breaks)} |")

# %% tags=["remove-input"]
limits = {name: fleet.rate_limit.value for name, fleet in fleets.items()}
gpus = {name: fleet.gpus.value for name, fleet in fleets.items()}
assert all(fleet.need.breaks == ("tpot_p95",) for fleet in fleets.values())
print(f"""**What one sees.** The time per token breaks first, long before the first token does: users who decode wait
for the prompts of others. A replica with ladder carries {limits["ladder"] / limits["standard"]:.2f} times the rate of
standard, one with fused norms {limits["standard + fused-norm"] / limits["standard"]:.2f} times, without any
retraining. Replicas come whole: standard needs {gpus["standard"]:.0f} GPUs, with fused norms
{gpus["standard + fused-norm"]:.0f}, with ladder {gpus["ladder"]:.0f}. The curves are steep near the limit, so that an
error of a few percent in the time of a step is a replica more or less: plan with the interval.""")

# %% [markdown]
# **What it does not show.** What retraining costs ([quality](../adopt.md#what-it-costs)), other plans than TP
# 8 (`tp=` and `pp=` search them), prefix caches and other lengths: a day of your own requests is a better load than a
# distribution ([`--trace`](../load.md)). No serving with ladder or fused norms was compared with a measurement.
