# %% [markdown]
# # PCIe boxes
#
# **Question.** A box of eight L40S or RTX PRO 6000 has no NVLink. How much of the time goes into all-reduces, and
# what does ladder win back?
#
# **What was done.** Llama 3.3 70B in fp8 under vLLM, 1024 + 512 tokens, at TP 4 and 8, with 1 to 64 requests in
# flight, on two PCIe boxes whose kernels and all-reduces were measured; H100s on an NVLink switch next to them. On
# PCIe vLLM runs NCCL's all-reduce beyond two GPUs.

# %% tags=["hide-input"]
import matplotlib.pyplot as plt

from ladder_sim import Scenario, predict, sweep

boxes = {"l40s-pcie": "L40S, PCIe 4", "rtx-pro-6000": "RTX PRO 6000, PCIe 5", "h100-sxm": "H100, NVLink"}
load = {"model": "70b", "dtype": "fp8", "stack": "vllm", "concurrency": [1, 4, 16, 64], "tp": [4, 8]}
table = sweep(None, {**load, "cluster": list(boxes)}, ["standard", "ladder"])


def of(cluster, tp, column):
    return table.where((table["cluster"] == cluster) & (table["tp"] == tp))[column]


figure, panels = plt.subplots(1, 2, sharey=True, num="Speedup of ladder over standard")
for panel, tp in zip(panels, (4, 8), strict=True):
    for cluster, name in boxes.items():
        requests = of(cluster, tp, "concurrency")
        panel.plot(requests, of(cluster, tp, "ladder.speedup"), ".-", label=name)
    panel.set(xscale="log", xlabel="requests in flight", title=f"TP {tp}")
    panel.set_xticks(requests, requests)
    panel.minorticks_off()
panels[0].set_ylabel("speedup")
panels[1].legend()

# %% tags=["remove-input"]
load = {"model": "70b", "dtype": "fp8", "stack": "vllm"}
busy = {name: predict(Scenario(**load, cluster=name, concurrency=16)) for name in boxes}
lost = {name: each["standard"].breakdown.exposed_comm_s / each["standard"].request_s for name, each in busy.items()}
gain = {name: each["ladder"].speedup.text for name, each in busy.items()}
assert lost["h100-sxm"] < lost["rtx-pro-6000"] < lost["l40s-pcie"]
print(f"""**What one sees.** With 16 requests in flight at TP 8, standard waits for communication for
{lost["l40s-pcie"]:.0%} of its time on L40S and {lost["rtx-pro-6000"]:.0%} on RTX PRO 6000, against
{lost["h100-sxm"]:.0%} on NVLink. Ladder's speedup (90 %) is {gain["l40s-pcie"]} on L40S, {gain["rtx-pro-6000"]} on
RTX PRO 6000 and {gain["h100-sxm"]} on NVLink. More communication is not more gain: a message hides behind a block
only as long as the block takes, and on L40S at TP 8 messages take many times as long. What is left of ladder there is
little.

The usual way around slow links is fewer GPUs for each replica, where the memory allows it:""")

# %% tags=["hide-input"]
options = {
    "TP 4 x 2, standard": {"tp": 4, "dp": 2},
    "TP 8, standard": {"tp": 8},
    "TP 4 x 2, ladder": {"tp": 4, "dp": 2},
    "TP 8, ladder": {"tp": 8},
}
rates = {
    (box, option): predict(Scenario(**load, cluster=box, concurrency=32, **plan), option.split()[-1]).rate
    for box in list(boxes)[:2]
    for option, plan in options.items()
}
figure, panel = plt.subplots(num="Tokens per second of a box with 32 requests in flight, two replicas of TP 4 or TP 8")
for place, option in enumerate(options):
    heights = [rate for (_, each), rate in rates.items() if each == option]
    panel.bar([box + 0.2 * place for box in range(len(heights))], heights, width=0.18, label=option)
panel.set_xticks([box + 0.3 for box in range(2)], list(boxes.values())[:2])
panel.set(ylabel="tokens/s")
panel.legend()

# %% tags=["remove-input"]
for box in list(boxes)[:2]:
    assert rates[box, "TP 4 x 2, standard"] > rates[box, "TP 8, ladder"]
ratio = {box: rates[box, "TP 4 x 2, ladder"] / rates[box, "TP 4 x 2, standard"] for box in list(boxes)[:2]}
print(f"""Two replicas of TP 4 as standard serve more than TP 8 as ladder on either box: change the plan first. On
that plan ladder is worth {ratio["l40s-pcie"]:.2f} on L40S and {ratio["rtx-pro-6000"]:.2f} on RTX PRO 6000.""")

# %% [markdown]
# **What it does not show.** No end-to-end run on a PCIe box was compared, so that intervals are wide. All-reduces
# were measured on one box of each kind; that of the L40S slows down beyond 16 KB on eight GPUs, and another may be
# faster. Measure yours with [`all_reduce_perf` of nccl-tests](../catalog.md#fabrics) and give the log.
