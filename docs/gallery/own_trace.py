# %% [markdown]
# # A trace of your own
#
# **Question.** Here is a profiler's trace of a decode step. What would the same step take as ladder, without
# modelling the model, the engine or the GPU?
#
# **What was done.** The trace (`tests/data/traces/tp/h100_compiled_graph`) is of torch.profiler: two decode steps of
# one rank of Llama 3.1 70B at TP 8 on an H100, as a CUDA graph, with all-reduces of emulated length. Its kernels
# become a dependency graph, which is replayed as a check and then rewired. The same machine also ran the wirings, so
# that the answer can be compared (`tests/data/h100/runs.json`).

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt

from ladder_sim.traces.blocks import cover
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.whatif import with_gaps
from ladder_sim.traces.wirings import baseline, predict_variants

data = Path("../../tests/data")
recorded = with_gaps(load([data / "traces/tp/h100_compiled_graph"]))
last = baseline(recorded, None)
print(f"recorded {1e3 * last.recorded_s:.2f} ms, replayed {1e3 * last.replayed_s:.2f} ms: {last.error:+.2%}")

# %%
step = choose_step(recorded, None)
blocks = cover(step)
print(f"{blocks.layers} layers; {blocks.covered} of {blocks.reduces} all-reduces belong to them")
assert blocks.covered == blocks.reduces
assert abs(last.error) < 0.01
names = ["standard", "hybrid-ladder:40", "ladder", "upper-bound"]
times = predict_variants(step, names)
runs = json.loads((data / "h100/runs.json").read_text("utf-8"))["gpt-fast-batch-1"]
measured = {name: runs["standard"]["tpot_s"] / run["tpot_s"] for name, run in runs.items()}

# %% tags=["hide-input"]
caption = "A decode step in other wirings; behind the bars how many times as fast it is"
figure, panel = plt.subplots(num=caption, figsize=(6.2, 2.6))
exposed = [1e3 * times[name].comm.exposed_s for name in names]
computing = [1e3 * times[name].seconds - each for name, each in zip(names, exposed, strict=True)]
panel.barh(names, computing, label="computing, gaps included")
panel.barh(names, exposed, left=computing, label="exposed communication")
for place, name in enumerate(names):
    run = f", measured {measured[name]:.2f}" if name in measured and name != "standard" else ""
    panel.text(1e3 * times[name].seconds, place, f"  {times[name].speedup:.2f}{run}", va="center")
panel.set(xlabel="ms", xlim=(0, 1.5e3 * times["standard"].seconds))
panel.invert_yaxis()
figure.legend(loc="outside upper center", ncols=2)

# %% tags=["remove-input"]
for name in ("ladder", "upper-bound"):
    assert abs(times[name].speedup / measured[name] - 1) < 0.02
hidden = 1 - times["ladder"].comm.exposed_s / times["ladder"].comm.comm_s
print(f"""**What one sees.** The replay takes as long as the recording, so the graph misses no dependency that
matters. As ladder the step is predicted {times["ladder"].speedup:.2f} times as fast, and was measured at
{measured["ladder"]:.2f}; without communication it is {times["upper-bound"].speedup:.2f}, measured
{measured["upper-bound"]:.2f}. Ladder hides {hidden:.0%} of the communication. Half of the layers as ladder, which is
easier to retrain, give {times["hybrid-ladder:40"].speedup:.2f}.""")

# %% [markdown]
# **What it does not show.** The all-reduces were emulated: they take the time of a message, but neither memory
# bandwidth nor links. Kernels keep their recorded times when an all-reduce runs next to them (`--contention` changes
# that). With plain PyTorch on CPUs over a real link, ladder's steps were predicted within 10 %, but far too fast where
# the cores that compute also cut the messages into packets
# ([traces](../traces.md#what-it-does-not-know)). On GPUs no recorded ladder run with real messages was compared. The
# same from the command line: `ladder-sim trace predict FOLDER`.
