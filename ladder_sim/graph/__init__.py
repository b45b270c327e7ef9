"""What one forward pass does: the operations of a step and the order that the residual wiring leaves them."""
