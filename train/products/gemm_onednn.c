/* Products by oneDNN 2 or 3; no other file includes oneDNN's header. A product of f32 is one call. A product of bf16 is
 * a primitive, which oneDNN compiles for its sizes, strides and dtypes. Each thread compiles a primitive once and keeps
 * it in a table. */
#include "products/gemm_ways.h"

#include <inttypes.h>
#include "base/error.h"

#if defined(AD_ONEDNN)

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl_version.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <xxhash.h>
#include "base/memory.h"
#include "products/blas.h"

uint32_t ad_onednn_version(void) {
  const dnnl_version_t *version = dnnl_version();
  return (uint32_t)(version->major * 10000 + version->minor * 100 + version->patch);
}

/* ---- calls that oneDNN 2 and 3 write differently ---- */

#if DNNL_VERSION_MAJOR < 3
typedef dnnl_memory_desc_t description;
typedef const dnnl_memory_desc_t *description_view;

static dnnl_status_t describe_matrix(description *out, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                     const dnnl_dims_t strides) {
  return dnnl_memory_desc_init_by_strides(out, 2, sizes, type, strides);
}

static description_view view(const description *of) { return of; }

static void destroy_description(description *of) {}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const description of[3],
                                      const_dnnl_primitive_attr_t attributes) {
  dnnl_matmul_desc_t product;
  dnnl_status_t status = dnnl_matmul_desc_init(&product, &of[0], &of[1], NULL, &of[2]);
  return status ? status : dnnl_primitive_desc_create(out, &product, attributes, engine, NULL);
}

/* Multiplies by the factor after the product. An output scale would do the same, but oneDNN 2.6 applies it element by
 * element, which makes a product of attention scores six times slower. */
static dnnl_status_t append_factor(dnnl_post_ops_t after, float factor) {
  return dnnl_post_ops_append_eltwise(after, 1, dnnl_eltwise_linear, factor, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t after) { return dnnl_post_ops_append_sum(after, 1); }
#else
typedef dnnl_memory_desc_t description;
typedef const_dnnl_memory_desc_t description_view;

static dnnl_status_t describe_matrix(description *out, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                     const dnnl_dims_t strides) {
  return dnnl_memory_desc_create_with_strides(out, 2, sizes, type, strides);
}

static description_view view(const description *of) { return *of; }

static void destroy_description(description *of) {
  if (*of) dnnl_memory_desc_destroy(*of);
}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const description of[3],
                                      const_dnnl_primitive_attr_t attributes) {
  return dnnl_matmul_primitive_desc_create(out, engine, of[0], of[1], NULL, of[2], attributes);
}

static dnnl_status_t append_factor(dnnl_post_ops_t after, float factor) {
  return dnnl_post_ops_append_eltwise(after, dnnl_eltwise_linear, factor, 0);
}

static dnnl_status_t append_sum(dnnl_post_ops_t after) {
  return dnnl_post_ops_append_sum(after, 1, 0, dnnl_data_type_undef);
}
#endif

/* ---- setting the number of oneDNN's threads ---- */

/* oneDNN uses as many threads as OpenMP is set to use in the calling thread. This is set before each call and restored
 * after it, because the program may use OpenMP itself. */
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
static int (*get_threads)(void);
static void (*set_threads)(int);

static void find_openmp(void) {
  void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads"), *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  if (!get || !set) return;
  memcpy(&get_threads, &get, sizeof get);
  memcpy(&set_threads, &set, sizeof set);
}

static int take_threads(void) {
  if (!set_threads) return 0;
  int before = get_threads();
  set_threads(ad_blas_threads());
  return before;
}

static void give_threads(int before) {
  if (set_threads) set_threads(before);
}
#elif DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_SEQ || DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_THREADPOOL
static void find_openmp(void) {}
static int take_threads(void) { return 0; }
static void give_threads(int before) {}
#else
#error "this oneDNN cannot be held to one thread: it must be built for OpenMP, a thread pool or no threads"
#endif

/* ---- which instructions oneDNN uses ---- */

static dnnl_cpu_isa_t instructions_of(ad_units units) {
  switch (units) {
    case AD_UNITS_AMX:
      return dnnl_cpu_isa_avx512_core_amx;
    case AD_UNITS_FAST_BF16:
    case AD_UNITS_AVX512BF16:
      return dnnl_cpu_isa_avx512_core_bf16;
    case AD_UNITS_AVX512:
      return dnnl_cpu_isa_avx512_core;
    case AD_UNITS_AVX2:
      return dnnl_cpu_isa_avx2;
    default:
      return dnnl_cpu_isa_sse41;
  }
}

/* enough memory for compiling a kernel, with a reserve; oneDNN 2.6 crashes if there is less */
enum { KERNEL_MIB = 32 };

static ad_status try_kernel(void) { return ad_memory_try("matrix products by oneDNN", KERNEL_MIB); }

static ad_status no_room; /* AD_MEMORY if there is no memory for the kernels of f32, all of which are compiled at the
                           * first product */
static dnnl_status_t limited;

/* Limits oneDNN to the instructions that all ranks have. Called once in a process. */
static void prepare(void) {
  ad_units agreed = ad_products_in_use().units;
  find_openmp();
  no_room = try_kernel();
  if (agreed < ad_products_own().units) limited = dnnl_set_max_cpu_isa(instructions_of(agreed));
}

static ad_status prepare_once(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, prepare);
  if (no_room) return try_kernel();
  if (!limited) return AD_OK;
  const char *names = ad_units_name(ad_products_in_use().units);
  return ad_fail(AD_SYSTEM,
                 "oneDNN was used before the ranks joined, so oneDNN can no longer be limited to the instructions that "
                 "all ranks have (%s); join first, or set ONEDNN_MAX_CPU_ISA on every rank",
                 names);
}

const char *ad_gemm_onednn_instructions(void) {
  static const struct {
    dnnl_cpu_isa_t has;
    const char *name;
  } known[] = {{dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
               {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
               {dnnl_cpu_isa_avx512_core, "avx512_core"},
               {dnnl_cpu_isa_avx2, "avx2"}};
  unsigned used = (unsigned)dnnl_get_effective_cpu_isa();
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if ((used & known[i].has) == (unsigned)known[i].has) return known[i].name;
  return "sse41";
}

/* ---- products of f32 ---- */

static ad_status fail(const gemm_product *of, dnnl_status_t status, const char *step) {
  return ad_fail(status == dnnl_out_of_memory ? AD_MEMORY : AD_SYSTEM,
                 "oneDNN %d.%d cannot %s the matrix product %" PRId64 " x %" PRId64 " x %" PRId64 ", %s to %s: %s",
                 dnnl_version()->major, dnnl_version()->minor, step, of->m, of->n, of->k, ad_dtype_name(of->values),
                 ad_dtype_name(of->result), dnnl_status2str(status));
}

static int64_t longer(int64_t stride, int64_t length) { return stride > length ? stride : length; }

/* Blocks signals during dnnl_sgemm. Some of its AVX-512 kernels use the stack pointer as a general register, so it may
 * point into matrices, and the operating system would write a signal's frame there. Signals that an instruction itself
 * raises are not blocked. */
static void hold_signals(sigset_t *before) {
  static const int raised[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
  sigset_t held;
  sigfillset(&held);
  for (size_t i = 0; i < sizeof raised / sizeof *raised; i++) sigdelset(&held, raised[i]);
  pthread_sigmask(SIG_BLOCK, &held, before);
}

/* Computes the product. If a matrix has one row, the caller may give no stride, but oneDNN wants one that is at least
 * the row's length. */
static ad_status multiply_f32(const gemm_product *of) {
  int64_t a_stride = longer(of->a.stride, of->a.transposed ? of->m : of->k);
  int64_t b_stride = longer(of->b.stride, of->b.transposed ? of->k : of->n);
  sigset_t signals;
  int threads = take_threads();
  hold_signals(&signals);
  dnnl_status_t status =
      dnnl_sgemm(of->a.transposed ? 'T' : 'N', of->b.transposed ? 'T' : 'N', of->m, of->n, of->k, (float)of->factor,
                 of->a.data, a_stride, of->b.data, b_stride, of->adds ? 1 : 0, of->c, longer(of->c_stride, of->n));
  pthread_sigmask(SIG_SETMASK, &signals, NULL);
  give_threads(threads);
  return status ? fail(of, status, "make") : AD_OK;
}

/* ---- primitives (compiled products) and the table that keeps them ---- */

/* The properties for which a primitive is compiled. They are compared byte by byte, so the struct must have no
 * padding. */
typedef struct shape_key {
  int64_t m, n, k, strides[3];
  uint32_t factor; /* the bits of the factor, a float */
  uint8_t a_transposed, b_transposed, adds, values, result, unused[7];
} shape_key;

enum { A, B, C, SCRATCH, ARGUMENTS };

typedef struct entry {
  shape_key key;
  dnnl_primitive_t primitive; /* NULL: this slot of the table is free */
  dnnl_memory_t memory[ARGUMENTS];
  size_t scratch_bytes;
} entry;

/* FIRST_PLACES and MOST_PLACES are the smallest and the largest size of the table. A program has a few hundred shapes.
 * A full table of the largest size is emptied, so that it does not grow without limit if there are always new
 * shapes. */
enum { FIRST_PLACES = 64, MOST_PLACES = 8192 };

typedef struct onednn {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  entry *entries; /* a hash table whose size is a power of two; at most half of its slots are used */
  size_t places, taken;
  char *scratch;
  size_t scratch_bytes;
  long made;
} onednn;

static uint32_t bits_of(float factor) {
  uint32_t bits;
  memcpy(&bits, &factor, sizeof bits);
  return bits;
}

static shape_key key_of(const gemm_product *of) {
  return (shape_key){.m = of->m,
                     .n = of->n,
                     .k = of->k,
                     .strides = {of->a.stride, of->b.stride, of->c_stride},
                     .factor = bits_of((float)of->factor),
                     .a_transposed = of->a.transposed != 0,
                     .b_transposed = of->b.transposed != 0,
                     .adds = of->adds != 0,
                     .values = (uint8_t)of->values,
                     .result = (uint8_t)of->result};
}

static void clear(entry *of) {
  for (int i = 0; i < ARGUMENTS; i++)
    if (of->memory[i]) dnnl_memory_destroy(of->memory[i]);
  if (of->primitive) dnnl_primitive_destroy(of->primitive);
  memset(of, 0, sizeof *of);
}

/* Returns the entry with this key, or the free slot for it. */
static entry *find_entry(const onednn *kept, const shape_key *key) {
  size_t at = XXH3_64bits(key, sizeof *key) & (kept->places - 1);
  while (kept->entries[at].primitive && memcmp(&kept->entries[at].key, key, sizeof *key) != 0)
    at = (at + 1) & (kept->places - 1);
  return &kept->entries[at];
}

static void clear_all(onednn *kept) {
  for (size_t i = 0; i < kept->places; i++) clear(&kept->entries[i]);
  kept->taken = 0;
}

static ad_status make_room(onednn *kept) {
  if (2 * (kept->taken + 1) <= kept->places) return AD_OK;
  if (kept->places == MOST_PLACES) {
    clear_all(kept);
    return AD_OK;
  }
  onednn larger = *kept;
  larger.places = kept->places ? 2 * kept->places : FIRST_PLACES;
  AD_TRY(ad_new(larger.places, &larger.entries));
  for (size_t i = 0; i < kept->places; i++)
    if (kept->entries[i].primitive) *find_entry(&larger, &kept->entries[i].key) = kept->entries[i];
  ad_release(kept->entries);
  *kept = larger;
  return AD_OK;
}

/* ---- compiling a primitive ---- */

typedef struct making {
  description of[3]; /* of a, b and c */
  dnnl_post_ops_t after;
  dnnl_primitive_attr_t attributes;
  dnnl_primitive_desc_t product;
} making;

static dnnl_status_t describe_operand(description *out, int64_t rows, int64_t columns, ad_dtype dtype, int64_t stride,
                                      int transposed) {
  int64_t across = transposed ? columns : rows;
  int64_t far = across > 1 ? stride : transposed ? rows : columns;
  const dnnl_dims_t sizes = {rows, columns}, strides = {transposed ? 1 : far, transposed ? far : 1};
  return describe_matrix(out, sizes, dtype == AD_BF16 ? dnnl_bf16 : dnnl_f32, strides);
}

static dnnl_status_t describe_operands(making *with, const gemm_product *of) {
  dnnl_status_t status = describe_operand(&with->of[A], of->m, of->k, of->values, of->a.stride, of->a.transposed);
  if (!status) status = describe_operand(&with->of[B], of->k, of->n, of->values, of->b.stride, of->b.transposed);
  return status ? status : describe_operand(&with->of[C], of->m, of->n, of->result, of->c_stride, 0);
}

/* Describes what follows the sums of products: factor * sum + c, in f32, and then rounding. */
static dnnl_status_t describe_after(making *with, const gemm_product *of) {
  dnnl_status_t status = dnnl_post_ops_create(&with->after);
  if (!status) status = dnnl_primitive_attr_create(&with->attributes);
  if (!status && (float)of->factor != 1) status = append_factor(with->after, (float)of->factor);
  if (!status && of->adds) status = append_sum(with->after);
  if (!status) status = dnnl_primitive_attr_set_post_ops(with->attributes, with->after);
  return status ? status : dnnl_primitive_attr_set_scratchpad_mode(with->attributes, dnnl_scratchpad_mode_user);
}

static dnnl_status_t make_memory(const onednn *kept, const making *with, entry *out) {
  description_view scratch = dnnl_primitive_desc_query_md(with->product, dnnl_query_scratchpad_md, 0);
  out->scratch_bytes = dnnl_memory_desc_get_size(scratch);
  dnnl_status_t status = dnnl_memory_create(&out->memory[SCRATCH], scratch, kept->engine, DNNL_MEMORY_NONE);
  for (int i = A; i <= C && !status; i++)
    status = dnnl_memory_create(&out->memory[i], view(&with->of[i]), kept->engine, DNNL_MEMORY_NONE);
  return status;
}

static dnnl_status_t make_steps(const onednn *kept, const gemm_product *of, making *with, entry *out) {
  dnnl_status_t status = describe_operands(with, of);
  if (!status) status = describe_after(with, of);
  if (!status) status = describe_product(&with->product, kept->engine, with->of, with->attributes);
  if (!status) status = make_memory(kept, with, out);
  return status ? status : dnnl_primitive_create(&out->primitive, with->product);
}

static void unmake(making *with) {
  if (with->product) dnnl_primitive_desc_destroy(with->product);
  if (with->attributes) dnnl_primitive_attr_destroy(with->attributes);
  if (with->after) dnnl_post_ops_destroy(with->after);
  for (int i = A; i <= C; i++) destroy_description(&with->of[i]);
}

static ad_status make_entry(onednn *kept, const gemm_product *of, const shape_key *key, entry **out) {
  making with;
  memset(&with, 0, sizeof with);
  AD_TRY(make_room(kept));
  AD_TRY(try_kernel());
  entry *place = find_entry(kept, key), made = {.key = *key};
  dnnl_status_t status = make_steps(kept, of, &with, &made);
  unmake(&with);
  if (status) {
    clear(&made);
    return fail(of, status, "compile");
  }
  *place = made;
  kept->taken++;
  kept->made++;
  *out = place;
  return AD_OK;
}

/* ---- executing a primitive ---- */

static dnnl_status_t execute(onednn *kept, const entry *with, const gemm_product *of) {
  void *const data[ARGUMENTS] = {(void *)(uintptr_t)of->a.data, (void *)(uintptr_t)of->b.data, of->c, kept->scratch};
  static const int number[ARGUMENTS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
  dnnl_exec_arg_t arguments[ARGUMENTS];
  for (int i = 0; i < ARGUMENTS; i++) {
    dnnl_status_t status = dnnl_memory_set_data_handle(with->memory[i], data[i]);
    if (status) return status;
    arguments[i] = (dnnl_exec_arg_t){number[i], with->memory[i]};
  }
  return dnnl_primitive_execute(with->primitive, kept->stream, ARGUMENTS, arguments);
}

static ad_status multiply(onednn *kept, const gemm_product *of, int times) {
  shape_key key = key_of(of);
  if (!kept->places) AD_TRY(make_room(kept));
  entry *with = find_entry(kept, &key);
  if (!with->primitive) AD_TRY(make_entry(kept, of, &key, &with));
  AD_TRY(ad_grow(&kept->scratch, kept->scratch_bytes, with->scratch_bytes));
  if (with->scratch_bytes > kept->scratch_bytes) kept->scratch_bytes = with->scratch_bytes;
  dnnl_status_t status = dnnl_success;
  for (int i = 0; i < times && !status; i++) status = execute(kept, with, of);
  return status ? fail(of, status, "make") : AD_OK;
}

static ad_status create_onednn(onednn **out) {
  onednn *made;
  AD_TRY(ad_new(1, &made));
  dnnl_status_t status = dnnl_engine_create(&made->engine, dnnl_cpu, 0);
  if (!status) status = dnnl_stream_create(&made->stream, made->engine, dnnl_stream_default_flags);
  if (status) {
    ad_gemm_onednn_destroy(made);
    return ad_fail(AD_SYSTEM, "oneDNN cannot be started on this processor (%s); set ADDEND_PRODUCTS=openblas",
                   dnnl_status2str(status));
  }
  *out = made;
  return AD_OK;
}

ad_status ad_gemm_onednn_repeat(gemm_kept *kept, const gemm_product *product, int times) {
  AD_TRY(prepare_once());
  if (!kept->onednn) AD_TRY(create_onednn(&kept->onednn));
  int threads = take_threads();
  ad_status status = multiply(kept->onednn, product, times);
  give_threads(threads);
  return status;
}

ad_status ad_gemm_onednn(gemm_kept *kept, const gemm_product *product) {
  if (product->values == AD_BF16) return ad_gemm_onednn_repeat(kept, product, 1);
  AD_TRY(prepare_once());
  return multiply_f32(product);
}

void ad_gemm_onednn_destroy(onednn *kept) {
  if (!kept) return;
  clear_all(kept);
  ad_release(kept->entries);
  ad_release(kept->scratch);
  if (kept->stream) dnnl_stream_destroy(kept->stream);
  if (kept->engine) dnnl_engine_destroy(kept->engine);
  ad_release(kept);
}

long ad_gemm_onednn_made(const gemm_kept *kept) { return kept->onednn ? kept->onednn->made : 0; }

#else

uint32_t ad_onednn_version(void) { return 0; }

ad_status ad_gemm_onednn_repeat(gemm_kept *kept, const gemm_product *product, int times) {
  return ad_fail(AD_INVALID,
                 "addend was built without oneDNN, so oneDNN cannot compute a matrix product; use OpenBLAS, or install "
                 "oneDNN and build addend again");
}

ad_status ad_gemm_onednn(gemm_kept *kept, const gemm_product *product) {
  return ad_gemm_onednn_repeat(kept, product, 1);
}

void ad_gemm_onednn_destroy(struct onednn *kept) {}
long ad_gemm_onednn_made(const gemm_kept *kept) { return 0; }
const char *ad_gemm_onednn_instructions(void) { return NULL; }

#endif
