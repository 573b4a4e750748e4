"""An engine over vLLM, and the program of its process. The only file that imports vLLM, which runs this file.

vLLM computes logits; this file samples from them, with the native engine's code and random numbers. Tokens then equal
equal to the native engine's, up to rounding.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from groupwise.core import EngineLost, Usage
from groupwise.data import ContextKey, Generation, GenerationRequest, Ids, Picture
from groupwise.data.pictures import MOST_PICTURES
from groupwise.engines.native.running_batch import completes_stop
from groupwise.engines.remote.engine_identity import EngineIdentity
from groupwise.engines.remote.gpu_weights import PackedTensorLayout, gpu_uuid
from groupwise.engines.remote.incoming_weights import IncomingWeightsStore
from groupwise.engines.remote.replica import ReplicaSettings, end_with_parent, serve
from groupwise.engines.remote.server import EngineServer
from groupwise.engines.remote.tls_replica import announce, serve_hosts
from groupwise.engines.remote.weights_file import (
    HERE,
    WeightsFilesDirectory,
    check_weights,
    most_file_bytes,
    write_weights,
)
from groupwise.engines.vllm.vllm_pictures import ARCHITECTURES, IMAGE, PicturePlacer, PlacedPicture
from groupwise.engines.vllm.vllm_requests import BLOCK, RequestRandomKey, cache_bytes, generation, sampling_arguments
from groupwise.engines.vllm.vllm_weight_transfer_arguments import transfer_arguments
from groupwise.models import Tokenizer, VisionSizes, choose, outline, read_shape, read_tokenizer, truncated, uniform
from groupwise.models.decoder.decoder import DecoderShape, ModelSizes, rotary
from groupwise.models.model_json_files import read_json
from groupwise.models.vision.vision_families import read_processor

MAX_NUM_BATCHED_TOKENS = 8192
"""The most tokens in one forward of vLLM, prompts and new tokens together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(ReplicaSettings):
    """What the process needs to build its engine. The engine of a named `model` starts with the directory's weights.

    With a `socket`, it listens there. With `listen`, HOST:PORT, it listens there for trainers on other hosts, with the
    key and the secret in these files (see `serve_hosts`), and keeps their weights in the directory
    `exchange_directory`, which the open file `lock` holds, or in a new one; with `nccl` they may send weights by NCCL.
    vLLM computes in another process, which is lost if it does not answer within `deadline` seconds. With `can_sleep`,
    it can free its memory. On a GPU, it takes `gpu_memory_utilization` of the memory, and runs CUDA graphs unless
    `enforce_eager`; with `batch_invariant`, vLLM's kernels do not depend on the other requests. `tensor_parallel_size`
    workers share each layer.
    """

    keyed_randomness: bool
    deadline: float
    can_sleep: bool
    gpu_memory_utilization: float
    enforce_eager: bool
    batch_invariant: bool
    tensor_parallel_size: int
    model: str = ""
    socket: str = ""
    listen: str = ""
    tls_key_file: str = ""
    secret_file: str = ""
    nccl: bool = False
    exchange_directory: str = ""
    lock_descriptor: int = -1

    @property
    def loads_from_gpu(self) -> bool:
        """Whether the engine loads weights from the learner's GPU: it is on one GPU, and other hosts may use NCCL."""
        return self.device.startswith("cuda") and self.tensor_parallel_size == 1 and (self.nccl or not self.listen)


class VllmEngine:
    """An `Engine` over vLLM's `AsyncLLM`. It has no weights (version -1) until the first load.

    A load does not end running requests: they continue with the new weights, and their `versions` tell which token is
    of which. `prefill` does nothing, since vLLM shares the blocks of equal prompts by itself.
    """

    gpu_uuid = ""
    """The UUID of the engine's GPU; empty if it takes a file: on a CPU, on several GPUs, for hosts without NCCL."""

    def __init__(self, llm: Any, shape: ModelSizes, tokenizer: Tokenizer, settings: VllmSettings) -> None:
        from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.exceptions import EngineDeadError  # pyright: ignore[reportMissingImports]

        self.version, self.steps = -1, 0
        """The version of the weights, and the number of forward passes that vLLM's process has made."""
        self._llm, self._shape, self._tokenizer, self._settings = llm, shape, tokenizer, settings
        self._parameters, self._kinds, self._dead = SamplingParams, RequestOutputKind, EngineDeadError
        self._ends = sorted(t for t in tokenizer.eos_ids if t < shape.vocabulary_size)
        self._placer = None
        if isinstance(shape, VisionSizes):
            self._placer = PicturePlacer(read_processor(Path(settings.model_directory)), shape.placeholder)
        self._request_ids = itertools.count()
        self._loading = asyncio.Lock()
        self._asleep = False

    @classmethod
    async def start(cls, settings: VllmSettings, shape: ModelSizes, tokenizer: Tokenizer) -> "VllmEngine":
        """Start vLLM. This blocks for about a minute, most of it imports."""
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

        on_gpu = settings.device.startswith("cuda")
        size = torch.finfo(getattr(torch, settings.dtype)).bits // 8
        memory: dict[str, Any] = {"gpu_memory_utilization": settings.gpu_memory_utilization}
        if not on_gpu:
            cache = cache_bytes(shape, size, settings.max_num_seqs, settings.kv_cache_tokens)
            memory = {"kv_cache_memory_bytes": cache}
        pictures: dict[str, Any] = {"skip_tokenizer_init": True}
        if isinstance(shape, VisionSizes):  # vLLM makes dummy pictures, for which it reads tokenizer and processor
            limits = {IMAGE: MOST_PICTURES, "video": 0}
            pictures = {
                "limit_mm_per_prompt": limits, "mm_processor_cache_gb": 0, "skip_mm_profiling": not on_gpu,
                "mm_device_do_normalize": False,  # pixels come normalised, and Qwen2.5-VL would do it again
            }  # fmt: skip
            kind = read_json(Path(settings.model_directory) / "config.json").get("model_type")
            if kind in ARCHITECTURES:
                pictures["hf_overrides"] = {"architectures": [ARCHITECTURES[str(kind)]]}
        arguments = AsyncEngineArgs(
            model=settings.model_directory, dtype=settings.dtype,
            enforce_eager=settings.enforce_eager or not on_gpu,
            load_format="auto" if settings.model else "dummy", tensor_parallel_size=settings.tensor_parallel_size,
            distributed_executor_backend="uni" if settings.tensor_parallel_size == 1 else "mp",
            # To score a text, vLLM also samples a token after it, which is never forwarded.
            max_model_len=shape.max_positions + 1, max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=max(MAX_NUM_BATCHED_TOKENS, settings.max_num_seqs),
            max_logprobs=-1, logprobs_mode="processed_logprobs",
            block_size=BLOCK,
            **memory, **pictures,
            worker_extension_cls=f"{__spec__.name}.WorkerExtension", disable_log_stats=True, seed=settings.seed % 2**32,
            enable_sleep_mode=settings.can_sleep,
        )  # fmt: skip
        engine = cls(AsyncLLM.from_engine_args(arguments), shape, tokenizer, settings)
        if settings.loads_from_gpu:
            (engine.gpu_uuid,) = await engine._llm.collective_rpc("gpu_uuid")
        await engine._llm.collective_rpc("count_steps")
        if isinstance(shape, DecoderShape):  # other models are modules of transformers, whose angles are as vLLM's
            await engine._llm.collective_rpc("use_rotary_table", args=(settings.model_directory,))
        if settings.keyed_randomness:
            await engine._llm.collective_rpc("use_keys", args=(settings.seed,))
        engine.version = 0
        await engine.score((0,), (0,))  # the first forward pass compiles for seconds: not within a request's deadline
        engine.version = -1
        if settings.model:
            await engine._stamp(0)
        return engine

    async def sample(self, request: GenerationRequest) -> Generation:
        """Generate the next tokens of one sample. `Usage` if prompt and `limit` exceed the model's positions."""
        self._check(request.context, request.limit)
        prompt = self._prompt(request.context, request.context, request.pictures)
        arguments = sampling_arguments(request, self._ends, keyed=self._settings.keyed_randomness)
        stops = bool(request.sampling.stop)
        kind = self._kinds.CUMULATIVE if stops else self._kinds.FINAL_ONLY
        request_id, length, stopped = f"sample {next(self._request_ids)}", 0, False
        output: Any = None
        async for result in self._generate(prompt, request_id, output_kind=kind, **arguments):
            output = result.outputs[0]
            while stops and not stopped and length < len(output.token_ids):
                length += 1
                stopped = completes_stop(self._tokenizer, request, output.token_ids[:length])
                if stopped and output.finish_reason is None:
                    await self._llm.abort(request_id)  # its last output tells the versions
        tokens = tuple(output.token_ids)
        reason = output.finish_reason
        if stopped and (length < len(tokens) or reason != "stop"):
            tokens, reason = tokens[:length], "stop"
        return generation(tokens, output.logprobs[: len(tokens)], output.weight_versions or (), reason, request)

    async def score(
        self, context: Ids, tokens: Ids, *, temperature: float = 1.0, pictures: Sequence[Picture] = ()
    ) -> tuple[float, ...]:
        """The log-prob of each token given all tokens before it, at temperature 1; `Usage` for another one.

        `Usage` for pictures of a model that takes none.
        """
        if not tokens:
            return ()
        self._check(context, len(tokens))
        if temperature != 1:
            raise Usage(
                "vLLM scores texts at temperature 1 only", evidence=f"temperature = {temperature}",
                fix="set sampling.temperature = 1, or use engine.kind = 'Native'",
            )  # fmt: skip
        output: Any = None
        prompt = self._prompt(context, context + tokens, pictures)
        async for result in self._generate(
            prompt, f"score {next(self._request_ids)}", max_tokens=1, prompt_logprobs=0, detokenize=False,
            output_kind=self._kinds.FINAL_ONLY,
        ):  # fmt: skip
            output = result
        positions = output.prompt_logprobs[len(context) :]
        return tuple(logprobs[token].logprob for logprobs, token in zip(positions, tokens, strict=True))

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Replace the weights, by a file."""
        with TemporaryDirectory() as directory:
            file = await asyncio.to_thread(write_weights, Path(directory), version, weights)
            await self.load_file(version, file.path, file.sha256)

    async def load_file(self, version: int, file: Path, sha256: str) -> None:
        """Replace the weights from a weights file, between two tokens of the running requests.

        The cache is cleared: a token after the load is computed from its whole prefix under the new weights. `Storage`
        if the file is damaged. After any other failure, the engine has no weights.
        """
        async with self._loading:
            # Here and not in each worker: vLLM samples meanwhile, and several devices need one hash.
            await asyncio.to_thread(check_weights, file, sha256)
            await self._replace(version, "replace_weights", str(file))

    async def load_from_gpu(
        self, version: int, transfer: str, handle: dict[str, Any], tensors: PackedTensorLayout
    ) -> None:
        """Replace the weights by those on the learner's GPU, as `load_file`. After a failure, it has no weights."""
        async with self._loading:
            await self._replace(version, "receive_weights", transfer, handle, tensors.as_json())

    async def _replace(self, version: int, method: str, *arguments: Any) -> None:
        """Let the worker's `method` replace the weights, between two tokens."""
        if self._asleep:
            await self._llm.wake_up(tags=["weights"])
        else:
            await self._llm.pause_generation(mode="keep", clear_cache=True)
        self.version = -1
        await self._llm.collective_rpc(method, args=arguments)
        if self._asleep:
            await self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        await self._stamp(version)
        await self._llm.resume_generation()

    async def sleep(self) -> None:
        """Free the weights and the cache until the next load. Running requests are cut."""
        async with self._loading:
            self.version = -1
            await self._llm.sleep(level=2, mode="abort")
            self._asleep = True

    def prefill(self, contexts: Sequence[ContextKey]) -> None:
        """Nothing: vLLM caches the blocks of a prompt with its first request, and later ones share them."""

    async def watch(self) -> None:
        """Read the count of steps. `EngineLost` if vLLM's process has ended, or is silent for `deadline` seconds."""
        while True:
            await asyncio.sleep(min(1.0, self._settings.deadline / 8))
            try:
                async with asyncio.timeout(self._settings.deadline):
                    self.steps = min(await self._llm.collective_rpc("steps"))  # of each worker
            except (TimeoutError, self._dead) as error:
                raise self._lost(error) from error

    def _prompt(self, context: Ids, tokens: Ids, pictures: Sequence[Picture]) -> dict[str, Any]:
        """vLLM's prompt of these tokens, which begin with the context; pictures are at the context's placeholders.

        vLLM caches blocks and features under the hash of each picture.
        """
        if not pictures:
            return {"prompt_token_ids": list(tokens)}
        if self._placer is None:
            fix = "take a vision-language model, or prompts without pictures"
            raise Usage("the prompt has pictures, and the model of this engine takes none", fix=fix)
        return prompt_with_pictures(tokens, self._placer.place(context, pictures))

    async def _generate(self, prompt: dict[str, Any], request_id: str, **arguments: Any) -> AsyncIterator[Any]:
        try:
            async for result in self._llm.generate(prompt, self._parameters(**arguments), request_id):
                yield result
        except self._dead as error:
            raise self._lost(error) from error

    async def _stamp(self, version: int) -> None:
        await self._llm.update_weight_version(str(version))
        self.version = version

    def _lost(self, error: Exception) -> EngineLost:
        evidence = f"{type(error).__name__}: {error}"
        return EngineLost("vLLM's process ended, or does not answer", evidence=evidence, fix="start it again")

    def _check(self, context: Ids, new: int) -> None:
        if self.version < 0:
            raise EngineLost("the engine has no complete weights", evidence="its last load failed", fix="load again")
        if not context:
            raise ValueError("the prompt is empty: give at least one token, after which the answer begins")
        if max(context) >= self._shape.vocabulary_size:
            evidence = f"token {max(context)}, vocabulary of {self._shape.vocabulary_size}"
            raise Usage("a prompt contains a token that the model does not have", evidence=evidence,
                        fix="use the tokenizer that belongs to the model")  # fmt: skip
        if len(context) + new > self._shape.max_positions:
            raise Usage(
                f"a prompt of {len(context)} tokens and an answer of up to {new} do not fit",
                evidence=f"the model has {self._shape.max_positions} positions",
                fix=f"lower sampling.max_tokens to at most {max(self._shape.max_positions - len(context), 1)}",
            )


def prompt_with_pictures(tokens: Ids, placed: Sequence[PlacedPicture]) -> dict[str, Any]:
    """vLLM's prompt of tokens that have their placeholders already, with the tensors of its pictures."""
    from vllm.inputs.engine import mm_input  # pyright: ignore[reportMissingImports]
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange  # pyright: ignore[reportMissingImports]

    rows = torch.tensor([len(picture.pixel_rows["pixel_values"]) for picture in placed])
    tensors, fields = dict[str, Tensor](), dict[str, Any]()
    for name in placed[0].pixel_rows:
        tensors[name] = torch.cat([picture.pixel_rows[name] for picture in placed])
        fields[name] = MultiModalFieldConfig.flat_from_sizes(IMAGE, rows)
    for name in placed[0].other:
        tensors[name] = torch.stack([picture.other[name] for picture in placed])
        fields[name] = MultiModalFieldConfig.batched(IMAGE, keep_on_cpu=True)
    ranges = [
        PlaceholderRange(picture.offset, len(picture.is_feature),
                         is_embed=None if all(picture.is_feature) else torch.tensor(picture.is_feature))
        for picture in placed
    ]  # fmt: skip
    hashes = [picture.sha256 for picture in placed]
    items = MultiModalKwargsItems.from_hf_inputs(tensors, fields)
    return dict(mm_input(list(tokens), items, {IMAGE: hashes}, {IMAGE: ranges}))


class WorkerExtension:
    """Methods of vLLM's worker, which vLLM calls by name in the process that has the model."""

    model_runner: Any
    vllm_config: Any
    device: torch.device
    weight_transfer_engine: Any
    reload_weights: Callable[..., None]
    init_weight_transfer_engine: Callable[[dict[str, Any]], None]
    start_weight_update: Callable[[], None]
    update_weights: Callable[[dict[str, Any]], None]
    finish_weight_update: Callable[[], None]
    shutdown_weight_transfer_engine: Callable[[], None]
    _steps: int

    def count_steps(self) -> None:
        """Count the forward passes from now on."""
        self._steps, execute = 0, self.model_runner.execute_model

        def counted(*arguments: Any, **settings: Any) -> Any:
            self._steps += 1
            return execute(*arguments, **settings)

        self.model_runner.execute_model = counted

    def steps(self) -> int:
        """The number of forward passes."""
        return self._steps

    def gpu_uuid(self) -> str:
        """The UUID of the worker's GPU."""
        return gpu_uuid(self.device)

    def receive_weights(self, transfer: str, handle: dict[str, Any], tensors: dict[str, Any]) -> None:
        """Load weights from the learner's GPU, by a new transfer engine of vLLM, which is closed afterwards."""
        from vllm.config.weight_transfer import WeightTransferConfig  # pyright: ignore[reportMissingImports]
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory  # pyright: ignore[reportMissingImports]

        packed = PackedTensorLayout.from_json(tensors)
        setup, update = transfer_arguments(transfer, handle, packed, gpu_uuid(self.device))
        self.weight_transfer_engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend=transfer), self.vllm_config, self.device, self.model_runner.get_model()
        )
        self.init_weight_transfer_engine(setup)
        self.start_weight_update()
        self.update_weights(update)
        self.finish_weight_update()
        self.shutdown_weight_transfer_engine()
        self._pack_output_layer()

    def replace_weights(self, path: str) -> None:
        """Load the weights in a file. Its tensors are mapped, and vLLM copies the worker's part of each."""
        self.reload_weights(weights_iterator=iter(load_file(path).items()))
        self._pack_output_layer()

    def _pack_output_layer(self) -> None:
        """Pack the output layer of tied embeddings again, on a CPU.

        vLLM copies the embedding's values into packed form when it loads, and a reload does not touch that copy: the
        model would embed with new weights and predict with old ones.
        """
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # pyright: ignore[reportMissingImports]

        model = self.model_runner.model
        owners: tuple[Any, Any] = model, getattr(model, "language_model", None)  # the second one is Qwen-VL's
        for owner in owners:
            if hasattr(owner, "lm_head") and not torch.cuda.is_available():
                dispatch_cpu_unquantized_gemm(owner.lm_head, remove_weight=False)

    def use_rotary_table(self, model_directory: str) -> None:
        """Rotate queries and keys by the learner's angles, which are in float64. vLLM multiplies them in float32.

        The error of its product grows with the position: at 32,768 it is a thousandth of a radian.
        """
        shape = read_shape(model_directory)
        assert isinstance(shape, DecoderShape), "`start` asks for the table of our decoder only"
        for layer in self.model_runner.model.modules():
            if hasattr(layer, "cos_sin_cache"):
                layer.cos_sin_cache.copy_(rotary_table(shape, len(layer.cos_sin_cache)))

    def use_keys(self, seed: int) -> None:
        """Let `keyed_sample` choose the tokens, instead of vLLM's sampler."""
        runner = self.model_runner

        def sample(logits: Tensor, metadata: Any, logprobs_mode_override: Any = None) -> tuple[Tensor, Tensor]:
            batch = runner.input_batch
            keys: list[RequestRandomKey | None] = []
            lengths: list[int] = []
            for request_id, output in zip(batch.req_ids[: len(logits)], batch.req_output_token_ids, strict=False):
                arguments = runner.requests[request_id].sampling_params.extra_args
                keys.append(RequestRandomKey(*arguments["key"]) if arguments else None)
                lengths.append(len(output or ()))
            return keyed_sample(seed, logits, keys, lengths)

        runner.sampler.sample = sample


def rotary_table(shape: DecoderShape, positions: int) -> Tensor:
    """The cosines and the sines of each position's angles, side by side: vLLM's `cos_sin_cache`, in float64.

    >>> rotary_table(DecoderShape(vocabulary_size=8, hidden_size=4, layers=1, heads=1, kv_heads=1, head_dim=4,
    ...                           mlp_width=4, max_positions=2), 2).shape
    torch.Size([2, 4])
    """
    cosines, signed_sines = rotary(torch.arange(positions), shape, torch.float64)
    half = shape.head_dim // 2
    return torch.cat([cosines[:, 0, :half], signed_sines[:, 0, half:]], -1)


def keyed_sample(
    seed: int, logits: Tensor, keys: Sequence[RequestRandomKey | None], lengths: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The next token of each row, and the log-probs that it was drawn from. `lengths`: tokens generated so far.

    A row without a key (of a score) gets token 0 and meaningless log-probs.
    """
    tokens, logp = torch.zeros(len(logits), dtype=torch.long, device=logits.device), torch.zeros_like(logits)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, key in enumerate(keys):
        if key is not None:
            groups.setdefault((key.random_purpose, key.sampling), []).append(i)
    for (purpose, sampling), rows in groups.items():
        u = np.zeros(len(rows))
        if sampling.temperature > 0:
            members = [(keys[i], lengths[i]) for i in rows]
            counters = [(key.draw_id, key.stream, key.position + length) for key, length in members if key is not None]
            u = uniform((seed, purpose), *zip(*counters))
        logp[rows] = distribution = truncated(logits[rows], sampling)
        tokens[rows] = choose(distribution, torch.from_numpy(u).to(logits.device))
    return tokens, logp


def main(settings: dict[str, Any], parent: int) -> None:
    """Start vLLM, and serve the socket that is the standard input, or a new one, until it closes or vLLM is lost."""
    end_with_parent(parent)
    sys.argv[2] = str(os.getpid())  # for the process that vLLM starts from this one: it gets these arguments
    spec = VllmSettings(**settings)
    torch.set_num_threads(spec.threads)
    asyncio.run(run(spec))


async def run(spec: VllmSettings) -> None:
    """Serve until the connection closes, or vLLM is lost: this process then ends with the error."""
    shape, tokenizer = read_shape(spec.model_directory), read_tokenizer(spec.model_directory)
    with torch.device("meta"):
        model = outline(spec.model_directory).to(getattr(torch, spec.dtype))
    engine = await VllmEngine.start(spec, shape, tokenizer)
    exchange = exchange_of(spec) if spec.listen else None
    largest = most_file_bytes(model)
    uploads = IncomingWeightsStore(exchange, largest) if exchange else None
    identity = EngineIdentity.of(model, tokenizer, seed=spec.seed)
    server = EngineServer(engine, identity, vocabulary=shape.vocabulary_size, largest=largest, uploads=uploads)
    if spec.listen:
        files = {"key_file": spec.tls_key_file, "secret_file": spec.secret_file}
        serving = serve_hosts(server, spec.listen, model=spec.model, **files)
    elif spec.socket:
        serving = server.listen(Path(spec.socket), lambda: announce(spec.socket, spec.model))
    else:
        serving = serve(server, socket.socket(fileno=os.dup(0)))
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    tasks = [asyncio.create_task(call) for call in (serving, engine.watch(), terminated.wait())]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    code = 0
    for task in done:
        if error := task.exception():
            print(error, file=sys.stderr)
            code = getattr(error, "code", 1)
    if spec.socket:
        Path(spec.socket).unlink(missing_ok=True)
    if exchange:
        exchange.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # vLLM's process ends with this one, and its orderly end takes seconds


def exchange_of(spec: VllmSettings) -> WeightsFilesDirectory:
    """The directory for weights from other hosts: inherited from the program before this one, or new."""
    if spec.exchange_directory:
        return WeightsFilesDirectory.handed(Path(spec.exchange_directory), spec.lock_descriptor)
    return WeightsFilesDirectory(Path(tempfile.gettempdir()), HERE)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
if __name__ == "__mp_main__":  # in the process that vLLM starts from this one, and in the workers that that starts
    end_with_parent(int(sys.argv[2]))
    sys.argv[2] = str(os.getpid())
