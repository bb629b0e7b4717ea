// C functions that call DeepSpeed's shm.cpp repeatedly, so that no Python code is timed.
#include <torch/extension.h>

#include "shm.h"

extern "C" void peer_start(int size, int rank, char *address, char *port) { shm_initialize(size, rank, address, port); }

// element_bytes: 4 for f32, 2 for bf16.
extern "C" void peer_all_reduce(void *data, size_t numel, int element_bytes, int times)
{
    auto dtype = element_bytes == 4 ? at::kFloat : at::kBFloat16;
    at::Tensor tensor = at::from_blob(data, {(int64_t)numel}, at::TensorOptions().dtype(dtype));
    for (int i = 0; i < times; i++) all_reduce_outer_loop(tensor, numel, (int)numel * element_bytes);
}
