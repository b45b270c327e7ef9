"""Training: models in any wiring from scratch, and pretrained ones adapted to another wiring.

    config        what a run does, checked before any rank starts
    corpus        text to tokens, memory-mapped
    batches       which of them a step learns from, by seed and step
    loss          next tokens, or a teacher's distribution
    loop          optimiser, schedule and steps
    state         what a run needs to go on after it was killed

Data parallelism, pipeline stages and groups of ranks are not trained.
"""
