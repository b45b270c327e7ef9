"""Hugging Face checkpoints: reading, converting and writing weights, and their tokenizers."""
