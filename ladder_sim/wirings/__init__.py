"""Residual wirings: which block reads which outputs, and which outputs are summed over the ranks.

    rules    a wiring as a file: its keys, and the rule of each block of a model
    names    named families, one file of `data` each, and wirings by name or path
    layout   a wiring laid out over a model's layers, as the graph, the runtime and the vLLM plug-in execute it

Blocks i = 0, 1, ... (attention, MLP, attention, ...; "fused": one a layer) put out p_i^r on rank r of R, a partial sum;
s_i is the sum of p_i^r over the ranks, x the embedding. Block i waits for collectives of blocks before
F_i = max(F_{i-1}, i - delay_i). An output that is not reduced stays open: the next collective settles all open outputs
with its own. c(j) is the block whose collective settles output j.
Block i on rank r reads x + sum over j < i of w_j t_j:

    t_j = s_j      if c(j) < F_i          (s_j / R if c(j) > j and it is a "mean")
          p_j^r    else if j < F_i, or if an earlier block read it so
          instead  else: 0, p_j^r, or what its shared experts put out

The LM head is one more block, which waits for everything.
"""
