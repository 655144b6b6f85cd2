"""Checkpoints for other programs: files, and folders as the Hugging Face hub has them."""

from ckptzoo.hub.exports.targets import MAX_SHARD_SIZE, check_target, export

__all__ = ["MAX_SHARD_SIZE", "check_target", "export"]
