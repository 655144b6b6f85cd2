"""Bytes to arrays and back: headers, shards, parts, the writer, the reader's index, verification."""
