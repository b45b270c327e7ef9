# %% [markdown]
# # Adapting SmolLM2
#
# **Question.** A model that was trained as standard loses quality when it is rewired. How much, and how fast does
# training bring it back?
#
# **What was done.** SmolLM2-135M-Instruct, 30 layers, with its last 8, its last 15 or all layers as ladder, was
# trained on one H100 for 200 steps of 32 x 512 tokens: by self-distillation (learning the distribution of the model
# that it was), or on the text itself, as was the standard model. Held-out loss was measured every 25 steps. The runs,
# with options, seeds and hashes, are in `tests/data/training/recovery.json`; [how to repeat
# them](../adopt.md#recovery-measured).

# %%
import json
from math import exp
from pathlib import Path

import matplotlib.pyplot as plt

results = json.loads(Path("../../tests/data/training/recovery.json").read_text("utf-8"))
before = {name: exp(of_it["held_out"]) for name, of_it in results["untrained"].items()}
for name, perplexity in sorted(before.items(), key=lambda each: each[1]):
    print(f"{name:9}  perplexity {perplexity:9,.1f} without training")

# %% tags=["hide-input"]
figure, panel = plt.subplots(num="Held-out perplexity while the model is trained; dotted: the model as it was")
models = {"8": "last 8 layers", "15": "last 15 layers", "30": "all layers", "0": "standard"}
for name, run in results["runs"].items():
    layers, objective = name.removeprefix("last-").split("-", 1)
    label = f"{models[layers]}, {'itself' if objective == 'distill' else 'the text'}"
    tokens = [point["tokens"] / 1e6 for point in run["curve"]]
    perplexity = [exp(point["held_out"]) for point in run["curve"]]
    line = "-" if objective == "distill" else "--"
    panel.plot(tokens, perplexity, line, marker=".", color=f"C{list(models).index(layers)}", label=label)
panel.axhline(before["standard"], color="black", linestyle=":")
panel.set(yscale="log", xlabel="million tokens", ylabel="perplexity")
panel.set_yticks([5, 10, 20, 50, 100, 1_000, 10_000], ["5", "10", "20", "50", "100", "1,000", "10,000"])
panel.minorticks_off()
panel.legend(title="learned from")

# %% tags=["remove-input"]
half = results["runs"]["last-15-distill"]["curve"]
back = next(point["tokens"] for point in half if exp(point["held_out"]) < before["standard"])
away = {name: run["curve"][-1]["divergence"] for name, run in results["runs"].items() if name.endswith("distill")}
text = {name: run["curve"][-1]["held_out"] for name, run in results["runs"].items() if name.endswith("next-token")}
cost = {name: loss - text["last-0-next-token"] for name, loss in text.items()}
assert before["first 8"] > 100 * before["last 8"]
assert before["last 30"] > 20_000
print(f"""**What one sees.** Where the ladder layers are matters more than how many: the last 8 raise the perplexity
from {before["standard"]:.1f} to {before["last 8"]:.1f}, the first 8 to {before["first 8"]:,.0f}. Half of the layers,
{before["last 15"]:.0f} at first, are back below {before["standard"]:.1f} after {back / 1e6:.1f} million tokens of
self-distillation; {away["last-15-distill"]:.2f} nats per token from the model that it was, which the perplexity does
not show. Training on the text goes far below, because every model learns it; next to the standard model trained
alike, {cost["last-8-next-token"]:.2f} nats remain with 8 ladder layers, {cost["last-15-next-token"]:.2f} with 15. All
layers are still {away["last-30-distill"]:.1f} nats away.""")

# %% [markdown]
# What such an adaptation would cost for a model that is worth serving, and after how many tokens it has paid, is
# a formula. For Llama 3.1 8B with its last 16 layers as ladder, of which quality was published:

# %%
from ladder_sim import Scenario, predict
from ladder_sim.analysis.adaptation import adaptation

served = predict(Scenario(model="8b", stack="vllm", concurrency=64), ["standard", "hybrid-ladder:16"])
price = adaptation(served, "hybrid-ladder:16")
paid = price.break_even_tokens
print(f"{price.tokens / 1e9:.0f} B tokens, as published of {price.published_tokens}")
print(f"{price.gpu_hours.value:.0f} ({price.gpu_hours.low:.0f}-{price.gpu_hours.high:.0f}) GPU-hours")
tokens = f"{paid.value / 1e9:.1f} ({paid.low / 1e9:.1f}-{paid.high / 1e9:.1f}) B tokens"
print(f"speedup {price.serving.speedup.text}, has paid after {tokens}")

# %% [markdown]
# **What it does not show.** Perplexity on one text, one seed, a small model: whether tasks come back was not
# measured, nor how long the full ladder would take. The GPU-hours are those of a share of the GPU's peak that large
# runs published.
