"""Implements torch.distributed's operations with the collectives of addend's library."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import (
    AllreduceCoalescedOptions,
    AllreduceOptions,
    ReduceOptions,
    ReduceScatterOptions,
)

from addend._errors import InvalidError
from addend.torch._group_calls import ANY_SOURCE, TRANSFER, Calls, Message
from addend.torch._group_dtypes import AVERAGE, SUM, Moved, Reduction, check_reduces, moved, reduction
from addend.torch._group_work import DONE, KEEPS_WORK, CoalescedWork, GroupWork, complete

Tensors = Sequence[torch.Tensor]
Finish = Optional[Callable[[], None]]
_Fill = Callable[[Any], Any]


class Part(NamedTuple):
    """One library call of an operation: `fill` sets its C structure, `finish` runs when the call is complete."""

    fill: _Fill
    finish: Finish = None


class Collectives:
    """The methods that torch.distributed calls on a group. Methods with two names have PyTorch's name since 2026 and
    the one before."""

    _calls: Calls
    _rank: int
    _size: int

    # ---- running ----

    def _do(self, opts: Any, op: str, parts: Sequence[Part], outputs: Tensors) -> Work:
        """Runs a single synchronous call to completion; posts all other calls and returns their Work."""
        calls = self._calls
        if not getattr(opts, "asyncOp", True) and len(parts) == 1:
            fill, finish = parts[0]
            calls.run(op, fill)
            if finish is not None:
                finish()
            return DONE
        finishes = [part.finish for part in parts if part.finish is not None]
        posted = calls.post(op, [part.fill for part in parts], _all_of(finishes))
        if not KEEPS_WORK:
            calls.wait(posted)
            return complete(outputs)
        return GroupWork(calls, posted, outputs)

    # ---- reductions ----

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        tensor = _only(tensors, "all_reduce")
        opts = _options(opts, AllreduceOptions)
        return self._do(opts, "all_reduce", [self._all_reduced(tensor, reduction(opts.reduceOp))], [tensor])

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        opts = _options(opts, AllreduceCoalescedOptions)
        by = reduction(opts.reduceOp)
        return self._do(opts, "all_reduce", [self._all_reduced(tensor, by) for tensor in tensors], tensors)

    def _all_reduced(self, tensor: torch.Tensor, by: Reduction) -> Part:
        source, how = _combined(tensor, by)
        out, out_dtype, finish = self._result(tensor, source, how, by)

        def fill(call: Any) -> Any:
            call.source, call.out = source.data_ptr(), out.data_ptr()
            call.count = tensor.numel() * how.parts
            _as_reduction(call, how, by, out_dtype)
            return source, out

        return Part(fill, finish)

    def _result(self, target: torch.Tensor, dense: torch.Tensor, how: Moved, by: Reduction) -> Any:
        """(buffer for the result, dtype of the result or 0 for the addends', function that finishes it) of a reduction
        into `target`. `dense`: contiguous memory of the target's shape and of the addends' dtype."""
        average = by.number == AVERAGE
        if average and how.wide is not target.dtype:
            dense = torch.empty(target.shape, dtype=how.wide)
            out_dtype = moved(dense.dtype).dtype
        else:
            out_dtype = 0
        if not average and dense is target:
            return dense, out_dtype, None
        return dense, out_dtype, _finisher(target, dense, self._size if average else 1)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> Work:
        """Sums to the root only: a reduce_scatter in which the root gets all elements and the others none."""
        tensor = _only(tensors, "reduce")
        if not isinstance(opts, ReduceOptions):
            opts = _made(ReduceOptions, rootRank=opts or 0, reduceOp=op)
        by, root = reduction(opts.reduceOp), opts.rootRank
        source, how = _combined(tensor, by)
        out, out_dtype, finish = self._result(tensor, source, how, by)
        is_root = root == self._rank
        counts = (ctypes.c_size_t * self._size)()
        counts[root] = tensor.numel() * how.parts

        def fill(call: Any) -> Any:
            call.source, call.out = source.data_ptr(), out.data_ptr() if is_root else None
            call.count, call.counts = 0, counts
            _as_reduction(call, how, by, out_dtype)
            return source, out

        return self._do(opts, "reduce_scatter", [Part(fill, finish if is_root else None)], [tensor])

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        opts = _options(opts, ReduceScatterOptions)
        by = reduction(opts.reduceOp)
        return self._do(opts, "reduce_scatter", [self._scattered(output, input, by)], [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        opts = _options(opts, ReduceScatterOptions)
        by = reduction(opts.reduceOp)
        parts = [self._scattered(output, input, by) for output, input in zip(outputs, inputs)]
        return self._do(opts, "reduce_scatter", parts, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        output, blocks = _only(output_tensors, "reduce_scatter"), _only_list(input_tensors)
        opts = _options(opts, ReduceScatterOptions)
        by = reduction(opts.reduceOp)
        _check_blocks(blocks, self._size, output.dtype)
        if blocks[self._rank].numel() != output.numel():
            raise InvalidError(
                f"reduce_scatter: the output's number of elements is {output.numel()}, that of this rank's input "
                f"tensor {blocks[self._rank].numel()}: make them equal"
            )
        whole = torch.cat([block.detach().reshape(-1) for block in blocks])
        counts = [block.numel() for block in blocks]
        return self._do(opts, "reduce_scatter", [self._scattered(output, whole, by, counts)], [output])

    def _scattered(
        self, output: torch.Tensor, input: torch.Tensor, by: Reduction, counts: Sequence[int] | None = None
    ) -> Part:
        source, how = _combined(input, by)
        _check_pair(input, output, input.numel() if counts else output.numel() * self._size)
        out, out_dtype, finish = self._result(output, _dense_like(output, source.dtype), how, by)
        blocks = (ctypes.c_size_t * self._size)(*[count * how.parts for count in counts]) if counts else None

        def fill(call: Any) -> Any:
            call.source, call.out = source.data_ptr(), out.data_ptr()
            call.count, call.counts = output.numel() * how.parts, blocks
            _as_reduction(call, how, by, out_dtype)
            return source, out

        return Part(fill, finish)

    # ---- broadcast, all-gather and all-to-all of single tensors ----

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        tensor = _only(tensors, "broadcast")
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else 0
        how = _moved(tensor)
        dense = _dense(tensor)

        def fill(call: Any) -> Any:
            call.source = call.out = dense.data_ptr()
            call.count, call.dtype, call.root = tensor.numel() * how.parts, how.dtype, root
            return dense

        return self._do(opts, "broadcast", [Part(fill, _back(tensor, dense))], [tensor])

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self._do(opts, "all_gather", [self._gathered(output, input)], [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        parts = [self._gathered(output, input) for output, input in zip(outputs, inputs)]
        return self._do(opts, "all_gather", parts, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gathered(self, output: torch.Tensor, input: torch.Tensor) -> Part:
        how = _moved(input)
        _check_pair(input, output, input.numel(), input.numel() * self._size)
        source, out = _dense(input), _dense_like(output)

        def fill(call: Any) -> Any:
            call.source, call.out = source.data_ptr(), out.data_ptr()
            call.count, call.dtype = input.numel() * how.parts, how.dtype
            return source, out

        return Part(fill, _back(output, out))

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        how = _moved(input)
        _check_pair(input, output, input.numel())
        source, out = _dense(input), _dense_like(output)
        sent = self._counts(input, input_split_sizes, how)
        received = self._counts(output, output_split_sizes, how)

        def fill(call: Any) -> Any:
            call.source, call.out = source.data_ptr(), out.data_ptr()
            call.counts, call.receive_counts, call.dtype = sent, received, how.dtype
            return source, out

        return self._do(opts, "all_to_all", [Part(fill, _back(output, out))], [output])

    alltoall_base = all_to_all_single

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int], how: Moved) -> Any:
        """The number of elements for each rank, from the number of rows for each rank (empty: equal numbers)."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._size:
                raise InvalidError(
                    f"all_to_all_single: the number of rows, {rows}, is no multiple of the number of ranks, "
                    f"{self._size}; give split sizes"
                )
            splits = [rows // self._size] * self._size
        if len(splits) != self._size or sum(splits) != rows or min(splits) < 0:
            raise InvalidError(
                f"all_to_all_single: the split sizes {list(splits)} must be {self._size} in number and add up to "
                f"the tensor's number of rows, {rows}"
            )
        row = tensor.numel() // rows * how.parts if rows else 0
        return (ctypes.c_size_t * self._size)(*[split * row for split in splits])

    # ---- operations on lists of tensors, as messages between pairs of ranks ----

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        input, into = _only(input_tensors, "all_gather"), _only_list(output_tensors)
        _check_blocks(into, self._size, input.dtype)
        part = self._exchanged(input.dtype, {rank: input for rank in range(self._size)}, dict(enumerate(into)))
        return self._do(opts, "exchange", [part], into)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        parts = []
        for place, input in enumerate(inputs):
            _check_blocks([tensors[place] for tensors in outputs], self._size, input.dtype)
            into = {rank: tensors[place] for rank, tensors in enumerate(outputs)}
            parts.append(self._exchanged(input.dtype, {rank: input for rank in range(self._size)}, into))
        return self._do(opts, "exchange", parts, [tensor for tensors in outputs for tensor in tensors])

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        input, root = _only(input_tensors, "gather"), opts if isinstance(opts, int) else opts.rootRank
        into: Tensors = _only_list(output_tensors) if root == self._rank else []
        if root == self._rank:
            _check_blocks(into, self._size, input.dtype)
        return self._do(opts, "exchange", [self._exchanged(input.dtype, {root: input}, dict(enumerate(into)))], into)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        root = opts.rootRank if opts is not None else 0
        if root == self._rank:
            _check_pair(input, output, input.numel(), input.numel() * self._size)
        dense = _dense_like(output)
        into = dict(enumerate(dense.view(self._size, -1))) if root == self._rank else {}
        exchanged = self._exchanged(input.dtype, {root: input.reshape(-1)}, into)
        back = _back(output, dense) if root == self._rank else None
        return self._do(opts, "exchange", [Part(exchanged.fill, _all_of([f for f in (back,) if f]))], [output])

    gather_into_tensor = gather_single

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        output, root = _only(output_tensors, "scatter"), opts if isinstance(opts, int) else opts.rootRank
        blocks: Tensors = _only_list(input_tensors) if root == self._rank else []
        if root == self._rank:
            _check_blocks(blocks, self._size, output.dtype)
        part = self._exchanged(output.dtype, dict(enumerate(blocks)), {root: output})
        return self._do(opts, "exchange", [part], [output])

    def alltoall(self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: Any = None) -> Work:
        dtype = input_tensors[0].dtype if input_tensors else torch.float32
        _check_blocks(input_tensors, self._size, dtype)
        _check_blocks(output_tensors, self._size, dtype)
        part = self._exchanged(dtype, dict(enumerate(input_tensors)), dict(enumerate(output_tensors)))
        return self._do(opts, "exchange", [part], output_tensors)

    def _exchanged(self, dtype: torch.dtype, sent: Any, received: Any) -> Part:
        """Sends sent[rank] to each of its ranks and receives received[rank] from each of its ranks."""
        how = moved(dtype)
        messages = (Message * (len(sent) + len(received)))()
        kept, backs = [], []
        for place, (rank, tensor) in enumerate(sent.items()):
            dense = _dense(_of_dtype(tensor, dtype))
            messages[place] = Message(rank, _address(dense), None, dense.numel() * how.parts)
            kept.append(dense)
        for place, (rank, tensor) in enumerate(received.items()):
            dense = _dense_like(_of_dtype(tensor, dtype))
            messages[len(sent) + place] = Message(rank, None, _address(dense), dense.numel() * how.parts)
            kept.append(dense)
            backs.append(_back(tensor, dense))

        def fill(call: Any) -> Any:
            call.messages, call.message_count, call.dtype = ctypes.addressof(messages), len(messages), how.dtype
            return kept, messages

        return Part(fill, _all_of([back for back in backs if back is not None]))

    # ---- send and receive ----

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = _only(tensors, "send")
        how, dense = _moved(tensor), _dense(tensor)

        def fill(call: Any) -> Any:
            call.peer, call.tag, call.receives = dst, tag, 0
            call.send, call.receive = dense.data_ptr(), None
            call.count, call.dtype = tensor.numel() * how.parts, how.dtype
            return dense

        return self._transfer(tensor, Part(fill))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        tensor = _only(tensors, "recv")
        how, dense = _moved(tensor), _dense_like(tensor)

        def fill(call: Any) -> Any:
            call.peer, call.tag, call.receives = src, tag, 1
            call.send, call.receive = None, dense.data_ptr()
            call.count, call.dtype = tensor.numel() * how.parts, how.dtype
            return dense

        return self._transfer(tensor, Part(fill, _back(tensor, dense)))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self.recv(tensors, ANY_SOURCE, tag)

    def _transfer(self, tensor: torch.Tensor, part: Part) -> Work:
        return GroupWork(self._calls, self._calls.post(TRANSFER, [part.fill], part.finish), [tensor])

    # ---- barriers and coalescing ----

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        return self._do(opts, "barrier", [Part(_nothing)], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the ranks that did not reach it in time, in gloo's words. Rank 0 receives a byte
        from every other rank, then answers each."""
        seconds = self._calls.seconds if timeout is None else timeout.total_seconds()
        if self._rank:
            self.send([_byte()], 0, _MONITORED)
            works = {0: self.recv([_byte()], 0, _MONITORED)}
            if self._late(works, seconds + 1):
                self._give_up(
                    f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting for "
                    f"send/recv from rank 0: it did not come within {seconds:g} s",
                    works[0],
                )
            return
        works = {rank: self.recv([_byte()], rank, _MONITORED) for rank in range(1, self._size)}
        late = self._late(works, seconds)
        if late:
            ranks = "Ranks " + ", ".join(map(str, late)) if wait_all_ranks and len(late) > 1 else f"Rank {late[0]}"
            self._give_up(f"{ranks} failed to pass monitoredBarrier in {round(1000 * seconds)} ms", works[late[0]])
        for rank in works:
            self.send([_byte()], rank, _MONITORED).wait()

    def _give_up(self, words: str, work: Work) -> None:
        """Fails the group with these words; waiting for `work`, which is not complete, raises them here."""
        self._calls.fail(words + self._calls.missing())
        work.wait()

    def _late(self, works: Any, seconds: float) -> Any:
        """Waits up to `seconds` for the works; returns the ranks whose work is not complete by then."""
        end = time.monotonic() + seconds
        while True:
            late = [rank for rank, work in works.items() if not work.is_completed()]
            if not late or time.monotonic() > end:
                return late
            time.sleep(0.0002)

    def _start_coalescing(self, device: Any = None) -> None:
        """Does nothing: calls are posted one by one, and _end_coalescing waits for them together."""

    def _end_coalescing(self, device: Any = None) -> Work:
        return CoalescedWork(self._calls, self._calls.in_flight())


# ---- checking and converting arguments ----

_MONITORED = -(1 << 62)  # the tag of monitored_barrier's messages, which programs do not use
_EMPTY = ctypes.create_string_buffer(1)


def _byte() -> torch.Tensor:
    return torch.zeros(1, dtype=torch.uint8)


def _address(tensor: torch.Tensor) -> int:
    """The address of the tensor's elements. A tensor without elements has address 0, which in a Message would mean "not
    sent" (or "not received"), so it gets another address."""
    return tensor.data_ptr() or ctypes.addressof(_EMPTY)


def _nothing(call: Any) -> None:
    call.dtype = moved(torch.float32).dtype


def _options(given: Any, kind: Any) -> Any:
    """The options object; PyTorch may pass only the reduction, or nothing."""
    return given if isinstance(given, kind) else _made(kind, reduceOp=given)


def _made(kind: Any, **fields: Any) -> Any:
    options = kind()
    for name, value in fields.items():
        if value is not None:
            setattr(options, name, value)
    return options


def _only(tensors: torch.Tensor | Tensors, what: str) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise InvalidError(f"{what}: each rank must give one tensor, but this rank gave {len(tensors)}")
    return tensors[0]


def _only_list(lists: Any) -> Tensors:
    """The list of tensors in [[a, b]] or [a, b]; PyTorch passes either."""
    if lists and isinstance(lists[0], torch.Tensor):
        return lists  # type: ignore[no-any-return]
    if len(lists) != 1:
        raise InvalidError(f"each rank must give one list of tensors, but this rank gave {len(lists)}")
    return lists[0]  # type: ignore[no-any-return]


def _moved(tensor: torch.Tensor) -> Moved:
    if not tensor.is_cpu:
        raise InvalidError(
            f"backend addend moves CPU tensors only; this tensor is on {tensor.device}: move it with .cpu() first"
        )
    if tensor.layout is not torch.strided:
        raise InvalidError(f"backend addend moves dense tensors, not {tensor.layout}: call to_dense() first")
    return moved(tensor.dtype)


def _combined(tensor: torch.Tensor, by: Reduction) -> tuple[torch.Tensor, Moved]:
    """(this rank's addend, contiguous, how it is moved): the tensor, or its product with PREMUL_SUM's factor."""
    how = _moved(tensor)
    if by.number != SUM or by.factor is not None or not how.sums:
        check_reduces(tensor.dtype, how, by)
    if by.factor is None or how.wide is None:
        return _dense(tensor), how
    with torch.no_grad():
        return _dense(tensor.to(how.wide) * by.factor), moved(how.wide)


def _of_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    _moved(tensor)
    if tensor.dtype is not dtype:
        raise InvalidError(f"one call has tensors of {tensor.dtype} and of {dtype}: use one dtype")
    return tensor


def _check_pair(input: torch.Tensor, output: torch.Tensor, of_input: int, of_output: int | None = None) -> None:
    if input.numel() != of_input or (of_output is not None and output.numel() != of_output):
        raise InvalidError(
            f"the numbers of elements, {input.numel()} of the input and {output.numel()} of the output, do not fit: "
            "the larger must be the smaller times the number of ranks (all_to_all_single: both the same)"
        )
    _of_dtype(output, input.dtype)


def _check_blocks(blocks: Tensors, size: int, dtype: torch.dtype) -> None:
    if len(blocks) != size:
        raise InvalidError(f"a list has {len(blocks)} tensors, but must have {size}, one for each rank")
    for block in blocks:
        _of_dtype(block, dtype)


def _as_reduction(call: Any, how: Moved, by: Reduction, out_dtype: int) -> None:
    call.dtype, call.reduction = how.dtype, SUM if by.number == AVERAGE else by.number
    call.out_dtype = out_dtype


# ---- contiguous copies of tensors ----


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is contiguous, else a contiguous copy of its values."""
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    with torch.no_grad():
        return tensor.resolve_conj().resolve_neg().contiguous()


def _dense_like(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The tensor itself if it is contiguous and of the dtype, else an uninitialised contiguous tensor of its shape."""
    dtype = dtype or tensor.dtype
    if tensor.dtype is dtype and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return torch.empty(tensor.shape, dtype=dtype)


def _back(tensor: torch.Tensor, dense: torch.Tensor) -> Finish:
    return None if dense is tensor else _finisher(tensor, dense, 1)


def _finisher(target: torch.Tensor, dense: torch.Tensor, divisor: int) -> Callable[[], None]:
    def finish() -> None:
        with torch.no_grad():
            if divisor != 1:  # divides real and imaginary parts as real numbers: complex division rounds more than once
                (torch.view_as_real(dense) if dense.is_complex() else dense).div_(divisor)
            if dense is not target:
                target.copy_(dense)

    return finish


def _all_of(finishes: Sequence[Callable[[], None]]) -> Finish:
    if len(finishes) < 2:
        return finishes[0] if finishes else None

    def finish() -> None:
        for one in finishes:
            one()

    return finish
