"""Forms of files that are recognised by their content, or by the names that a program gives to its files.

``forms.FORMS`` is the registry: those that are read stand in the modules that read them, all others here, with
the next step for those that may hold networks.
"""

import importlib.util
import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckptzoo.hub.untrusted.limits import Limits

HEAD_BYTES = 512
"""First bytes of a file that tell its form: a block of a tar archive."""
LEGACY_MAGIC = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
"""First bytes of a file of torch.save that is not a zip archive (before torch 1.6): ``MAGIC_NUMBER`` of
``torch.serialization``, pickled."""
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_EXTRA = "pip install 'ckptzoo[import]' reads it."


@dataclass(frozen=True)
class FileForm:
    """A form of files, by one word; ``words`` describe a file of it in messages.

    ``recognised_by`` says for people which bytes or names tell it. ``recognises`` tells it by the first ``HEAD_BYTES``
    bytes and the path, None where paths alone do; ``paths`` is a regular expression of paths that are this form
    whatever is in them, empty where content decides. ``read`` makes an object from a file's bytes, in the reading
    process: called with the bytes (a view of those of a mapped file), the file's name in messages, the limits, and
    whether objects other than dense tensors and plain containers are refused; None where the form is not read.
    ``package`` has to be installed for it.
    ``becomes`` and ``facts`` say for people what it is imported as, and what is known about it then; ``step`` is the
    next step where it is not read. With ``is_container`` it holds files, which are looked at in its place.
    """

    name: str
    words: str
    recognised_by: str
    recognises: Callable[[bytes, str], bool] | None = None
    paths: str = ""
    read: Callable[[Any, str, Limits, bool], Any] | None = None
    package: str = ""
    becomes: str = ""
    facts: str = ""
    step: str = ""
    is_container: bool = False

    @cached_property
    def is_read(self) -> bool:
        """Whether files of it are read on this machine."""
        return self.read is not None and (not self.package or importlib.util.find_spec(self.package) is not None)

    @property
    def reason(self) -> str:
        """A description; for forms that may hold networks also the next step."""
        has_step = self.next_step and not self.is_text
        return f"{self.words}, which is not read. {self.next_step}" if has_step else self.words

    @property
    def next_step(self) -> str:
        """The next step where it is not read."""
        return _EXTRA if self.read is not None else self.step

    @property
    def is_text(self) -> bool:
        """Whether it is for people, or of any kind."""
        return self.name in ("json", "table", "text", "web-page", "picture", "program", "empty", "unknown")


def begins(*magic: bytes) -> Callable[[bytes, str], bool]:
    """Return a test of the first bytes."""
    return lambda head, path: head.startswith(magic)


def first_member(head: bytes) -> str | None:
    """Return the name of a zip archive's first member; None where the bytes are of something else."""
    if not head.startswith(_ZIP):
        return None
    # a local file header has the length of the name at byte 26, the name from byte 30 (PKWARE APPNOTE, section 4.3.7)
    return head[30 : 30 + int.from_bytes(head[26:28], "little")].decode("utf-8", "replace")


def _is_torchscript(head: bytes, path: str) -> bool:
    """Tells a program of ``torch.jit.save``: numbers before ``data.pkl``, or code."""
    return re.fullmatch(r"[^/]+/(data/\d+|code/.+|constants\.pkl|extra/.+)", first_member(head) or "") is not None


def _is_export(head: bytes, path: str) -> bool:
    member = first_member(head)
    names = r"(data/weights/(weight_\d+|model_weights_config\.json)|archive_(format|version))"
    of_export = re.fullmatch(rf"([^/]+/)?{names}|serialized_exported_program\.json", member or "")
    return member is not None and (of_export is not None or path.lower().endswith(".pt2"))


def _is_onnx(head: bytes, path: str) -> bool:
    """Tells a ModelProto: its version in field 1, then a text in field 2 or the graph in field 7."""
    # tags of protobuf, a field's number times 8 and its wire type: 2 producer_name, 7 graph, 8 opset_import
    return head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x3a", b"\x42") and path.lower().endswith(".onnx")


def _is_sentencepiece(head: bytes, path: str) -> bool:
    """Tells a ModelProto of SentencePiece: its first piece in field 1, and that piece's text in field 1 of it."""
    is_called_so = re.search(r"\.(model(\.v\d+)?|spm)$", path.lower()) is not None
    return is_called_so and head[:1] == b"\x0a" and head[2:3] == b"\x0a"


def is_tar(head: bytes, path: str = "") -> bool:
    """Tells a tar archive by its first block, whose checksum is right; archives before POSIX have no other mark."""
    # the magic of a POSIX header is at byte 257
    if head[257:262] == b"ustar":
        return True
    if len(head) < tarfile.BLOCKSIZE or not head[:1].strip(b"\0") or not path.lower().endswith(".tar"):
        return False
    try:
        tarfile.TarInfo.frombuf(head[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def is_zlib(head: bytes, path: str) -> bool:
    """Tells a stream of zlib: deflate with a window of 32 KiB, and a check of the two bytes."""
    # RFC 1950: the two bytes are a multiple of 31, and bit 5 of the second asks for a preset dictionary
    is_marked = head[:1] == b"\x78" and len(head) > 2 and int.from_bytes(head[:2]) % 31 == 0 and not head[1] & 0x20
    return is_marked and not _is_text(head, path)


def _is_text(head: bytes, path: str) -> bool:
    if b"\0" in head:
        return False
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        # the last character may be cut off
        if error.start < len(head) - 3 or len(head) < HEAD_BYTES:
            return False
        text = head[: error.start].decode()
    return all(character.isprintable() or character in "\t\r\n\f\x1b" for character in text)


def _is_json(head: bytes, path: str) -> bool:
    if not _is_text(head, path) or head.lstrip()[:1] not in (b"{", b"["):
        return False
    if path.lower().endswith((".json", ".jsonl", ".ipynb")):
        return True
    try:
        json.loads(head)
    except (ValueError, RecursionError):
        return False
    return True


def _savez(arrays: str) -> str:
    return f"Convert it where its program is installed: numpy.savez('net.npz', **{arrays})."


CONTAINERS = (
    FileForm("tar", "a tar archive", "its first header", is_tar, is_container=True),
    FileForm("zip", "a zip archive", "`PK`, and first a file that is none of torch.save, numpy or torch.export",
        begins(*_ZIP), is_container=True),
    FileForm("gzip", "gzip-compressed bytes", "`1f 8b`", begins(b"\x1f\x8b"), is_container=True),
    FileForm("bzip2", "bzip2-compressed bytes", "`BZh`", begins(*(b"BZh%d" % level for level in range(1, 10))),
        is_container=True),
    FileForm("xz", "xz-compressed bytes", "`fd` `7zXZ`", begins(b"\xfd7zXZ\0"), is_container=True),
    # lc 3, lp 0 and pb 2 in one byte, then the size of the dictionary, little-endian: a multiple of 64 KiB
    FileForm("lzma", "lzma-compressed bytes", "`5d 00 00`", begins(b"\x5d\x00\x00"), is_container=True),
    FileForm("zlib", "zlib-compressed bytes", "`78`, and a check of the second byte", is_zlib, is_container=True),
)  # fmt: skip
"""Forms that hold files: what is in them is looked at in their place."""

NOT_READ_BY_PATH = (
    FileForm("dcp", "a part of a folder of torch.distributed.checkpoint", "`.distcp`, `.metadata`",
        paths=r"\.distcp$|(?:^|/)\.metadata$",
        step="Convert the folder: python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER net.pt."),
    FileForm("deepspeed", "a part of a network that DeepSpeed cut by ZeRO",
        "`zero_pp_rank_N_mp_rank_N_model_states.pt`",
        paths=r"(?:^|/)zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt$",
        step="Put it together with the script beside it: python zero_to_fp32.py . OUT."),
    FileForm("llama-parts", "a part of a network that was cut for several devices, as of Llama",
        "`consolidated.01.pth`",
        paths=r"(?:^|/)consolidated\.(?!0+\.)\d+\.pth$",
        step="Put the parts together: python -m transformers.models.llama.convert_llama_weights_to_hf "
             "--input_dir FOLDER --model_size 13B --output_dir OUT."),
    FileForm("deepspeed-parts", "a part of a network that DeepSpeed cut for several devices",
        "`mp_rank_01_model_states.pt`, `layer_00-model_00-model_states.pt`",
        paths=r"(?:^|/)(?:mp_rank_(?!0+_)\d+_model_states|layer_\d+-model_\d+-model_states)\.pt$",
        step="Put the parts together with Megatron-DeepSpeed: python tools/convert_checkpoint/deepspeed_to_megatron.py"
             " --input_folder FOLDER --output_folder OUT --target_tp 1 --target_pp 1."),
    FileForm("megatron-parts", "a part of a network that Megatron or NeMo cut for several devices",
        "`mp_rank_01/model_optim_rng.pt`, `..._tp_rank_01...`",
        paths=r"(?:^|/)mp_rank_(?!0+[_/])\d+(?:_\d+)*/[^/]+\.(?:pt|ckpt)$",
        step="Put the parts together with Megatron-LM: python tools/checkpoint/convert.py --model-type GPT "
             "--load-dir FOLDER --save-dir OUT --target-tensor-parallel-size 1 --target-pipeline-parallel-size 1."),
    FileForm("device-parts", "a part of a network that was cut for several devices",
        "`...-model_part-0.pt`, `model-rank-0-part-0.safetensors`, where there are several",
        # matches no path: the files beside it show whether a part is one of several (imports.one_network)
        paths=r"(?!)",
        step="Put the parts together with the program that wrote them, and import that."),
    FileForm("openvino", "weights of OpenVINO", "`openvino_model.bin`", paths=r"(?:^|/)openvino_[^/]*\.bin$"),
    FileForm("deepspeed-optimiser", "the state of an optimiser of DeepSpeed", "`..._optim_states.pt`",
        paths=r"(?:^|/)(?:bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_optim_states\.pt$"),
    FileForm("orbax", "a part of a checkpoint of Orbax", "`_CHECKPOINT_METADATA`, `manifest.ocdbt` and their folders",
        paths=r"(?:^|/)(?:_CHECKPOINT_METADATA|_METADATA|_sharding|_strings\.json|manifest\.ocdbt|array_metadatas/[^/]+)$"
              r"|(?:^|/)(?:ocdbt\.process_\d+/.+|d/[0-9a-f]{8,32})$",
        step="Convert it where Orbax is installed: Path('net.msgpack').write_bytes(flax.serialization.to_bytes("
             "orbax.checkpoint.StandardCheckpointer().restore(FOLDER)))."),
    FileForm("tensorflow", "a part of a TensorFlow checkpoint", "`checkpoint`, `.index`, `.meta`, `.data-N-of-N`",
        paths=r"\.data-\d{5}-of-\d{5}$|(?:\.ckpt|-\d+)\.(?:index|meta)$"
              r"|(?:^|/)variables/variables\.index$",
        step=_savez("{name: tf.train.load_variable(PREFIX, name) for name, _ in tf.train.list_variables(PREFIX)}")),
    FileForm("saved-model", "a program of TensorFlow (SavedModel)", "`saved_model.pb`, `keras_metadata.pb`",
        paths=r"(?:^|/)(?:saved_model|keras_metadata|fingerprint|frozen_inference_graph)\.pb(?:txt)?$",
        step=_savez("{item.name: item.numpy() for item in tf.saved_model.load(FOLDER).variables}")),
    FileForm("zarr", "a part of a zarr array", "`.zarray`, `.zgroup`, `zarr.json`",
        paths=r"(?:^|/)(?:\.zarray|\.zgroup|\.zattrs|\.zmetadata|zarr\.json)$|\.zarr/.+",
        step=_savez("{name: array[...] for name, array in zarr.open(FOLDER).arrays()}")),
    FileForm("blob", "a file of a hub's cache, which its snapshots name", "`models--ORG--NAME/blobs/`",
        paths=r"(?:^|/)(?:models|datasets|spaces)--[^/]+/(?:blobs|refs|\.no_exist)/.+"),
)  # fmt: skip
"""Forms that are not read, and are recognised by the names of their files."""

NOT_READ = (
    FileForm("git-lfs", "a pointer to a file that git-lfs has not fetched", "its first line",
        # Git LFS was called Hawser before its first release
        begins(b"version https://git-lfs", b"version https://hawser"),
        step="Fetch it: git lfs install, and git lfs pull in its repository."),
    FileForm("torchscript", "a program of torch.jit.save (TorchScript)", "its members", _is_torchscript,
        step="Save its numbers: torch.save(torch.jit.load(FILE).state_dict(), 'net.pt')."),
    FileForm("torch-export", "a program of torch.export (.pt2)", "its members", _is_export,
        step="Save its numbers: torch.save(torch.export.load(FILE).state_dict, 'net.pt')."),
    # the forms before GGUF begin with a number, little-endian: ggml and ggjt come reversed
    FileForm("ggml", "a file of quantised weights (ggml)", "`ggml`, `ggjt`", begins(b"ggml", b"lmgg", b"tjgg"),
        step="Import the safetensors files from which it was made."),
    FileForm("onnx", "an ONNX model", "`.onnx` and its first fields", _is_onnx,
        step=_savez("{item.name: onnx.numpy_helper.to_array(item) for item in onnx.load(FILE).graph.initializer}")),
    FileForm("tokenizer", "a tokenizer of SentencePiece", "`.model`, `.spm`, and its first piece", _is_sentencepiece),
    FileForm("tflite", "a TensorFlow Lite model", "`TFL3`", lambda head, path: head[4:8] == b"TFL3",
        step="Import the network from which it was made."),
    FileForm("matlab-7.3", "a MATLAB file of version 7.3", "`MATLAB 7.3`", begins(b"MATLAB 7.3"),
        step="Convert it where h5py is installed: numpy.savez('net.npz', **{name: item[()].T for name, item in "
             "h5py.File(FILE).items() if hasattr(item, 'shape')})."),
    FileForm("matlab", "a MATLAB file", "`MATLAB`", begins(b"MATLAB "),
        step=_savez("{name: array for name, array in scipy.io.loadmat(FILE).items() if name[0] != '_'}")),
    # classic, with offsets of 64 bits, and with data of 64 bits
    FileForm("netcdf", "a netCDF file of version 3", "`CDF`", begins(b"CDF\x01", b"CDF\x02", b"CDF\x05"),
        step=_savez("{name: item.values for name, item in xarray.open_dataset(FILE).data_vars.items()}")),
    FileForm("parquet", "a Parquet table", "`PAR1`", begins(b"PAR1"),
        step="Save numbers as arrays: numpy.save('w.npy', pandas.read_parquet(FILE).to_numpy()), and say with --layout "
             "which of them are which tensor."),
    FileForm("arrow", "an Arrow table", "`ARROW1`", begins(b"ARROW1"),
        step="Save numbers as arrays: numpy.save('w.npy', pandas.read_feather(FILE).to_numpy()), and say with --layout "
             "which of them are which tensor."),
    FileForm("sqlite", "an SQLite database", "`SQLite format 3`", begins(b"SQLite format 3\0")),
    FileForm("lz4", "lz4-compressed bytes", "`04 22 4d 18`", begins(b"\x04\x22\x4d\x18"),
        step="Unpack it: lz4 -d FILE; of joblib: joblib.dump(joblib.load(FILE), 'net.joblib')."),
    FileForm("zstd", "zstd-compressed bytes", "`28 b5 2f fd`", begins(b"\x28\xb5\x2f\xfd"),
        step="Unpack it: zstd -d FILE."),
    FileForm("7z", "a 7-Zip archive", "`7z`", begins(b"7z\xbc\xaf\x27\x1c"), step="Unpack it: 7z x FILE."),
    FileForm("rar", "a RAR archive", "`Rar!`", begins(b"Rar!"), step="Unpack it: unrar x FILE."),
    FileForm("program", "a program", "`ELF`, `#!`, `MZ`", begins(b"\x7fELF", b"#!", b"MZ\x90")),
    FileForm("picture", "a picture or a document", "its first bytes",
        # the last one: a first box of 32 bytes of ISO's media files, such as MP4 and HEIC
        begins(b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"%PDF", b"II*\0", b"MM\0*", b"RIFF", b"\0\0\0 ftyp")),
    FileForm("web-page", "a web page or XML", "`<`",
        lambda head, path: head.lstrip()[:1] == b"<" and _is_text(head, path),
        step="Fetch the file itself: where it should be there is a page, as of a login or an error."),
    FileForm("empty", "an empty file", "no bytes", lambda head, path: not head),
    FileForm("table", "a table of texts (CSV)", "`.csv`, `.tsv`",
        lambda head, path: path.lower().endswith((".csv", ".tsv")) and _is_text(head, path),
        step="Save numbers as arrays: numpy.save('w.npy', numpy.loadtxt(FILE, delimiter=',')), and say with --layout "
             "which of them are which tensor."),
    FileForm("json", "JSON", "`{` or `[`", _is_json,
        step="Save lists of numbers as arrays: numpy.savez('net.npz', **{name: numpy.array(value) for name, value in "
             "json.load(open(FILE)).items()})."),
    FileForm("tf-list", "a list of TensorFlow checkpoints", "`model_checkpoint_path:`",
        begins(b"model_checkpoint_path:")),
    FileForm("text", "a text", "printable characters", _is_text),
)  # fmt: skip
"""Forms that are not read, and are recognised by their content."""

UNKNOWN = FileForm("unknown", "unknown bytes", "anything else")
