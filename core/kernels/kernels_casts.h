/* Scaled casts and scaled additions of one source (f32 or a 16-bit float) whose values stay in registers from the load
 * to the store. Included by kernels_body.h, whose loops over blocks give the same bits. */

/* A pass: dst[i] = factor * src[i], or dst[i] += factor * src[i]. Handles only as many of the first elements as fill
 * whole registers, and returns their number. */
typedef size_t (*register_pass)(void *dst, const void *src, float factor, size_t n);

#if defined(HAS_LANES)
#define PASS(name, to_type, from_type, value, pack, put)                   \
  static size_t name(void *dst, const void *src, float factor, size_t n) { \
    to_type *to = dst;                                                     \
    const from_type *from = src;                                           \
    size_t i = 0;                                                          \
    for (; i + LANES <= n; i += LANES) put(to + i, pack(value));           \
    return i;                                                              \
  }

/* Defines two passes from one dtype into another: the scaled cast and the scaled addition. */
#define PASSES(dst_name, to_type, to_load, pack, put, src_name, from_type, load)                               \
  PASS(src_name##s_times_to_##dst_name##s, to_type, from_type, lanes_times(load(from + i), factor), pack, put) \
  PASS(src_name##s_times_onto_##dst_name##s, to_type, from_type,                                               \
       lanes_add(to_load(to + i), lanes_times(load(from + i), factor)), pack, put)

#define PASSES_INTO(dst_name, to_type, to_load, pack, put)                         \
  PASSES(dst_name, to_type, to_load, pack, put, f32, float, lanes_from_f32)        \
  PASSES(dst_name, to_type, to_load, pack, put, bf16, uint16_t, ordered_from_bf16) \
  PASSES(dst_name, to_type, to_load, pack, put, f16, uint16_t, lanes_from_f16)

PASSES_INTO(f32, float, lanes_from_f32, f32_of, put_f32)
PASSES_INTO(bf16, uint16_t, ordered_from_bf16, ordered_bf16_of, put_halves)
PASSES_INTO(f16, uint16_t, lanes_from_f16, f16_of, put_halves)

#define FROM(way, dst_name)                                                                     \
  {                                                                                             \
    [AD_F32] = f32s_times_##way##_##dst_name##s, [AD_BF16] = bf16s_times_##way##_##dst_name##s, \
    [AD_F16] = f16s_times_##way##_##dst_name##s                                                 \
  }
/* indexed by [destination's dtype][source's dtype] */
static const register_pass scaled_casts[AD_DTYPE_END][AD_DTYPE_END] = {
    [AD_F32] = FROM(to, f32), [AD_BF16] = FROM(to, bf16), [AD_F16] = FROM(to, f16)};
static const register_pass scaled_sums[AD_DTYPE_END][AD_DTYPE_END] = {
    [AD_F32] = FROM(onto, f32), [AD_BF16] = FROM(onto, bf16), [AD_F16] = FROM(onto, f16)};
#else
static const register_pass scaled_casts[AD_DTYPE_END][AD_DTYPE_END] = {{NULL}};
static const register_pass scaled_sums[AD_DTYPE_END][AD_DTYPE_END] = {{NULL}};
#endif

/* Runs the pass for these dtypes, if there is one. Returns the number of elements that it handled. */
INLINE size_t pass_in_registers(const register_pass passes[AD_DTYPE_END][AD_DTYPE_END], void *dst, ad_dtype dst_dtype,
                                const void *src, ad_dtype src_dtype, double factor, size_t n) {
  register_pass pass = passes[dst_dtype][src_dtype];
  return pass ? pass(dst, src, (float)factor, n) : 0;
}
