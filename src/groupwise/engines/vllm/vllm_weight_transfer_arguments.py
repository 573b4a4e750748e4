"""The arguments of vLLM's weight transfer, as plain values: this file runs without vLLM. *Not run* on a GPU.

They have the names of vLLM 0.32: `IPCWeightTransferInitInfo`, `NCCLWeightTransferUpdateInfo` and so on in
`vllm.distributed.weight_transfer`. `make test-vllm` compares them.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from groupwise.engines.remote.gpu_weights import NCCL, PackedTensorLayout, imported


def transfer_arguments(
    transfer: str, handle: Mapping[str, Any], tensors: PackedTensorLayout, gpu: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `init_weight_transfer_engine` and of `update_weights`. `gpu` is the UUID of the engine's GPU.

    With `ipc` all tensors are in one block, which vLLM maps and copies. With `nccl` the learner is rank 0 of two, and
    broadcasts each tensor.

    >>> tensors = PackedTensorLayout(["w"], ["bfloat16"], [[2, 3]])
    >>> transfer_arguments("nccl", {"unique_id": "00ff"}, tensors, "GPU-1")[0]
    {'rank_offset': 1, 'world_size': 2, 'nccl_unique_id_b64': 'AP8=', 'packed': False}
    """
    update = tensors.as_json()
    if transfer == NCCL:
        unique_id = b64encode(bytes.fromhex(handle["unique_id"])).decode()
        return {"rank_offset": 1, "world_size": 2, "nccl_unique_id_b64": unique_id, "packed": False}, update
    block = {gpu: imported(handle, tensors.bytes)}
    return {"packed": True}, update | {"tensor_sizes": tensors.sizes, "ipc_handles": block}
