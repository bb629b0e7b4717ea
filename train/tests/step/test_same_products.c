/* Tests that a product of one shape has the same bits wherever its matrices lie in memory and whatever else the machine
 * does, on which runs with leaves depend: a rank computes a leaf's products in memory of other alignment than another
 * rank. The shapes are those that a step of each recipe of the repository computes with leaves. */
#include "ranks.h"
#include "world.h"

#include <dirent.h>
#include <stdatomic.h>
#include <xxhash.h>
#include "addend/helpers.h"
#include "base/injection.h"
#include "products/gemm_ways.h"
#include "rows/rows.h"
#include "step/run.h"

/* ---- the shapes of the recipes ---- */

enum { A, B, C, MATRICES };
enum { SHAPES_MAX = 4096, LIBRARIES = AD_LIBRARY_ONEDNN + 1 };

/* What may decide how a product is computed: all of it but the matrices' values and places. Zeroed before it is set, so
 * that it can be compared byte by byte. */
typedef struct shape {
  int64_t m, n, k, strides[MATRICES];
  double factor;
  int32_t values, result, a_transposed, b_transposed, adds, unused;
} shape;

/* In memory that ranks share. */
typedef struct table {
  atomic_flag is_written;
  size_t count, most[MATRICES]; /* most: bytes of the largest matrices */
  int recipes;
  shape list[SHAPES_MAX];
  uint64_t sums[LIBRARIES][SHAPES_MAX]; /* checksums of the results */
} table;

static shape shape_of(const gemm_product *of) {
  shape made;
  memset(&made, 0, sizeof made);
  made.m = of->m, made.n = of->n, made.k = of->k;
  made.strides[A] = of->a.stride, made.strides[B] = of->b.stride, made.strides[C] = of->c_stride;
  made.factor = of->factor;
  made.values = (int32_t)of->values, made.result = (int32_t)of->result;
  made.a_transposed = of->a.transposed != 0, made.b_transposed = of->b.transposed != 0, made.adds = of->adds != 0;
  return made;
}

static size_t element_size(const shape *of, int matrix) {
  return ad_dtype_size((ad_dtype)(matrix == C ? of->result : of->values));
}

/* The bytes from the matrix's first element to its last. */
static size_t bytes_of(const shape *of, int matrix) {
  int transposed = matrix == A ? of->a_transposed : matrix == B && of->b_transposed;
  int64_t rows = matrix == B ? of->k : of->m, columns = matrix == A ? of->k : of->n;
  int64_t lines = transposed ? columns : rows, length = transposed ? rows : columns;
  return (size_t)((lines - 1) * of->strides[matrix] + length) * element_size(of, matrix);
}

static void add_shape(table *to, const shape *of) {
  for (size_t i = 0; i < to->count; i++)
    if (!memcmp(&to->list[i], of, sizeof *of)) return;
  CHECK(to->count < SHAPES_MAX);
  to->list[to->count++] = *of;
  for (int i = 0; i < MATRICES; i++)
    if (bytes_of(of, i) > to->most[i]) to->most[i] = bytes_of(of, i);
}

static void note_product(void *context, void *passing) {
  table *to = context;
  shape of = shape_of(((const gemm_passing *)passing)->product);
  if (!of.m || !of.n || !of.k) return;
  while (atomic_flag_test_and_set(&to->is_written)) continue;
  add_shape(to, &of);
  atomic_flag_clear(&to->is_written);
}

typedef struct recording {
  const ad_recipe *recipe;
  table *to;
} recording;

static int record(ad_comm *comm, void *context) {
  const recording *of = context;
  ad_run *run;
  ad_step_report report;
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){note_product, of->to});
  CHECK_OK(ad_run_create(comm, of->recipe, NULL, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  ad_run_destroy(run);
  return 0;
}

/* Records a step of the recipe with leaves of two sizes on one data-parallel rank; tp and cp are the recipe's own.
 * Recipes of programs that do not take leaves, and those whose model is not in the repository, are left out. */
static void record_recipe(const char *path, table *to) {
  ad_recipe *recipe;
  ad_mesh *mesh;
  char meshes[64];
  if (ad_recipe_read_on_paper(path, NULL, 0, &recipe)) return;
  int takes_leaves = !strcmp(recipe->kind, "gpt");
  if (takes_leaves) {
    must(ad_mesh_create(recipe->meshes[0].text, &mesh));
    snprintf(meshes, sizeof meshes, "mesh=dp_shard=1 tp=%d cp=%d", (int)ad_mesh_axis_size(mesh, AD_TP),
             (int)ad_mesh_axis_size(mesh, AD_CP));
    ad_mesh_destroy(mesh);
  }
  ad_recipe_destroy(recipe);
  if (!takes_leaves) return;
  const char *sets[] = {meshes,         "train.leaves=3",     "train.microbatches=1",
                        "shard.zero=0", "shard.outer_zero=0", "precision.reduce=f32"};
  int64_t ranks;
  if (ad_recipe_read(path, sets, sizeof sets / sizeof *sets, &recipe)) fail_msg("%s", ad_last_error());
  must(ad_recipe_world(recipe, &ranks));
  run_ranks(ranks, record, &((recording){recipe, to}));
  ad_recipe_destroy(recipe);
  to->recipes++;
}

static void record_recipes(table *to) {
  DIR *folder = opendir(AD_TEST_SOURCE "/recipes");
  assert_non_null(folder);
  for (const struct dirent *each; (each = readdir(folder));) {
    char path[512];
    snprintf(path, sizeof path, AD_TEST_SOURCE "/recipes/%s", each->d_name);
    if (strstr(each->d_name, ".yaml")) record_recipe(path, to);
  }
  closedir(folder);
}

/* ---- one product, at some place in memory ---- */

enum { ALIGNMENTS = 8, STEP = 8, LINE = ALIGNMENTS * STEP };

/* Memory for the three matrices, which begins at a multiple of LINE. */
typedef struct place {
  char *memory[MATRICES];
  size_t bytes[MATRICES];
} place;

static place place_for(const size_t *bytes) {
  place made;
  for (int i = 0; i < MATRICES; i++) {
    made.bytes[i] = bytes[i] + LINE;
    made.memory[i] = mmap(NULL, made.bytes[i], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(made.memory[i] != MAP_FAILED);
  }
  return made;
}

/* A place whose memory is full of NaN. */
static place used_place_for(const size_t *bytes) {
  place made = place_for(bytes);
  for (int i = 0; i < MATRICES; i++) memset(made.memory[i], 0xff, made.bytes[i]);
  return made;
}

static void leave_place(const place *of) {
  for (int i = 0; i < MATRICES; i++) munmap(of->memory[i], of->bytes[i]);
}

/* Writes random numbers, of which each matrix has its own; not where a product does not add, which must not read there
 * what earlier ones left. */
static void fill(const shape *of, int matrix, char *to) {
  ad_dtype dtype = (ad_dtype)(matrix == C ? of->result : of->values);
  size_t n = bytes_of(of, matrix) / ad_dtype_size(dtype);
  if (matrix == C && !of->adds) return;
  uint32_t state = 1 + (uint32_t)matrix;
  for (size_t i = 0; i < n; i++) {
    state = state * 1664525 + 1013904223;
    double value = (double)(state >> 8) / (1 << 23) - 1;
    ad_set_element(dtype, to, i, value);
  }
}

/* The checksum of the product's result, with matrix i `offsets[i]` bytes after the beginning of its memory. */
static uint64_t checksum_at(const shape *of, const place *at, const size_t *offsets) {
  char *in[MATRICES];
  for (int i = 0; i < MATRICES; i++) {
    in[i] = at->memory[i] + offsets[i];
    fill(of, i, in[i]);
  }
  ad_gemm((ad_dtype)of->values, (ad_dtype)of->result, of->m, of->n, of->k, of->factor,
          (ad_matrix){in[A], of->strides[A], of->a_transposed}, (ad_matrix){in[B], of->strides[B], of->b_transposed},
          of->adds, in[C], of->strides[C]);
  CHECK_OK(ad_gemm_status());
  uint64_t sum = 0;
  for (int64_t row = 0; row < of->m; row++)
    sum = XXH3_64bits_withSeed(in[C] + (size_t)(row * of->strides[C]) * element_size(of, C),
                               (size_t)of->n * element_size(of, C), sum);
  return sum;
}

/* ---- the same bits in all conditions ---- */

static const char *const libraries[LIBRARIES] = {"by table", "OpenBLAS", "oneDNN"};

static void expect_same(const table *of, int library, size_t i, uint64_t sum, const char *where,
                        const size_t *offsets) {
  if (sum == of->sums[library][i]) return;
  const shape *s = &of->list[i];
  char words[256];
  snprintf(words, sizeof words,
           "%s: [%lld, %lld, %lld]%s%s%s %s has other bits %s, %zu, %zu and %zu bytes off a cache line",
           libraries[library], (long long)s->m, (long long)s->n, (long long)s->k, s->a_transposed ? " a^T" : "",
           s->b_transposed ? " b^T" : "", s->adds ? " adds" : "", ad_dtype_name((ad_dtype)s->values), where, offsets[A],
           offsets[B], offsets[C]);
  rank_check_failed(__FILE__, __LINE__, words);
}

/* Makes this process use the library; returns 0 if it does not have it. */
static int uses(int library) {
  ad_products with = ad_products_own();
  with.library = (ad_library)library;
  ad_products_choose(with);
  return with.onednn || library != AD_LIBRARY_ONEDNN;
}

/* All alignments of one shape: all matrices at the same one in memory that was never used, each otherwise in memory that was. */
static void compare_alignments(table *of, int library, size_t i, const place *reused) {
  const shape *s = &of->list[i];
  size_t bytes[MATRICES] = {bytes_of(s, A), bytes_of(s, B), bytes_of(s, C)};
  for (size_t k = 0; k < ALIGNMENTS; k++) {
    size_t same[] = {k * STEP, k * STEP, k * STEP};
    size_t apart[] = {k * STEP, (k + 3) % ALIGNMENTS * STEP, (k + 6) % ALIGNMENTS * STEP};
    place fresh = place_for(bytes);
    uint64_t sum = checksum_at(s, &fresh, same);
    leave_place(&fresh);
    if (!k) of->sums[library][i] = sum;
    expect_same(of, library, i, sum, "in fresh memory", same);
    expect_same(of, library, i, checksum_at(s, reused, apart), "in reused memory", apart);
  }
}

static int compare_alone(ad_comm *comm, void *context) {
  table *of = context;
  place reused = used_place_for(of->most);
  CHECK_OK(ad_gemm_prepare());
  for (int library = 0; library < LIBRARIES; library++)
    for (size_t i = 0; uses(library) && i < of->count; i++) compare_alignments(of, library, i, &reused);
  leave_place(&reused);
  return 0;
}

/* One of the ranks that compute the same products at the same time, each at an alignment of its own. */
static int compare_beside(ad_comm *comm, void *context) {
  const table *of = context;
  size_t rank = (size_t)ad_comm_rank(comm);
  size_t own[] = {rank % ALIGNMENTS * STEP, (rank + 1) % ALIGNMENTS * STEP, (rank + 5) % ALIGNMENTS * STEP};
  place reused = used_place_for(of->most);
  CHECK_OK(ad_gemm_prepare());
  for (int library = 0; library < LIBRARIES; library++)
    for (size_t i = 0; uses(library) && i < of->count; i++)
      expect_same(of, library, i, checksum_at(&of->list[i], &reused, own), "beside other ranks", own);
  leave_place(&reused);
  return 0;
}

enum { RECIPES_LEAST = 15, SHAPES_LEAST = 100, RANKS = 12 };

static void a_product_has_the_same_bits_at_each_alignment_alone_and_beside_others(void **state) {
  table *all = shared_memory(sizeof *all);
  record_recipes(all);
  print_message("%zu shapes of %d recipes\n", all->count, all->recipes);
  assert_true(all->recipes >= RECIPES_LEAST && all->count >= SHAPES_LEAST);
  run_ranks(1, compare_alone, all);
  run_ranks(RANKS, compare_beside, all);
  munmap(all, sizeof *all);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_product_has_the_same_bits_at_each_alignment_alone_and_beside_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
