"""What is minimised, in nats per token.

Shapes: B batch, T tokens, V vocabulary.
"""

from torch import Tensor, nn


def next_token(logits_BTV: Tensor, next_BT: Tensor) -> Tensor:
    """Mean of -log p of the text's next tokens."""
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), next_BT.flatten())


def divergence(logits_BTV: Tensor, teacher_BTV: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of the student's distribution from the teacher's."""
    return nn.functional.kl_div(
        logits_BTV.flatten(0, 1).float().log_softmax(-1),
        teacher_BTV.flatten(0, 1).float().log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
