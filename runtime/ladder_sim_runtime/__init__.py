"""Real tensor-, expert- and pipeline-parallel forward passes of every residual wiring, in PyTorch.

    model/        the decoder: residual, layers of attention, latent and feed_forward, kernels of all and of attention,
                  dispatch of tokens to experts, shard
    comm/         the ranks: launch, rendezvous, process_group, symmetric, streams, emulate, heartbeat
    checkpoint/   Hugging Face's files: files, tensors, weights, prompts; modeling_llama_ladder is for transformers,
                  which `convert` writes next to weights and nothing here imports
    config        what is run: shape of a model, engine, launches, links, requests
    commands      of `python -m ladder_sim_runtime`, with an option for each field of config; what they do:
        bench     every wiring measured, with trace for PyTorch's profiler
        complete  what follows a prompt
        layers    of any decoder that transformers knows (model_trace)
    runs          requests of a scenario, run to compare predictions with
    assemble      a rank's decoder on its device, after memory has checked that it fits
    generate      prefill and decode steps of one batch
    execution     what of it is recorded, compiled and fused, as asked for and as possible
    device        the calls of CUDA that this needs, and what stands for them on CPUs
    environment   machine and versions, for results

It reads and writes files: a config.json or a checkpoint, a table of all-reduce latencies, prompts; results as JSON,
traces.
"""
